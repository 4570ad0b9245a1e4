"""Parts of a gateway that answer from memory: the stream of a body that is there, an embedder without a model, and an
upstream that answers with the name of the request that it was asked for, behind a gateway that caches answers.

To the one kind of embedder all texts are alike: any question is taken for any other whose words do not tell them apart, so
that nothing but the scope stands between two requests. To the other kind a text is only like itself.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from stayfast.compose.caching import missing
from stayfast.core.types import Api, Chunk, Request
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.virtual import read
from stayfast.lab.load.virtual import virtual
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.similarity import EligibleConfig, SemanticConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import RouteSettings, Settings
from stayfast.stores.embedder import NoEmbedder
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.local_answers import render_text_answer
from stayfast.wire.transcode import transcoder

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats

class BodyStream:
    """A whole body through the transcoder that a real one comes through."""

    def __init__(self, call: Call, body: bytes, upstream: str, *, source_streams: bool = False) -> None:
        self._coder = transcoder(call.request.api, call.request, source_streams=source_streams, upstream=upstream)
        self._chunks = self._read(body)
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


class MemoryEmbedder:
    """row: the vector of a text. delay_s: of each batch."""

    def __init__(self, embedder: str, n_dims: int, row: "Callable[[str], Floats]", delay_s: float = 0.0) -> None:
        self.id = embedder
        self.n_dims = n_dims
        self._row = row
        self._delay_s = delay_s

    def is_whole(self, text: str) -> bool:
        return True

    def fits(self, left_s: float) -> bool:
        return left_s > self._delay_s

    async def embed(self, texts: Sequence[str]) -> "Floats":
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        try:
            found: Floats = import_module("numpy").stack([self._row(text) for text in texts])
        except KeyError:
            raise NoEmbedder("a text was not expected") from None
        return found

    def close(self) -> None:
        pass


DELAY_S: Final = 0.2
SEMANTIC: Final = CacheConfig("semantic", semantic=SemanticConfig(
    threshold=0.9, eligible=EligibleConfig(allow_personal=True, min_content_words=1)))
ECHO: Final = "echo"
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

    name = ECHO
    kind = "simulated"
    always_streams = False

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def can_serve(self, api: Api) -> bool:
        return api.can_stream

    async def open(self, call: Call) -> AnswerStream:
        await asyncio.sleep(DELAY_S)
        request, name = call.request, self._names[call.request_id]
        body = render_text_answer(request, name, answer_id=call.request_id, created_at=0)
        return BodyStream(call, body, ECHO, source_streams=request.stream)

    def close(self) -> None:
        pass


def _random_row(text: str) -> "Floats":
    """A vector by chance, but always the same for a text."""
    numpy = import_module("numpy")
    row = numpy.random.default_rng(list(text.encode())).standard_normal(_N_DIMS, dtype=numpy.float32)
    unit: Floats = row / numpy.linalg.norm(row)
    return unit


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
    settings = Settings(upstreams={ECHO: upstream},
                        routes={name: RouteSettings((ECHO,), cache=cache, hedge=HedgeConfig("off")) for name in models})
    if lacking := missing(settings):
        raise SetUpFailed(lacking)
    system = virtual(settings, loop, seed)
    system.registry[ECHO].upstream = EchoUpstream(names)
    if system.embedding is not None:
        embedder = MemoryEmbedder("random", _N_DIMS, (lambda _: _random_row("alike")) if is_alike else _random_row)
        system.embedding.ahead = system.embedding.behind = embedder
    return system.gateway
