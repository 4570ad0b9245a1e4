"""In-memory parts of a gateway: answers from a stored body, embedders without a model, and an upstream that answers with
the identity of each request.

One kind of embedder gives all texts the same vector, so that the semantic cache takes any question for any other unless
lexical rules or the scope separate them. The other kind gives each text a vector of its own.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stayfast.compose.caching import explain_missing_packages
from stayfast.core.types import Api, Chunk, Request
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.virtual import read_body
from stayfast.lab.load.virtual import build_virtual_system
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.policy.cache.eligibility import EligibleConfig
from stayfast.policy.cache.freshness import CacheConfig
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.settings import RouteSettings, Settings, read_environment
from stayfast.settings.environment import cache_directory
from stayfast.stores.embedder import INSTALL_HINT, EmbedderConfig, NoEmbedder
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import AnswerStream, Call
from stayfast.wire.local_answers import render_text_answer
from stayfast.wire.transcode import make_transcoder

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats


class BodyStream:
    """The stream of a stored body, through the same transcoder as a real answer."""

    def __init__(self, call: Call, body: bytes, upstream: str, *, source_streams: bool = False) -> None:
        self._coder = make_transcoder(call.request.api, call.request, source_streams=source_streams, upstream=upstream)
        self._chunks = self._read(body)
        self.summary = self._coder.summary

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
    """embed_text: the vector of a text; raises KeyError for an unknown one. delay_s: of each batch."""

    def __init__(self, embedder: str, n_dims: int, embed_text: "Callable[[str], Floats]", delay_s: float = 0.0) -> None:
        self.id = embedder
        self.n_dims = n_dims
        self._embed_text = embed_text
        self._delay_s = delay_s

    def is_whole(self, text: str) -> bool:
        return True

    def can_embed_within(self, left_s: float) -> bool:
        return left_s > self._delay_s

    async def embed(self, texts: Sequence[str]) -> "Floats":
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        try:
            vectors: Floats = import_module("numpy").stack([self._embed_text(text) for text in texts])
        except KeyError:
            raise NoEmbedder("unexpected text") from None
        return vectors

    def close(self) -> None:
        pass


def load_embedder(config: EmbedderConfig | None = None) -> Any:
    """The sentence model that a gateway uses. Raises SetUpFailed."""
    try:
        model = import_module("stayfast.stores.onnx_embedder")
        return model.load_encoder(config or EmbedderConfig(), str(cache_directory(read_environment())))
    except (ImportError, NoEmbedder) as missing:
        raise SetUpFailed(f"no embedding model: {missing}; {INSTALL_HINT}") from missing


DELAY_S: Final = 0.2
SEMANTIC: Final = CacheConfig("semantic", semantic=SemanticConfig(
    threshold=0.9, judge="local", eligible=EligibleConfig(allow_personal=True, min_content_words=1)))
ECHO: Final = "echo"
_NAME: Final = re.compile(rb"(?:[0-9a-f]{2}){32,}")
_N_DIMS: Final = 64


class Echoed(NamedTuple):
    """An answer: the cache's result, the contained name, and whether it was streamed."""

    result: str
    name: str
    is_stream: bool


def encode_name(identity: bytes) -> str:
    """An identity as at least 64 hexadecimal digits, which occur nowhere else in an answer."""
    return identity.ljust(32).hex()


class EchoUpstream:
    """Answers with the name of the request. names: by request id."""

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


def _random_vector(text: str) -> "Floats":
    """A pseudo-random unit vector, seeded by the text."""
    numpy = import_module("numpy")
    vector = numpy.random.default_rng(list(text.encode())).standard_normal(_N_DIMS, dtype=numpy.float32)
    unit: Floats = vector / numpy.linalg.norm(vector)
    return unit


async def send_to_echo(gateway: Gateway, request: Request, arrival: Arrival) -> Echoed:
    """Send a request, and read its whole answer."""
    reply = await gateway.serve(request, arrival)
    body = await read_body(reply)
    name = _NAME.search(body)
    return Echoed(cache_result(reply.cache), name[0].decode() if name else "", body.startswith((b"data: ", b"event: ")))


def cache_result(header: str | None) -> str:
    """The cache's result from the `x-cache` header: hit, semantic, coalesced, miss or bypass; "off" without the header."""
    result, _, rest = (header or "off").partition(";")
    return "semantic" if "kind=semantic" in rest else result


def echo_gateway(names: dict[str, str], models: Sequence[str], cache: CacheConfig, loop: SimLoop, seed: int, *,
                 all_alike: bool = True) -> Gateway:
    """A gateway with one route per model, each with its own cache. all_alike: the kind of embedder. Raises SetUpFailed."""
    upstream = SimulatedUpstream(probe=False, limit=LimitConfig("off"), breaker=BreakerConfig(enabled=False))
    settings = Settings(upstreams={ECHO: upstream},
                        routes={name: RouteSettings((ECHO,), cache=cache, hedge=HedgeConfig("off")) for name in models})
    if lacking := explain_missing_packages(settings):
        raise SetUpFailed(lacking)
    system = build_virtual_system(settings, loop, seed)
    system.registry[ECHO].upstream = EchoUpstream(names)
    if system.embedding is not None:
        embedder = MemoryEmbedder("random", _N_DIMS, (lambda _: _random_vector("alike")) if all_alike else _random_vector)
        system.embedding.foreground = system.embedding.background = embedder
    return system.gateway
