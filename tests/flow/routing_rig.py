"""A client of a system of simulated upstreams, on virtual time."""

import asyncio
from collections import Counter
from random import Random

import msgspec

from stayfast.compose.system import System
from stayfast.core.types import Api
from stayfast.lab.load.virtual import build_virtual_system
from stayfast.lab.simulated.settings import KINDS
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.settings import Settings, SettingsText, load_settings
from stayfast.testing import SimLoop
from stayfast.wire.request_body import decode
from tests.flow.rig import read

SYSTEM = "You are one of the assistants that this test speaks to. " * 80  # about 1,100 tokens


def settings_of(route: str, **upstreams: str) -> Settings:
    """A settings file with one route, `chat`."""
    lines = [f"  {name}: {settings}" for name, settings in upstreams.items()]
    text = "\n".join(["upstreams:", *lines, "defaults: {hedge: {mode: \"off\"}}", "routes:", f"  chat: {route}"])
    return load_settings(SettingsText("test", text), {}, kinds=KINDS)


class RoutingClient:
    """A client of one system; it counts the answers of each upstream."""

    def __init__(self, system: System, loop: SimLoop) -> None:
        self.system = system
        self.loop = loop
        self.n_by_upstream: Counter[str] = Counter()
        self.waits_s: list[float] = []
        self._n_requests = 0

    async def request(self, *texts: str, api: Api = Api.CHAT, headers: tuple[tuple[str, str], ...] = (), n: int = 8,
                  **fields: object) -> Reply:
        """One streamed request, read to its end: turns of user and assistant after the system prompt."""
        if api is Api.RESPONSES:
            body: dict[str, object] = {"input": texts[0], "max_output_tokens": n}
        else:
            turns = [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(texts)]
            body = {"messages": [{"role": "system", "content": SYSTEM}, *turns], "max_tokens": n}
        request = decode(api, msgspec.json.encode({"model": "chat", "stream": True, **body, **fields}))
        began_at, self._n_requests = self.loop.now(), self._n_requests + 1
        reply = await self.system.gateway.serve(request, Arrival(f"req_{self._n_requests}", began_at, headers=headers))
        self.waits_s.append(self.loop.now() - began_at)
        await read(reply)
        self.n_by_upstream[reply.upstream] += 1
        return reply

    async def last_verdict(self) -> list[str]:
        """What `stayfast explain` writes about the last request."""
        self.system.together.flush_events()
        row = await self.system.together.recent_request(f"req_{self._n_requests}", None)
        assert row is not None
        verdict: list[str] = msgspec.json.decode(row)["verdict"]
        return verdict

    def counter(self, name: str) -> Counter[str]:
        """A counter by its last label."""
        self.system.together.flush_events()
        found = Counter[str]()
        for labels, n in self.system.together.metrics_sink.snapshot().counters[name]:
            found[labels[-1]] += int(n)
        return found

    async def converse(self, n_turns: int, seed: int, think_s: float = 2.0) -> list[str]:
        """A conversation: the upstream of each turn."""
        rng, turns, upstreams = Random(seed), [], []
        for turn in range(n_turns):
            turns.append(f"{seed} {turn} " + "word " * rng.randrange(200, 900))
            reply = await self.request(*turns)
            upstreams.append(reply.upstream)
            turns.append("answer " * 40)
            await asyncio.sleep(rng.expovariate(1 / think_s))
        return upstreams


def client_of(settings: Settings, loop: SimLoop, seed: int = 1) -> RoutingClient:
    """A client of a system in virtual time."""
    return RoutingClient(build_virtual_system(settings, loop, seed), loop)
