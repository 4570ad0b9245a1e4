"""A simulated provider as an upstream (`kind: simulated`): the model of `stayfast sim`, without sockets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.errors import Fault, UpstreamFailed
from stayfast.core.setting import SettingDoc
from stayfast.core.types import Api
from stayfast.lab.simulated.config import ProviderConfig
from stayfast.lab.simulated.faults import ConnectionBroken
from stayfast.lab.simulated.provider import Provider, SimulatedCall, SimulatedHead
from stayfast.lab.simulated.provider_state import ProviderCounts
from stayfast.lab.simulated.request import to_simulated_request
from stayfast.policy.admission.price import Prices
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.warm.config import ReplicaConfig
from stayfast.settings.upstreams import BREAKER, LIMIT, MODELS, PRICES, PROBE, WARM, empty_mapping
from stayfast.upstreams.base import AnswerStream, Call, Upstream
from stayfast.upstreams.dialect import HttpStream
from stayfast.upstreams.scripted import NAMED_SCRIPTS, ScriptedUpstream
from stayfast.wire.errors import Secrets, failure_of_response, find_in_band_failure, malformed_answer
from stayfast.wire.request_body import can_collect_stream
from stayfast.wire.transcode import make_transcoder

_NO_SECRETS = Secrets([])


class Simulated:
    """A simulated provider as an upstream, with all APIs natively. Task-safe. `number_of`: the number that seeds a call's
    random numbers; by default calls are numbered in order.
    """

    kind = "simulated"
    always_streams = False

    def __init__(self, name: str, config: ProviderConfig, clock: Clock) -> None:
        self.name = name
        self.provider = Provider(name, config, clock)
        self.number_of: Callable[[Call], int] | None = None
        self._clock = clock

    @property
    def counts(self) -> ProviderCounts:
        return self.provider.counts

    def can_serve(self, api: Api) -> bool:
        return True

    async def open(self, call: Call) -> AnswerStream:
        """Call the provider. Its errors are classified like the same bytes over HTTP."""
        request = call.request
        if call.marker is not None:
            request = msgspec.structs.replace(request, body=call.marker.write(request.body, request.api))
        session = dict(call.headers).get("x-session-id")
        number = self.number_of(call) if self.number_of is not None else None
        is_stream = request.stream or (call.prefers_stream and can_collect_stream(request))
        simulated_request = to_simulated_request(msgspec.structs.replace(request, stream=is_stream), model=call.model,
                                                 number=number,
                                   session=session,
                     include_usage=True, has_blocks=self.provider.caches_prompts, cache_rules=self.provider.cache_rules)
        answering = self.provider.start_call(simulated_request)
        if call.sending is not None:
            call.sending.has_started = True
        try:
            head = await answering.wait_head()
            if head.status != 200:
                raise failure_of_response(self.name, request.api, head.status, dict(head.headers), head.body or b"",
                                    now_wall=self._clock.wall())
            if is_stream and head.body is not None:
                raise find_in_band_failure(self.name, head.body) or malformed_answer(self.name,
                                                                                     "a whole answer to a request for a "
                                                                                     "stream")
        except ConnectionBroken as broke:
            answering.close()
            raise _to_upstream_failed(self.name, broke) from None
        except BaseException:
            answering.close()
            raise
        translated = make_transcoder(request.api, request, source_streams=is_stream, upstream=self.name,
                                hide_usage=not request.include_usage, created_at=int(self._clock.wall()))
        return HttpStream(_SimulatedResponse(self.name, head, answering), translated, translated.summary, _NO_SECRETS)

    def close(self) -> None:
        """Nothing idle to close."""

    def __repr__(self) -> str:
        return f"<Simulated {self.provider!r}>"


class _SimulatedResponse:
    """The answer of a call as an `http.client.response.Response`. One task reads it."""

    __slots__ = ("_call", "_name", "_whole", "headers", "status")

    def __init__(self, name: str, head: SimulatedHead, answering: SimulatedCall) -> None:
        self.status = head.status
        self.headers: Mapping[str, str] = dict(head.headers)
        self._name = name
        self._call = answering
        self._whole = head.body

    async def read(self) -> bytes:
        if self._whole is not None:
            whole, self._whole = self._whole, b""
            return whole
        try:
            return await self._call.next() or b""
        except ConnectionBroken as broke:
            raise _to_upstream_failed(self._name, broke) from None

    def close(self) -> None:
        self._call.close()

    def release(self) -> None:
        self._call.close()


def _to_upstream_failed(name: str, broke: ConnectionBroken) -> UpstreamFailed:
    if broke.kind == "refused":
        return UpstreamFailed(name, Fault.CONNECT, f"upstream {name} refused the connection")
    return UpstreamFailed(name, Fault.RESET, f"upstream {name} closed the connection before the answer was whole")


@dataclass(frozen=True, slots=True)
class SimulatedUpstream:
    """A simulated provider: a script, or a model of a real provider. No network, no key."""

    kind: Annotated[Literal["simulated"], SettingDoc(
        "A simulated provider, from a script or a model of a real one; no network, no key.")] = "simulated"
    script: Annotated[Literal["jagged", "steady"], SettingDoc(
        "Used without a preset or model settings. jagged: mostly quick, sometimes slow to start or stalling. steady: always "
        "quick.")] = "jagged"
    provider: Annotated[ProviderConfig, SettingDoc("The model's own settings.", is_inline=True)] = field(
        default_factory=ProviderConfig)
    models: Annotated[Mapping[str, str], MODELS] = field(default_factory=empty_mapping)
    prices: Annotated[Prices, PRICES] = field(default_factory=empty_mapping)
    probe: Annotated[bool, PROBE] = True
    warm: Annotated[ReplicaConfig, WARM] = field(default_factory=ReplicaConfig)
    limit: Annotated[LimitConfig, LIMIT] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, BREAKER] = field(default_factory=BreakerConfig)

    def build_upstream(self, name: str, clock: Clock) -> Upstream:
        """A `Simulated` if a setting of the model is set, else the script."""
        if self.provider != ProviderConfig():
            return Simulated(name, self.provider, clock)
        return ScriptedUpstream(name, NAMED_SCRIPTS[self.script], clock)


KINDS = (SimulatedUpstream,)
