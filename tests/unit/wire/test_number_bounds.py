"""Numbers of clients and providers beyond every bound, in every place where a number may occur."""

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from stayfast.core.errors import Rejected, UpstreamFailed
from stayfast.core.types import CLIENT_APIS, COUNT_APIS, Api, Request
from stayfast.pipeline.admission.tenants import Tenant
from stayfast.pipeline.context.count_answers import UNLEARNED_COUNTS
from stayfast.policy.admission.overload import TenantConfig
from stayfast.policy.admission.price import Price
from stayfast.policy.admission.priority import Points
from stayfast.policy.admission.quota import QuotaConfig
from stayfast.wire import canonical, prompt
from stayfast.wire.errors import failure_of_response
from stayfast.wire.request_body import can_translate, decode, encode, parse_conversation
from stayfast.wire.transcode import make_transcoder
from stayfast.wire.usage import estimate_input_tokens_high
from tests.unit.wire.full_requests import FULL
from tests.unit.wire.recorded import STREAMS, body, request
from tests.unit.wire.whole_answers import ANSWERS

HUGE = ("9" * 400, "-" + "9" * 400, "9" * 5000, "1e400", "-1e400", "1e308", str(2**53))
_HERE = "HERE"
ALL_FIELDS: dict[Api, dict[str, Any]] = {
    **FULL,
    Api.COMPLETIONS: {"prompt": "a", "max_tokens": 1, "n": 1, "best_of": 1, "logprobs": 1, "seed": 1},
    Api.EMBEDDINGS: {"input": [[1]], "dimensions": 1},
    Api.RERANK: {"query": "a", "documents": ["b"], "top_n": 1},
    Api.COUNT_TOKENS: {"messages": [{"role": "user", "content": "a"}], "thinking": {"type": "enabled", "budget_tokens": 1}},
    Api.INPUT_TOKENS: FULL[Api.RESPONSES],
    Api.TOKENIZE: {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
}
ALL_FIELDS[Api.CHAT] = FULL[Api.CHAT] | {
    "max_tokens": 1, "n": 1, "seed": 1, "top_k": 1, "top_logprobs": 1, "presence_penalty": 1, "frequency_penalty": 1,
    "logit_bias": {"1": 1}, "metadata": {"a": 1}, "stayfast": {"deadline_ms": 1, "cache": {"max-age": 1, "ttl": 1}}}
ALL_FIELDS[Api.MESSAGES] = FULL[Api.MESSAGES] | {"max_tokens": 1, "temperature": 1, "top_p": 1, "top_k": 1,
                                                 "thinking": {"type": "enabled", "budget_tokens": 1}, "metadata": {"a": 1}}
ALL_FIELDS[Api.RESPONSES] = FULL[Api.RESPONSES] | {"top_logprobs": 1, "max_tool_calls": 1, "metadata": {"a": 1},
                                                   "previous_response_id": "resp_1"}


def places(value: Any) -> Iterator[Any]:
    """`value` with one of its leaves replaced by a mark, and with a new member in one of its objects, one after another."""
    if isinstance(value, dict):
        yield value | {"unknown": _HERE}
        for name, inner in value.items():
            yield from (value | {name: other} for other in places(inner))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1:]] for other in places(inner))
    else:
        yield _HERE


def with_numbers(value: Any) -> Iterator[bytes]:
    """Each place with each huge number."""
    for other in places(value):
        text = json.dumps(other)
        yield from (text.replace(f'"{_HERE}"', huge).encode() for huge in HUGE)


def use(asked: Request) -> None:
    """All that is done with a request before and after it is routed. Raises Rejected."""
    canonical.canonicalize(asked)
    prompt.read_prompt(asked.body)
    prompt.read_session(asked.body)
    if asked.api in (Api.CHAT, Api.MESSAGES, Api.RESPONSES):
        with suppress(ValueError):  # as its callers expect
            prompt.order_blocks(asked.body, asked.api, sort_tools=True, move_volatile=True)
    tenant = Tenant("a", TenantConfig(quota=QuotaConfig(tokens_per_minute=10, cost_per_day=1)), Points(), 0.0)
    n_input, n_output = tenant.estimate(asked)
    cost_usd = tenant.most_cost_usd(asked, n_input, {"*": Price(1, 1)})
    tenant.quota.reserve((1.0, n_input + n_output, cost_usd), 0.0)
    tenant.quota.reconcile((1.0, n_input + n_output, cost_usd), (1.0, 5.0, 0.0), 1.0)
    assert all(math.isfinite(left) for left, _ in tenant.quota.levels(2.0).values())
    for to in Api:
        with suppress(Rejected):
            if can_translate(asked.api, to):
                encode(asked, to, "up", stream=False)
    with suppress(Rejected):
        parse_conversation(asked)
    estimate_input_tokens_high(asked)
    if asked.api in COUNT_APIS:
        UNLEARNED_COUNTS.answer(asked)


def refusal(api: Api, raw: bytes) -> Rejected | None:
    try:
        use(decode(api, raw))
    except Rejected as refused:
        return refused
    return None


@pytest.mark.parametrize("api", sorted(CLIENT_APIS))
def test_decode_huge_client_numbers_are_rejected(api: Api) -> None:
    """In every field, known or not: it passes, or is refused by name; no arithmetic overflows."""
    for raw in with_numbers({"model": "m", **ALL_FIELDS[api]}):
        refused = refusal(api, raw)
        assert refused is None or (refused.status == 400 and refused.param), raw


@pytest.mark.parametrize(("api", "field", "most"), [
    (Api.CHAT, "max_tokens", 2**53 - 1), (Api.CHAT, "max_completion_tokens", 2**53 - 1), (Api.CHAT, "n", 128),
    (Api.CHAT, "top_k", 2**53 - 1), (Api.CHAT, "top_logprobs", 2**53 - 1), (Api.CHAT, "seed", 2**63 - 1),
    (Api.COMPLETIONS, "max_tokens", 2**53 - 1), (Api.COMPLETIONS, "best_of", 2**53 - 1),
    (Api.EMBEDDINGS, "dimensions", 2**53 - 1), (Api.RESPONSES, "max_output_tokens", 2**53 - 1),
    (Api.MESSAGES, "max_tokens", 2**53 - 1), (Api.MESSAGES, "top_k", 2**53 - 1)])
def test_decode_integer_error_names_the_bounds(api: Api, field: str, most: int) -> None:
    """The most that is taken passes; one more, and 400 digits, are refused with the field and the bound."""
    assert decode(api, body(api, **{field: most})).model == "route"
    for wrong in (most + 1, int("9" * 400)):
        with pytest.raises(Rejected, match=rf"^{field}: expected `int` <= {most}$") as refused:
            decode(api, body(api, **{field: wrong}))
        assert (refused.value.status, refused.value.param) == (400, field)


def test_decode_float_error_names_the_bounds() -> None:
    """1e400 is JSON, and infinity to most parsers."""
    raw = body(Api.CHAT, temperature=_HERE).replace(f'"{_HERE}"'.encode(), b"1e400")
    with pytest.raises(Rejected, match=r"^temperature: number out of range, expected one from -9007199254740991 to 9007"):
        decode(Api.CHAT, raw)


@pytest.mark.parametrize("source", [*ANSWERS])
def test_transcode_huge_provider_numbers_in_a_body_never_raise(source: Api) -> None:
    """In a whole answer: it is given on, or is a failure of its upstream; counts that are none count as nothing."""
    clients = [client for client in Api if can_translate(client, source)]
    for raw in with_numbers(ANSWERS[source]):
        for client in clients:
            coder = make_transcoder(source, request(client), source_streams=False, upstream="up")
            coder.feed(raw)
            coder.finish()
            failure, usage = coder.summary.failure, coder.summary.usage
            assert failure is None or isinstance(failure, UpstreamFailed)
            if usage is not None:
                assert all(0 <= count < 2**54 for count in (usage.input_total, usage.output, usage.cached_read))
                assert math.isfinite(Price(1, 1).cost_usd(usage))


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_transcode_huge_provider_numbers_in_a_stream_never_raise(name: str) -> None:
    """The same in one event of a stream."""
    recorded = STREAMS[name]
    client = next(api for api in (Api.CHAT, Api.RESPONSES, Api.MESSAGES, recorded.api) if can_translate(api, recorded.api))
    blocks = recorded.data.split(b"\n\n")
    for at, block in enumerate(blocks):
        head, brace, tail = block.partition(b"{")
        try:
            said = json.loads(brace + tail)
        except ValueError:
            continue
        for raw in with_numbers(said):
            coder = make_transcoder(recorded.api, request(client, stream=True), source_streams=True, upstream="up")
            coder.feed(b"\n\n".join([*blocks[:at], head + raw, *blocks[at + 1:]]))
            coder.finish()
            assert coder.summary.failure is None or isinstance(coder.summary.failure, UpstreamFailed)


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-reset-tokens",
                                  "anthropic-ratelimit-tokens-reset", "ratelimit-reset"])
@pytest.mark.parametrize("said", [*HUGE, "nan", "inf", "-5", "9" * 400 + "s", "Mon, 01 Jan 0001 00:00:00 GMT",
                                  "Fri, 31 Dec 9999 23:59:59 -2359", "9999-12-31T23:59:59-23:59",
                                  "0001-01-01T00:00:00+23:59"])
def test_retry_after_is_at_most_a_day(name: str, said: str) -> None:
    """For any number in a header."""
    reset = b'{"error":{"metadata":{"headers":{"X-RateLimit-Reset":%b}}}}' % said.encode()
    for raw in (b"{}", reset, reset.replace(b"9" * 400, b"9" * 4200)):
        after_s = failure_of_response("up", Api.CHAT, 429, {name: said}, raw, now_wall=1.7e9).retry_after_s
        assert after_s is None or 0 <= after_s <= 86_400
