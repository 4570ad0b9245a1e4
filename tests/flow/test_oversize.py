"""Prompts that are too long for their route: a clear refusal in the client's dialect, or the route for such prompts."""

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


class Bench:
    """A gateway of these settings."""

    def __init__(self, text: str, loop: SimLoop, old: System | None = None) -> None:
        of = settings(text)
        observers = Observers(of, loop)
        self.sink = RecordingSink()
        observers.sink = Fanout(self.sink)
        self.system = build(of, observers, {}, loop, Random(1), old=old)
        self._loop = loop

    async def ask(self, request: Request, tenant: str | None = "plain") -> RequestDone:
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


def said(error: Rejected, api: Api) -> Any:
    """What the client reads."""
    status, _, body = encode_error(error, api, "req_1")
    return status, msgspec.json.decode(body)["error"]


def test_beyond_the_bound_is_413() -> None:
    """Naming the field, what it came to and what was expected; it is told, and nothing was asked of anybody."""
    async def main(loop: SimLoop) -> None:
        bench = Bench(BOUND, loop)
        assert (await bench.ask(long(90))).status == 200
        with pytest.raises(Rejected) as refused:
            await bench.ask(long(150))
        status, error = said(refused.value, Api.CHAT)
        assert (status, error["code"], error["param"], error["type"]) == (
            413, "context_length_exceeded", "messages", "invalid_request_error")
        assert error["message"] == ("The prompt is too long: messages and the rest of the prompt have about 154 tokens "
                                    "(estimated), and 'm' takes at most 100.")
        assert said(refused.value, Api.MESSAGES)[1]["type"] == "request_too_large"
        fact = bench.sink.facts_of(RequestDone)[-1]
        assert (fact.status, fact.error, fact.n_attempts) == (413, "context_length_exceeded", 0)
        admit = bench.system.gateway.admit
        assert isinstance(admit, Admission)
        assert admit.places.n_taken == 0

    run(main)


def test_a_tier_may_have_a_bound_of_its_own() -> None:
    """Premium may say more; it has an end, too. Whoever has no terms is standard."""
    async def main(loop: SimLoop) -> None:
        bench = Bench(BOUND, loop)
        assert (await bench.ask(long(150), "gold")).status == 200
        for n_tokens, tenant in ((250, "gold"), (150, "plain"), (150, None)):
            with pytest.raises(Rejected, match="too long"):
                await bench.ask(long(n_tokens), tenant)

    run(main)


def test_what_is_too_long_may_go_offline() -> None:
    """To another route, on its terms, and told so; beyond that one's bound it is refused by its name."""
    async def main(loop: SimLoop) -> None:
        bench = Bench(OFFLINE, loop)
        fact = await bench.ask(long(150))
        assert (fact.status, fact.route, fact.upstream, fact.total_s) == (200, "nightly", "slow", 500)
        assert fact.notes == ("sent to route nightly: about 154 prompt tokens, and this route takes 100",)
        assert [stage.stage.value for stage in fact.stages].count("admit") == 1
        assert (await bench.ask(long(50))).route == "m"
        with pytest.raises(Rejected, match="'nightly' takes at most 1,000"):
            await bench.ask(long(2000))

    run(main)


def test_pictures_are_not_counted_by_their_bytes() -> None:
    """A body of 40 kB that is one small picture passes where 40 kB of words do not."""
    async def main(loop: SimLoop) -> None:
        bench = Bench(BOUND.replace("max_input_tokens: 100", "max_input_tokens: 2000"), loop)
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
        await bench.ask(chat(messages=[{"role": "user", "content": [picture]}]))
        with pytest.raises(Rejected, match="too long"):
            await bench.ask(long(10_000))

    run(main)


@pytest.mark.parametrize(("api", "body", "field"), [
    (Api.COMPLETIONS, {"prompt": [7] * 500}, "prompt"), (Api.EMBEDDINGS, {"input": "word" * 500}, "input"),
    (Api.RESPONSES, {"input": "hi", "instructions": "word" * 500}, "input"),
    (Api.MESSAGES, {"messages": [{"role": "user", "content": "hi"}], "system": "word" * 500, "max_tokens": 5}, "messages"),
])
def test_every_dialect_is_counted(api: Api, body: dict[str, Any], field: str) -> None:
    """Tokens that are given as numbers, instructions, system prompts."""
    async def main(loop: SimLoop) -> None:
        bench = Bench(BOUND, loop)
        with pytest.raises(Rejected) as refused:
            await bench.ask(decode(api, msgspec.json.encode({"model": "m", **body})))
        assert (refused.value.status, refused.value.param) == (413, field)

    run(main)


def test_a_reload_keeps_what_is_used() -> None:
    """Behind the look at the length, too."""
    async def main(loop: SimLoop) -> None:
        old = Bench(BOUND, loop).system
        new = Bench(BOUND.replace("100", "300"), loop, old).system
        assert new.gateway.admit is old.gateway.admit
        plain = Bench(BASE + "routes: {m: [quick]}", loop, new).system
        assert plain.gateway.admit is old.gateway.admit

    run(main)


def test_only_what_is_answered_counts_against_a_place() -> None:
    """A full gateway says 413, not 503, to what it would not take at any time."""
    async def main(loop: SimLoop) -> None:
        bench = Bench(BOUND + "\nadmission: {max_in_flight: 1, max_queue: 0}", loop)
        reply = await bench.system.gateway.serve(long(10), Arrival("req_1", 0.0, "plain"))
        with pytest.raises(Shed):
            await bench.ask(long(10))
        with pytest.raises(Rejected):
            await bench.ask(long(300))
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
def test_what_is_wrong(route: str, words: str) -> None:
    """Where, what, and what instead."""
    with pytest.raises(SettingsError) as wrong:
        settings(BASE + f"routes: {{m: {route}}}")
    assert words in str(wrong.value)


@pytest.mark.parametrize("content", ["\u6f22" * 130, "7," * 60, "12 " * 60, "\U0001f469" * 60])
def test_other_scripts_and_numbers_do_not_slip_under(content: str) -> None:
    """Less than 400 bytes, and yet more than 100 tokens: refused."""
    async def main(loop: SimLoop) -> None:
        with pytest.raises(Rejected) as rejected:
            await Bench(BOUND, loop).ask(chat(messages=[{"role": "user", "content": content}]))
        assert rejected.value.status == 413

    run(main)
