"""The desk's visitors at the whole pipeline in virtual time, and what became of each.

The vectors are made beforehand, by the model that a gateway uses: in virtual time a computation takes none. So a look-up is
charged EMBED_S for one, which is what a short text takes on a machine that is not idle.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import inf, nan
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stayfast.bench.stats import Exact
from stayfast.compose.virtual import virtual
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.prove.claim import SetUpFailed
from stayfast.prove.desk import Visit
from stayfast.prove.oracle import kind_of
from stayfast.prove.shop import MODEL, N_MOST, NAMES, Knowing, Said, provider
from stayfast.settings import Route, Settings, environment
from stayfast.settings.environment import cache_home
from stayfast.stores.embed import HOW_TO, EmbedderConfig, NoEmbedder
from stayfast.testing.simloop import SimLoop, run
from stayfast.upstreams.simulated import Simulated
from stayfast.upstreams.simulated.settings import SimulatedUpstream
from stayfast.wire.json_input import decode

if TYPE_CHECKING:
    from stayfast.stores.embed import Floats

EMBED_S: Final = 0.003
ROUTE: Final = "desk"
LONG_S: Final = 5.0
_N_AT_ONCE: Final = 64  # texts in a batch
_N_TOLD: Final = 10_000
_encode = msgspec.json.Encoder().encode


class Prepared:
    """An `Embedder` of texts that are known beforehand."""

    def __init__(self, rows: Mapping[str, "Floats"], embedder: str) -> None:
        self.id = embedder
        self.n_dims = len(next(iter(rows.values())))
        self._rows = rows

    def is_whole(self, text: str) -> bool:
        """All are short."""
        return True

    def fits(self, left_s: float) -> bool:
        """See `Embedder`."""
        return left_s > EMBED_S

    async def embed(self, texts: Sequence[str]) -> "Floats":
        """See `Embedder`."""
        await asyncio.sleep(EMBED_S)
        try:
            found: Floats = import_module("numpy").stack([self._rows[text] for text in texts])
        except KeyError:
            raise NoEmbedder("a text was not expected") from None
        return found

    def close(self) -> None:
        """Nothing runs."""


def prepared(visits: Sequence[Visit], say: Callable[[str], None]) -> Prepared:
    """The vectors of all short questions. Raises SetUpFailed where there is no model."""
    try:
        model = import_module("stayfast.stores.minilm").load(EmbedderConfig(), str(cache_home(environment())))
    except (ImportError, NoEmbedder) as missing:
        raise SetUpFailed(f"nothing can be asked in other words: {missing}; {HOW_TO}") from missing
    texts = list({visit.text: None for visit in visits if visit.pasted is None})
    rows: dict[str, Floats] = {}
    for first in range(0, len(texts), _N_TOLD):
        say(f"{first:,} of {len(texts):,} questions embedded")
        part = texts[first:first + _N_TOLD]
        rows |= zip(part, model.embed_all(part, _N_AT_ONCE), strict=True)
    return Prepared(rows, model.id)


@dataclass(slots=True)
class Came:
    """What became of the visits that count. waits_s: to the first token, infinite where there was none. by_kind: visits by
    what the cache had to do with them (hit, semantic, coalesced, miss); wrong: those that another article than their own
    answered; again: those that asked what others ask. usd, calls and tokens are the providers' own accounts.
    """

    waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    by_kind: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    n_failed: int = 0
    n_calls: int = 0
    n_prompted: int = 0  # tokens
    n_cached: int = 0
    usd: float = 0.0

    @property
    def n(self) -> int:
        """Visits."""
        return len(self.waits_s)

    @property
    def past(self) -> float:
        """The share that waited more than LONG_S."""
        return sum(wait_s > LONG_S for wait_s in self.waits_s) / self.n if self.n else nan

    def at(self, shares: Sequence[float]) -> list[float]:
        """Quantiles of the waits."""
        exact = Exact(self.waits_s)
        return [exact.at(share) for share in shares]

    def count(self, upstreams: Sequence[Knowing], sign: int) -> None:
        """Add (or take away) what providers have counted so far."""
        for one in upstreams:
            counts = one.counts
            self.n_calls += sign * counts.n_asked
            self.n_prompted += sign * counts.n_tokens_prompted
            self.n_cached += sign * counts.n_tokens_cached
            self.usd += sign * counts.cost_usd


def in_virtual_time(visits: Sequence[Visit], n_warm: int, route: Mapping[str, Any], *, rate_rps: float, seed: int,
                    embedder: Prepared | None = None) -> Came:
    """All visits, Poisson at a rate, the first `n_warm` uncounted, at a gateway whose route has these settings."""
    settings = Settings(
        upstreams={name: SimulatedUpstream(provider=provider(number, seed), probe=False)
                   for number, name in enumerate(NAMES)},
        routes={ROUTE: Route(NAMES, model=MODEL, **route)})

    async def main(loop: SimLoop) -> Came:
        system, rng, came = virtual(settings, loop, seed), Random(seed), Came()
        articles = {visit.text: visit.article for visit in visits}
        knowing = [Knowing(name, provider(number, seed), loop, articles) for number, name in enumerate(NAMES)]
        for one in knowing:
            upstream = system.registry[one.name].upstream
            assert isinstance(upstream, Simulated)
            upstream.provider, upstream.number_of = one, one.hear
        if system.embedding is not None:
            system.embedding.ahead = system.embedding.behind = embedder
        visitors = _Visitors(system.gateway, loop, Said(seed), came)
        at = loop.now()
        async with asyncio.TaskGroup() as group:
            for number, visit in enumerate(visits):
                at += rng.expovariate(rate_rps)
                await asyncio.sleep(at - loop.now())
                if number == n_warm:
                    came.count(knowing, -1)
                group.create_task(visitors.ask(number, visit, counts=number >= n_warm))
        came.count(knowing, 1)
        return came

    return run(main)


class _Visitors:
    """Ask, and look what they are told."""

    def __init__(self, gateway: Gateway, loop: SimLoop, said: Said, came: Came) -> None:
        self._gateway = gateway
        self._loop = loop
        self._said = said
        self._came = came
        self._opening = b'{"model":%b,"stream":true,"temperature":0,"max_tokens":%d,"system":%b,"messages":' % (
            _encode(ROUTE), N_MOST, _encode(said.system))

    async def ask(self, number: int, visit: Visit, *, counts: bool) -> None:
        """One visit, from the question to the last word of the answer."""
        body = self._opening + _encode([{"role": "user", "content": self._said.by(visit)}]) + b"}"
        loop, came = self._loop, self._came
        began_at = loop.now()
        try:
            reply = await self._gateway.serve(decode(Api.MESSAGES, body), Arrival(f"req_{number:x}", began_at))
            wait_s = loop.now() - began_at
            parts = []
            try:
                while (chunk := await reply.next()) is not None:
                    parts.append(chunk.data)
            finally:
                reply.close()
        except StayfastError:
            wait_s, kind, is_right = inf, "failed", True
        else:
            kind = kind_of(reply.cache)
            is_right = b"Article %d of" % visit.article in b"".join(parts)
        if counts:
            came.waits_s.append(wait_s)
            came.n_failed += kind == "failed"
            came.by_kind[kind] += 1
            came.wrong[kind] += not is_right
            came.again[kind] += visit.is_again

