"""An upstream that answers with the name of the request that it was asked for, behind a gateway that remembers answers.

Whoever asks can tell by the name for whom an answer was made. The gateway's semantic cache, where it is to have one, has an
embedder without a model. To the one kind all texts are alike: any question is taken for any other whose words do not tell
them apart, so that nothing but the scope stands between two requests. To the other kind a text is only like itself.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from stayfast.core.types import Api, Chunk, Request
from stayfast.pipeline.alarms import Alarms
from stayfast.pipeline.caching import Caching
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.pipeline.handoffs import Route, Target, Terms
from stayfast.pipeline.sameness import ByMeaning
from stayfast.pipeline.semantic import Semantic
from stayfast.pipeline.stages.admit import AdmitAll
from stayfast.pipeline.stages.cache import ExactCache
from stayfast.pipeline.stages.call import Caller
from stayfast.pipeline.stages.context import AsSent
from stayfast.pipeline.stages.relay import Relay
from stayfast.pipeline.stages.route import Router
from stayfast.pipeline.stages.settle import Settle
from stayfast.pipeline.stages.template import Template
from stayfast.policy.cache import CacheConfig
from stayfast.policy.eligible import EligibleConfig
from stayfast.policy.semantic import SemanticConfig
from stayfast.prove.claim import SetUpFailed
from stayfast.stores.embed import HOW_TO, Embedding
from stayfast.stores.memory import MemoryStore
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import Call, Stream
from stayfast.upstreams.state.upstream_state import Member
from stayfast.wire.transcode import recite, transcoder

if TYPE_CHECKING:
    from stayfast.stores.embed import Floats

THINKS_S: Final = 0.2
SEMANTIC: Final = CacheConfig("semantic", semantic=SemanticConfig(
    threshold=0.9, eligible=EligibleConfig(personal=True, n_content_words=1)))
_NAME: Final = re.compile(rb"(?:[0-9a-f]{2}){32,}")
_N_DIMS: Final = 64


class Told(NamedTuple):
    """What came of a request: what the cache had to do with it, the name in the answer, and whether it came as a stream."""

    result: str
    name: str
    is_stream: bool


def name_of(what: bytes) -> str:
    """A name: hexadecimal, at least 64 letters, which no dialect would write otherwise."""
    return what.ljust(32).hex()


class Oracle:
    """See the module. names: by request id."""

    name = "oracle"
    kind = "simulated"
    always_streams = False

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def can_serve(self, api: Api) -> bool:
        return api.can_stream

    async def open(self, call: Call) -> Stream:
        await asyncio.sleep(THINKS_S)
        return _Answer(call, self._names[call.request_id])

    def close(self) -> None:
        pass


class _Answer:
    """One answer, in the client's own dialect, through the transcoder that a real one comes through."""

    def __init__(self, call: Call, text: str) -> None:
        request = call.request
        self._coder = transcoder(request.api, request, source_streams=request.stream, upstream="oracle")
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


class _Deaf:
    """Takes no fact."""

    def emit(self, fact: object) -> None:
        pass


class _Modelless:
    """An `Embedder`: vectors by chance, but always the same for a text; with `is_alike`, for all texts."""

    id = "modelless"
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


async def ask(gateway: Gateway, request: Request, arrival: Arrival) -> Told:
    """One request, to the last byte of its answer."""
    reply = await gateway.serve(request, arrival)
    parts = []
    try:
        while (chunk := await reply.next()) is not None:
            parts.append(chunk.data)
    finally:
        reply.close()
    body = b"".join(parts)
    found = _NAME.search(body)
    return Told(kind_of(reply.cache), found[0].decode() if found else "", body.startswith((b"data: ", b"event: ")))


def kind_of(cache: str | None) -> str:
    """What the cache had to do with an answer, by the header that says so: hit, semantic, coalesced, miss, bypass."""
    result, _, rest = (cache or "off").partition(";")
    return "semantic" if "kind=semantic" in rest else result


def gateway_of(upstream: Oracle, models: Sequence[str], config: CacheConfig, loop: SimLoop, rng: Random, *,
               is_alike: bool = True) -> Gateway:
    """With a route for each model, each with a cache of its own. is_alike: the kind of embedder. Raises SetUpFailed."""
    sink = _Deaf()
    settle, caller = Settle(loop, sink), Caller(loop, rng, sink)
    member = Member(upstream, None, None, rng, sink)
    terms = Terms()
    routes = {name: Route(name, (Target(member),), terms=replace(
        terms, route=name, cache=_caching(name, config, loop, rng, is_alike=is_alike))) for name in models}
    return Gateway(Alarms(loop), AdmitAll(), ExactCache(caller.start, loop, sink), AsSent(),
                   Router(routes, terms, loop, rng), caller, Template(loop, sink), Relay(loop, settle.done), settle)


def _caching(name: str, config: CacheConfig, loop: SimLoop, rng: Random, *, is_alike: bool) -> Caching:
    caching = Caching(config, name, MemoryStore(config.max_bytes))
    if config.mode == "semantic":
        try:
            index, embedder = import_module("stayfast.stores.vectors").Vectors, _Modelless(is_alike=is_alike)
        except ImportError as missing:
            raise SetUpFailed(f"there is no semantic cache without {missing.name}; {HOW_TO}") from missing
        embedding = Embedding(embedder, embedder)
        caching.semantic = Semantic(
            config.semantic, name, store=caching.store, embedding=embedding, index=index,
            sameness=ByMeaning(embedding, config.semantic.same_answer), verifier=None, clock=loop, rng=rng, sink=_Deaf())
    return caching
