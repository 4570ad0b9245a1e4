"""An upstream that answers with the name of the request that it was asked for, behind a gateway that caches answers.

The name in an answer shows for which request it was made. The gateway's semantic cache, where it is to have one, has an
embedder without a model. To the one kind all texts are alike: any question is taken for any other whose words do not tell
them apart, so that nothing but the scope stands between two requests. To the other kind a text is only like itself.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from stayfast.compose.semantic import missing
from stayfast.compose.virtual import virtual
from stayfast.core.types import Api, Chunk, Request
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.virtual import read
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.policy.breaker import BreakerConfig
from stayfast.policy.cache import CacheConfig
from stayfast.policy.eligible import EligibleConfig
from stayfast.policy.hedge import HedgeConfig
from stayfast.policy.limits import LimitConfig
from stayfast.policy.semantic import SemanticConfig
from stayfast.settings import Route, Settings, SimulatedUpstream
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import Call, Stream
from stayfast.wire.transcode import recite, transcoder

if TYPE_CHECKING:
    from stayfast.stores.embed import Floats

DELAY_S: Final = 0.2
SEMANTIC: Final = CacheConfig("semantic", semantic=SemanticConfig(
    threshold=0.9, eligible=EligibleConfig(personal=True, n_content_words=1)))
UPSTREAM: Final = "echo"
_NAME: Final = re.compile(rb"(?:[0-9a-f]{2}){32,}")
_N_DIMS: Final = 64


class Echoed(NamedTuple):
    """An answer: the cache's result, the name in it, and whether it came as a stream."""

    result: str
    name: str
    is_stream: bool


def name_of(identity: bytes) -> str:
    """A name: hexadecimal, at least 64 letters, which no dialect would write otherwise."""
    return identity.ljust(32).hex()


class EchoUpstream:
    """names: by request id."""

    name = UPSTREAM
    kind = "simulated"
    always_streams = False

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def can_serve(self, api: Api) -> bool:
        return api.can_stream

    async def open(self, call: Call) -> Stream:
        await asyncio.sleep(DELAY_S)
        return _Answer(call, self._names[call.request_id])

    def close(self) -> None:
        pass


class _Answer:
    """One answer, in the client's own dialect, through the transcoder that a real one comes through."""

    def __init__(self, call: Call, text: str) -> None:
        request = call.request
        self._coder = transcoder(request.api, request, source_streams=request.stream, upstream=UPSTREAM)
        self._chunks = self._read(recite(request, text, answer_id=call.request_id, created_at=0))
        self.sight = self._coder.sight

    def _read(self, body: bytes) -> Iterator[Chunk]:
        for chunk in (self._coder.feed(body), self._coder.finish()):
            if chunk is not None:
                yield chunk

    async def next(self) -> Chunk | None:
        return next(self._chunks, None)

    def cut(self) -> Chunk | None:
        return None

    def close(self) -> None:
        pass


class _RandomEmbedder:
    """An `Embedder`: vectors by chance, but always the same for a text; with `is_alike`, for all texts."""

    id = "random"
    n_dims = _N_DIMS

    def __init__(self, *, is_alike: bool) -> None:
        self._numpy = import_module("numpy")
        self._is_alike = is_alike

    def is_whole(self, text: str) -> bool:
        return True

    def fits(self, left_s: float) -> bool:
        return True

    async def embed(self, texts: Sequence[str]) -> "Floats":
        found: Floats = self._numpy.stack([self._row(text) for text in texts])
        return found

    def _row(self, text: str) -> "Floats":
        rng = self._numpy.random.default_rng(0 if self._is_alike else list(text.encode()))
        row = rng.standard_normal(_N_DIMS, dtype=self._numpy.float32)
        unit: Floats = row / self._numpy.linalg.norm(row)
        return unit

    def close(self) -> None:
        pass


async def ask(gateway: Gateway, request: Request, arrival: Arrival) -> Echoed:
    """One request, to the last byte of its answer."""
    reply = await gateway.serve(request, arrival)
    body = await read(reply)
    found = _NAME.search(body)
    return Echoed(cache_result(reply.cache), found[0].decode() if found else "", body.startswith((b"data: ", b"event: ")))


def cache_result(header: str | None) -> str:
    """The cache's part in an answer, by the response header: hit, semantic, coalesced, miss, bypass; off without one."""
    result, _, rest = (header or "off").partition(";")
    return "semantic" if "kind=semantic" in rest else result


def echo_gateway(names: dict[str, str], models: Sequence[str], cache: CacheConfig, loop: SimLoop, seed: int, *,
                 is_alike: bool = True) -> Gateway:
    """With a route for each model, each with a cache of its own. is_alike: the kind of embedder. Raises SetUpFailed."""
    upstream = SimulatedUpstream(probe=False, limit=LimitConfig("off"), breaker=BreakerConfig(enabled=False))
    settings = Settings(upstreams={UPSTREAM: upstream},
                        routes={name: Route((UPSTREAM,), cache=cache, hedge=HedgeConfig("off")) for name in models})
    if lacking := missing(settings):
        raise SetUpFailed(lacking)
    system = virtual(settings, loop, seed)
    system.registry[UPSTREAM].upstream = EchoUpstream(names)
    if system.embedding is not None:
        system.embedding.ahead = system.embedding.behind = _RandomEmbedder(is_alike=is_alike)
    return system.gateway
