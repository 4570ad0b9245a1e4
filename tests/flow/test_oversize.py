"""Prompts that are too long for their route: a clear refusal in the client's dialect, or the route for such prompts."""

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest

from stayfast.compose.system import Observers, System, build
from stayfast.core.errors import Rejected, Shed
from stayfast.core.events import Fanout, RequestDone
from stayfast.core.types import Api, Request
from stayfast.lab.simulated.settings import KINDS
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.admit.admission import Admission
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.testing import RecordingSink, SimLoop, run
from stayfast.wire.errors import encode_error
from stayfast.wire.request_body import decode
from tests.flow.rig import chat, read

DIGEST = "sha256:" + "0" * 64
BASE = f"""
upstreams:
  quick: {{kind: simulated, preset: steady, probe: false}}
  slow: {{kind: simulated, preset: steady, probe: false}}
server: {{keys: {{gold: '{DIGEST}', plain: '{DIGEST}'}}}}
log: {{level: error, requests: false}}
tenants: {{gold: {{tier: premium}}, plain: {{}}}}
"""
BOUND = BASE + "routes: {m: {upstreams: [quick], max_input_tokens: 100, max_input_tokens_by_tier: {premium: 200}}}"
OFFLINE = BASE + """
routes:
  m: {upstreams: [quick], max_input_tokens: 100, oversize_route: nightly, deadline: 5}
  nightly: {upstreams: [slow], max_input_tokens: 1000, deadline: 500}
"""


def settings(text: str) -> Settings:
    """Loaded."""
    return load_settings(SettingsText("test", text), {}, kinds=KINDS)


class OversizeRig:
    """A gateway of these settings."""

    def __init__(self, text: str, loop: SimLoop, old: System | None = None) -> None:
        of = settings(text)
        observers = Observers(of, loop)
        self.sink = RecordingSink()
        observers.sink = Fanout(self.sink)
        self.system = build(of, observers, {}, loop, Random(1), old=old)
        self._loop = loop

    async def request(self, request: Request, tenant: str | None = "plain") -> RequestDone:
        """Ask and read; what the gateway tells of it."""
        reply = await self.system.gateway.serve(request, Arrival("req_1", self._loop.now(), tenant))
        try:
            await read(reply)
        finally:
            reply.close()
        return self.sink.facts_of(RequestDone)[-1]


def long(n_tokens: int) -> Request:
    """A chat of about so many tokens."""
    return chat(messages=[{"role": "user", "content": "four" * n_tokens}])


def parse_error(error: Rejected, api: Api) -> Any:
    """What the client reads."""
    status, _, body = encode_error(error, api, "req_1")
    return status, msgspec.json.decode(body)["error"]


def test_oversize_prompt_is_a_413() -> None:
    """The error names the field, the estimate and the limit; no call is made."""
    async def main(loop: SimLoop) -> None:
        bench = OversizeRig(BOUND, loop)
        assert (await bench.request(long(90))).status == 200
        with pytest.raises(Rejected) as refused:
            await bench.request(long(150))
        status, error = parse_error(refused.value, Api.CHAT)
        assert (status, error["code"], error["param"], error["type"]) == (
            413, "context_length_exceeded", "messages", "invalid_request_error")
        assert error["message"] == ("The prompt is too long: messages and the rest of the prompt have about 154 tokens "
                                    "(estimated), and 'm' takes at most 100.")
        assert parse_error(refused.value, Api.MESSAGES)[1]["type"] == "request_too_large"
        fact = bench.sink.facts_of(RequestDone)[-1]
        assert (fact.status, fact.error, fact.n_attempts) == (413, "context_length_exceeded", 0)
        admit = bench.system.gateway.admit
        assert isinstance(admit, Admission)
        assert admit.places.n_taken == 0

    run(main)


def test_oversize_limit_is_by_tier() -> None:
    """Without a tenant the tier is standard."""
    async def main(loop: SimLoop) -> None:
        bench = OversizeRig(BOUND, loop)
        assert (await bench.request(long(150), "gold")).status == 200
        for n_tokens, tenant in ((250, "gold"), (150, "plain"), (150, None)):
            with pytest.raises(Rejected, match="too long"):
                await bench.request(long(n_tokens), tenant)

    run(main)


def test_oversize_route_serves_long_prompts() -> None:
    """With the terms of that route; beyond its limit too, the refusal has its name."""
    async def main(loop: SimLoop) -> None:
        bench = OversizeRig(OFFLINE, loop)
        fact = await bench.request(long(150))
        assert (fact.status, fact.route, fact.upstream, fact.total_s) == (200, "nightly", "slow", 500)
        assert fact.notes == ("sent to route nightly: about 154 prompt tokens, and this route takes 100",)
        assert [stage.stage.value for stage in fact.stages].count("admit") == 1
        assert (await bench.request(long(50))).route == "m"
        with pytest.raises(Rejected, match="'nightly' takes at most 1,000"):
            await bench.request(long(2000))

    run(main)


def test_oversize_image_is_not_counted_by_its_bytes() -> None:
    """A body of 40 kB with one small image passes, 40 kB of text do not."""
    async def main(loop: SimLoop) -> None:
        bench = OversizeRig(BOUND.replace("max_input_tokens: 100", "max_input_tokens: 2000"), loop)
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
        await bench.request(chat(messages=[{"role": "user", "content": [picture]}]))
        with pytest.raises(Rejected, match="too long"):
            await bench.request(long(10_000))

    run(main)


@pytest.mark.parametrize(("api", "body", "field"), [
    (Api.COMPLETIONS, {"prompt": [7] * 500}, "prompt"), (Api.EMBEDDINGS, {"input": "word" * 500}, "input"),
    (Api.RESPONSES, {"input": "hi", "instructions": "word" * 500}, "input"),
    (Api.MESSAGES, {"messages": [{"role": "user", "content": "hi"}], "system": "word" * 500, "max_tokens": 5}, "messages"),
])
def test_oversize_counts_the_prompt_of_every_dialect(api: Api, body: dict[str, Any], field: str) -> None:
    """Token ids, instructions and system prompts included."""
    async def main(loop: SimLoop) -> None:
        bench = OversizeRig(BOUND, loop)
        with pytest.raises(Rejected) as refused:
            await bench.request(decode(api, msgspec.json.encode({"model": "m", **body})))
        assert (refused.value.status, refused.value.param) == (413, field)

    run(main)


def test_oversize_reload_keeps_admission() -> None:
    async def main(loop: SimLoop) -> None:
        old = OversizeRig(BOUND, loop).system
        new = OversizeRig(BOUND.replace("100", "300"), loop, old).system
        assert new.gateway.admit is old.gateway.admit
        plain = OversizeRig(BASE + "routes: {m: [quick]}", loop, new).system
        assert plain.gateway.admit is old.gateway.admit

    run(main)


def test_oversize_prompt_takes_no_place() -> None:
    """A full gateway refuses it with 413, and not with 503."""
    async def main(loop: SimLoop) -> None:
        bench = OversizeRig(BOUND + "\nadmission: {max_in_flight: 1, max_queue: 0}", loop)
        reply = await bench.system.gateway.serve(long(10), Arrival("req_1", 0.0, "plain"))
        with pytest.raises(Shed):
            await bench.request(long(10))
        with pytest.raises(Rejected):
            await bench.request(long(300))
        reply.close()

    run(main)


@pytest.mark.parametrize(("route", "words"), [
    ("{upstreams: [quick], oversize_route: m}",
     "routes.m.oversize_route: is the route for prompts beyond max_input_tokens, which is not set"),
    ("{upstreams: [quick], max_input_tokens: 5, oversize_route: m}", 'routes.m.oversize_route: no other route is named "m"'),
    ("{upstreams: [quick], max_input_tokens: 0}", "routes.m.max_input_tokens: must be a whole number from 1"),
    ("{upstreams: [quick], max_input_tokens_by_tier: {gold: 5}}",
     "routes.m.max_input_tokens_by_tier.gold: is no tier: there are premium"),
])
def test_oversize_settings_errors_name_the_setting(route: str, words: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        settings(BASE + f"routes: {{m: {route}}}")
    assert words in str(wrong.value)


@pytest.mark.parametrize("content", ["\u6f22" * 130, "7," * 60, "12 " * 60, "\U0001f469" * 60])
def test_oversize_counts_tokens_of_other_scripts_and_numbers(content: str) -> None:
    """Less than 400 bytes, yet more than 100 tokens."""
    async def main(loop: SimLoop) -> None:
        with pytest.raises(Rejected) as rejected:
            await OversizeRig(BOUND, loop).request(chat(messages=[{"role": "user", "content": content}]))
        assert rejected.value.status == 413

    run(main)


def test_request_refused_on_the_second_route_has_no_timeouts_left() -> None:
    """It is refused by the route for long prompts; the task that sent it goes on, past both deadlines."""
    async def main(loop: SimLoop) -> float:
        rig = OversizeRig(OFFLINE, loop)
        with pytest.raises(Rejected):
            await rig.request(long(2000))
        await asyncio.sleep(1000)
        return loop.now()

    assert run(main) == 1000
