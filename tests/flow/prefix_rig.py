"""A gateway in front of simulated providers that remember prompts, on virtual time."""

from collections.abc import Sequence
from typing import Any

import msgspec

from stayfast.compose.system import System
from stayfast.core.errors import UpstreamFailed
from stayfast.core.types import Api, Usage
from stayfast.lab.load.virtual import build_virtual_system
from stayfast.lab.simulated import FaultRule, GapConfig, Mixture, PromptCacheModel, ProviderConfig
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.policy.admission.price import Price
from stayfast.policy.prompt_cache.breakpoints import PrefixConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.settings import RouteSettings, Settings
from stayfast.testing import SimLoop
from stayfast.upstreams.base import AnswerStream, Call, PromptMarker, Upstream
from stayfast.wire.request_body import decode

AUTO = PrefixConfig("auto")
LONG = "Be brief, and kind to those who ask. " * 300


class PrefixRig:
    """`sent`: what went out, read; with marks where the route sees to them."""

    def __init__(self, loop: SimLoop, prefix: PrefixConfig = AUTO, *, model: str = "claude-sonnet-4-6", n: int = 1,
                 cache: PromptCacheModel | None = None, ttft: Mixture | None = None, hedge: HedgeConfig | None = None,
                 faults: tuple[FaultRule, ...] = ()) -> None:
        provider = ProviderConfig(ttft=ttft or Mixture(1.0), gaps=GapConfig(0.01, 0.0), fills_max_tokens=True, faults=faults,
                                  prompt_cache=cache or PromptCacheModel())
        up = SimulatedUpstream(provider=provider, prices={"*": Price(3.0, 15.0, 0.3, 3.75)}, probe=False)
        names = tuple(f"up{number}" for number in range(n))
        route = RouteSettings(names, model=model, prefix=prefix, hedge=hedge or HedgeConfig("off"))
        self.loop = loop
        self.system: System = build_virtual_system(Settings(upstreams=dict.fromkeys(names, up), routes={"m": route}), loop,
                                                   1)
        self.sent: list[dict[str, Any]] = []
        self.called_upstreams: list[str] = []
        for member in self.system.registry:
            member.upstream = _RecordingUpstream(member.upstream, self)

    async def request(self, system: Any, *first: Any, turns: Sequence[Any] = (), api: Api = Api.MESSAGES,
                  **fields: Any) -> Usage:
        """One request, read to its end."""
        turns = (*first, *turns)
        roles = ("user", "assistant") * len(turns)
        said: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
        body: dict[str, Any] = {"model": "m", "max_tokens": 3, "system": system, "messages": said, **fields}
        if api is Api.CHAT:
            body["messages"] = [{"role": "system", "content": body.pop("system")}, *said]
        reply = await self.system.gateway.serve(decode(api, msgspec.json.encode(body)), Arrival("req_1", self.loop.now()))
        try:
            while await reply.next() is not None:
                pass
        finally:
            reply.close()
        assert reply.summary.usage is not None
        return reply.summary.usage

    @property
    def state(self) -> Any:
        """What /debug/state says of the route."""
        return msgspec.json.decode(self.system.state())["prefix"]["m"]

    async def metrics(self) -> str:
        """The text of a scrape."""
        return (await self.system.metrics())[1].decode()


class _RecordingUpstream:
    """An upstream, and somebody who reads along."""

    def __init__(self, of: Upstream, rig: PrefixRig) -> None:
        self._of = of
        self._rig = rig
        self.name = of.name
        self.kind = of.kind
        self.always_streams = of.always_streams

    def can_serve(self, api: Api) -> bool:
        return self._of.can_serve(api)

    async def open(self, call: Call) -> AnswerStream:
        self._rig.called_upstreams.append(self.name)
        if call.marker is None:
            self._rig.sent.append(msgspec.json.decode(call.request.body))
            return await self._of.open(call)
        return await self._of.open(msgspec.structs.replace(call, marker=_RecordingMarker(call.marker, self._rig)))

    def close(self) -> None:
        self._of.close()


class _RecordingMarker:
    """A marker, and somebody who reads along."""

    def __init__(self, of: PromptMarker, rig: PrefixRig) -> None:
        self._of = of
        self._rig = rig

    def write(self, body: bytes, api: Api) -> bytes:
        written = self._of.write(body, api)
        self._rig.sent.append(msgspec.json.decode(written))
        return written

    def is_refused(self, failed: UpstreamFailed) -> bool:
        return self._of.is_refused(failed)

    def on_first_token(self) -> None:
        self._of.on_first_token()

    def on_end(self, usage: Usage | None) -> None:
        self._of.on_end(usage)
