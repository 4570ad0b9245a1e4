"""Times to the first token that several processes exchange, for routes on which each alone has few.

Problem: a route with a request a minute needs half an hour for the 32 samples from which hedge delays are computed, although
eight gateways together have them in four minutes. Rule: every few seconds each process exports, for each kind of attempt
(route, upstream, model, form, prompt size), the two histograms from which `survival.Survival` is computed. A kind with
fewer than `FEW` own samples uses the sum of all processes; one with enough uses its own only, because paths to an upstream
differ. The histograms are those of policy/histogram.py, so merging loses nothing.

Size: at most MAX_KINDS kinds and MAX_BYTES of an estimate of 6 bytes a bucket; the kinds with the most samples are dropped
first, as their owners need the others least.
Source: Masson et al., "DDSketch" (VLDB 2019): the merge of two sketches is the sketch of the union.
When wrong: gateways in different regions have different times; a rare route is then hedged by the times of the other region
until it has FEW samples of its own. Exported times are up to the exchange interval old.
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256

import msgspec

from stayfast.policy.histogram import LogHistogram, Packed

MAX_KINDS = 512
MAX_BYTES = 32 * 1024
STEP = 64  # kinds merged in one step, about half a millisecond
_KIND_BYTES, _BUCKET_BYTES = 24, 6


class MergedTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Packed histograms of one kind: attempts with a first token, and attempts that were cancelled or still run."""

    ended: Packed
    cut_off: Packed

    @property
    def n(self) -> int:
        """Attempts with a first token."""
        return sum(self.ended[1::2])

    @property
    def n_bytes(self) -> int:
        """Estimated size when encoded."""
        return _KIND_BYTES + _BUCKET_BYTES * ((len(self.ended) + len(self.cut_off)) // 2)


TimesByKind = Mapping[str, MergedTimes]  # by a digest of the kind


def merge_in_steps(exports: Iterable[TimesByKind], whole: dict[str, MergedTimes]) -> Iterator[None]:
    """Add several exports to `whole`, in steps of STEP kinds. The result may exceed the bounds of `bound_times`."""
    for n, (kind, times) in enumerate(item for export in exports for item in export.items()):
        before = whole.get(kind)
        whole[kind] = times if before is None else MergedTimes(_add(before.ended, times.ended),
                                                               _add(before.cut_off, times.cut_off))
        if n % STEP == STEP - 1:
            yield


def bound_times(times: TimesByKind) -> dict[str, MergedTimes]:
    """At most MAX_KINDS kinds and about MAX_BYTES, of the rarest kinds."""
    chosen: dict[str, MergedTimes] = {}
    n_bytes = 0
    for kind in sorted(times, key=lambda kind: (times[kind].n, kind))[:MAX_KINDS]:
        n_bytes += times[kind].n_bytes
        if n_bytes > MAX_BYTES:
            break
        chosen[kind] = times[kind]
    return chosen


def _add(one: Packed, other: Packed) -> Packed:
    if not other:
        return one
    whole = LogHistogram(one)
    whole.merge(LogHistogram(other))
    return whole.pack()


class ElsewhereTimes:
    """The times of other processes for one route. `origins`: what each upstream is, by its name here (kind and address);
    upstreams that others cannot have are missing.
    """

    __slots__ = ("_origins", "_route", "times")

    def __init__(self, route: str, origins: Mapping[str, str], times: TimesByKind) -> None:
        self._route = route
        self._origins = origins
        self.times = times

    def kind(self, upstream: str, model: str, *, is_whole: bool, size: int) -> str | None:
        """The digest of a kind of attempt; None: the upstream cannot be shared."""
        origin = self._origins.get(upstream)
        if origin is None:
            return None
        named = f"{self._route}\n{origin}\n{model}\n{'whole' if is_whole else 'stream'}\n{size}"
        return sha256(named.encode()).hexdigest()[:16]

    def find(self, upstream: str, model: str, *, is_whole: bool, size: int, n_enough: int) -> list[MergedTimes]:
        """The times of this size; if these are few, of the neighbouring sizes, too."""
        found: list[MergedTimes] = []
        for distance in (0, 1, 2):
            if sum(times.n for times in found) >= n_enough:
                break
            for near in sorted({size - distance, size + distance}):
                times = self.times.get(self.kind(upstream, model, is_whole=is_whole, size=near) or "")
                if times is not None:
                    found.append(times)
        return found

    def __repr__(self) -> str:
        return f"<ElsewhereTimes {self._route}: {len(self.times)} kinds of all routes>"
