"""The versions of system prompts that one worker has seen, and the requests, tokens and times of each.

Problem: to read the instructions out of a request costs more than all else that is counted at its end. Rule: a request is
compared with the first bytes of the requests of the versions seen last; equal bytes mean the same version, for a fraction of
a microsecond. Each SAMPLE_EVERY_S a request of a route is read whole: it finds new versions, what moves in them, and which
tools are called. A request that begins with unknown bytes between two samples belongs to no version, and is counted as such.

    version     digest of the normalised blocks (`wire.prompt_head`)
    change      a new version that has half of its bytes, at both ends or by sentences, in common with an
                earlier one of the route is a change of that one
    moves       the same version with other bytes; or N_UNSEEN versions in a row that did not recur in the JUDGED_N
                samples after them, which then are one version

Texts are in memory only, at most MAX_TEXT_BYTES, and leave it by `find_head` alone.
When wrong: with hundreds of applications whose prompts resemble each other on one route, none recurs soon, and they are
taken for one version that moves. A new version of a prompt whose words move is not told from its movement.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.events import RequestDone
from stayfast.core.prompt_versions import (
    OfferedTool,
    PromptChange,
    PromptComparison,
    PromptPlace,
    PromptVersionRow,
    RepeatedPart,
)
from stayfast.core.types import Request
from stayfast.observe.snapshot.prompt_versions import SLOT_S, SPAN_S, PromptVersionPart
from stayfast.observe.snapshot.tallies import RowTally, TallyWindow
from stayfast.pipeline.attempts.attempt import Attempt
from stayfast.policy.admission.price import Price
from stayfast.policy.context.examples import measure_examples
from stayfast.policy.context.repeats import find_repeats, split_paragraphs
from stayfast.wire.prompt import SYSTEM, TOOLS, n_common_bytes
from stayfast.wire.prompt_diff import compare_heads
from stayfast.wire.prompt_head import (
    HeadIds,
    PromptHead,
    digest_head,
    find_begin,
    first_difference,
    locate_change,
    n_changed_bytes,
    n_common_pieces,
    read_head,
    read_instruction_texts,
    split_pieces,
)

SAMPLE_EVERY_S: Final = 0.5  # a route
TIMES_A_FLUSH: Final = 20  # of a version
MAX_ROUTES, MAX_VERSIONS, MAX_RECENT, MAX_BEGINS = 256, 64, 8, 256
MAX_TEXT_BYTES: Final = 4 * 1024 * 1024
SAME_SHARE: Final = 0.5  # of the shorter one's bytes
LEAST_BEGIN: Final = 16  # bytes of instructions in a beginning by which requests are known
N_UNSEEN: Final = 5
JUDGED_N: Final = 32
MAX_PLACES: Final = 32
MAX_ANALYSED_BYTES: Final = 128 * 1024  # 15 ms
KEEPS_S: Final = 7 * 86_400.0  # after its last request
_TOOL_ENDS: Final = frozenset(("tool_calls", "tool_use", "function_call"))


class PromptTraits:
    """What a version's text shows by itself: repeated paragraphs, examples, tools. Sizes in bytes. calls: of its tools, in
    the sampled conversations.
    """

    __slots__ = ("calls", "n_example_bytes", "n_examples", "pieces", "repeats", "tool_bytes")

    def __init__(self, head: PromptHead) -> None:
        self.calls: dict[str, int] = {}
        self.tool_bytes = {block.name: len(block.data) for block in head.blocks if block.section == TOOLS}
        self.pieces = split_pieces(head.data)
        texts = read_instruction_texts(head) if head.n_bytes_of(SYSTEM) <= MAX_ANALYSED_BYTES else []
        parts = [(path, part, len(text[:part.start].encode())) for path, text in texts for part in split_paragraphs(text)]
        self.repeats = [
            RepeatedPart(parts[one.later][0], parts[one.later][2], parts[one.first][0], parts[one.first][2],
                         len(parts[one.later][1].text.encode()), one.overlap)
            for one in find_repeats([part.text for _, part, _ in parts])]
        examples = [measure_examples(text) for _, text in texts]
        self.n_examples = sum(n for n, _ in examples)
        self.n_example_bytes = sum(n_chars for _, n_chars in examples)

    def note_calls(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self.tool_bytes:
                self.calls[name] = self.calls.get(name, 0) + 1


class VersionCounts:
    """Requests of one version since the last flush. Tokens in `cached` are those of the instructions and tools."""

    __slots__ = ("cached", "head_tokens", "n", "n_input", "n_tool_ends", "ttft_s")

    def __init__(self) -> None:
        self.n = self.n_input = self.n_tool_ends = 0
        self.cached = 0.0
        self.ttft_s: list[float] = []
        self.head_tokens = 0.0  # of the version

    def add(self, done: RequestDone) -> None:
        self.n += 1
        usage, ttft_s = done.usage, done.ttft_s
        if usage is not None:
            self.n_input += usage.input_total
            cached = usage.cached_read
            if cached:
                self.cached += min(cached, self.head_tokens)
        if done.finish_reason in _TOOL_ENDS:
            self.n_tool_ends += 1
        if ttft_s is not None and len(self.ttft_s) < TIMES_A_FLUSH:
            self.ttft_s.append(ttft_s)

    def flush(self, tally: RowTally) -> None:
        counts, histogram = tally.counts, tally.histograms["ttft_s"]
        counts["n"] += self.n
        counts["input"] += self.n_input
        counts["head_cached"] += self.cached
        counts["tool_ends"] += self.n_tool_ends
        for ttft_s in self.ttft_s:
            histogram.add(ttft_s)
        self.n = self.n_input = self.n_tool_ends = 0
        self.cached = 0.0
        self.ttft_s.clear()


class LiveVersion:
    """One version in this worker. Instants are monotonic."""

    __slots__ = ("begin", "change", "counts", "first_at", "first_sample", "head", "ids", "key", "last_at", "lineage",
                 "n_samples", "places", "price", "tokens_a_byte", "traits")

    def __init__(self, key: str, ids: HeadIds, head: PromptHead, *, near: "LiveVersion | None", now: float,
                 first_sample: int) -> None:
        """key: of its tally. near: the version that it is a change of."""
        self.key = key
        self.ids = ids
        self.head: PromptHead | None = head  # of the last sample; None: left memory
        self.lineage: str = near.lineage if near is not None else ids.whole
        self.change = _describe_change(near, head) if near is not None else None
        self.first_at = self.last_at = now
        self.first_sample = first_sample
        self.begin = b""
        self.n_samples = 0
        self.places: dict[tuple[str, int], tuple[int, PromptPlace]] = {}  # where bytes moved, and how often
        self.price: Price | None = None
        self.counts = VersionCounts()
        self.tokens_a_byte = 1.0 / BYTES_A_TOKEN
        self.traits = PromptTraits(head)

    def note_move(self, place: PromptPlace) -> None:
        key = place.path, place.at
        if key in self.places or len(self.places) < MAX_PLACES:
            self.places[key] = self.places.get(key, (0, place))[0] + 1, place

    def moving_place(self) -> PromptPlace | None:
        """The earliest place that moved more than by chance."""
        n_all = sum(n for n, _ in self.places.values())
        return min((place for n, place in self.places.values() if n >= max(2, 0.05 * n_all)),
                   key=lambda place: place.ratio, default=None)

    def describe(self, route: str, wall_offset: float) -> PromptVersionRow:
        """All but the figures of the window. wall_offset: added to monotonic instants."""
        scale, traits, head, price = self.tokens_a_byte, self.traits, self.head, self.price
        n_system, n_tools = (head.n_bytes_of(SYSTEM), head.n_bytes_of(TOOLS)) if head is not None else (0, 0)
        n_tokens = (n_system + n_tools) * scale
        moving = self.moving_place()
        return PromptVersionRow(
            route, self.ids.whole, self.ids.system, self.ids.tools, self.first_at + wall_offset, self.last_at + wall_offset,
            n_system + n_tools, n_tokens, n_system * scale, n_tools * scale,
            usd_per_mtok=price.input_per_mtok if price is not None else None,
            usd_per_mtok_read=price.cached_read_per_mtok if price is not None else None, change=self.change,
            moving=_scale_place(moving, scale) if moving is not None else None,
            repeats=tuple(RepeatedPart(one.path, one.at, one.first_path, one.first_at, one.n_tokens * scale, one.overlap)
                          for one in traits.repeats),
            tools=tuple(OfferedTool(name, n_bytes * scale, traits.calls.get(name, 0))
                        for name, n_bytes in traits.tool_bytes.items()),
            n_examples=traits.n_examples, example_tokens=traits.n_example_bytes * scale)


def _scale_place(place: PromptPlace, tokens_a_byte: float) -> PromptPlace:
    return PromptPlace(place.path, place.at, place.kind, place.ratio, place.n_tokens_after * tokens_a_byte)


class RouteVersions:
    """The versions of one route, by digest; the least recently seen first."""

    __slots__ = ("_owners", "_route", "by_id", "due_at", "moving", "n_samples", "n_unknown", "recent")

    def __init__(self, route: str) -> None:
        self._route = route
        self._owners: dict[int, str] = {}  # by hash of a beginning: the version; empty: several begin like this
        self.by_id: dict[str, LiveVersion] = {}
        self.recent: list[LiveVersion] = []  # with a beginning, the longest first
        self.due_at = 0.0
        self.n_samples = 0
        self.n_unknown = 0  # requests that belong to no version
        self.moving: dict[str, LiveVersion] = {}  # by lineage

    def count(self, body: bytes, done: RequestDone) -> None:
        """A request of a client ended with an answer."""
        for known in self.recent:
            if body.startswith(known.begin):
                known.counts.add(done)
                return
        self.n_unknown += 1

    def identify(self, head: PromptHead, now: float) -> tuple[LiveVersion, bool]:
        """The version of a head, and whether it is new."""
        self.n_samples += 1
        for known in self.recent:
            if known.head is not None and known.head.data == head.data:
                return known, False
        ids = digest_head(head)
        version = self.by_id.pop(ids.whole, None)
        is_new = version is None
        version = version or self._add(ids, head, now)
        self.by_id[version.ids.whole] = version
        return version, is_new and version.ids == ids

    def _add(self, ids: HeadIds, head: PromptHead, now: float) -> LiveVersion:
        near = self._find_near(head)
        if near is not None and near.lineage in self.moving:
            return self.moving[near.lineage]
        version = LiveVersion(f"{self._route}/{ids.whole}", ids, head, near=near, now=now, first_sample=self.n_samples)
        self.by_id[ids.whole] = version
        version = self._merge_unseen(version)
        while len(self.by_id) > MAX_VERSIONS:
            self.forget(next(iter(self.by_id)))
        return version

    def _find_near(self, head: PromptHead) -> LiveVersion | None:
        """The version with the most bytes in common, the newest of equals."""
        pieces = split_pieces(head.data)
        found = [(max(n_common_bytes(head.data, known.head.data), n_common_pieces(pieces, known.traits.pieces)),
                  known.last_at, known) for known in self.by_id.values() if known.head is not None]
        n, _, near = max(found, key=lambda one: one[:2], default=(0, 0.0, None))
        if near is None or near.head is None:
            return None
        return near if n >= SAME_SHARE * min(len(head.data), len(near.head.data)) else None

    def _merge_unseen(self, newest: LiveVersion) -> LiveVersion:
        """The version of a new head; one of its lineage, if no head of that recurs any more."""
        of_lineage = sorted((known for known in self.by_id.values() if known.lineage == newest.lineage),
                            key=lambda known: known.first_sample)
        judged = [known for known in of_lineage if self.n_samples - known.first_sample >= JUDGED_N]
        if len(judged) < N_UNSEEN or any(known.n_samples > 1 for known in judged[-N_UNSEEN:]):
            return newest
        run = of_lineage
        while any(known.n_samples > 1 for known in run):
            run = run[1 + next(n for n, known in enumerate(run) if known.n_samples > 1):]
        first, *others = run
        for other in others:
            if first.head is not None and other.head is not None and (place := locate_change(first.head, other.head)):
                first.note_move(place)
            self.forget(other.ids.whole)
        self.moving[first.lineage] = first
        return first

    def forget(self, version_id: str) -> None:
        gone = self.by_id.pop(version_id)
        if gone in self.recent:
            self.recent.remove(gone)

    def remember_begin(self, version: LiveVersion, begin: bytes) -> None:
        """Requests that begin like this are of this version, unless those of another one do, too."""
        owner, key = version.ids.whole, hash(begin)
        if self._owners.setdefault(key, owner) != owner:
            self._owners[key] = ""
            for other in [known for known in self.recent if known.begin == begin]:
                other.begin = b""
                self.recent.remove(other)
            begin = b""
        if len(self._owners) > MAX_BEGINS:
            del self._owners[next(iter(self._owners))]
        version.begin = begin
        if version in self.recent:
            self.recent.remove(version)
        if begin:
            self.recent.append(version)
            if len(self.recent) > MAX_RECENT:
                self.recent.remove(min(self.recent, key=lambda known: known.last_at))
            self.recent.sort(key=lambda known: -len(known.begin))


def _common_begin(one: bytes, other: bytes, n_before: int) -> bytes:
    """What both begin with; empty if it has too few bytes of the instructions, which stand after `n_before` bytes."""
    n = first_difference(one, other)
    return other[:n] if n - n_before >= LEAST_BEGIN else b""


def _describe_change(before: LiveVersion, head: PromptHead) -> PromptChange | None:
    if before.head is None or (place := locate_change(before.head, head)) is None:
        return None
    removed, added = n_changed_bytes(before.head.data, head.data)
    return PromptChange(before.ids.whole, _scale_place(place, before.tokens_a_byte), removed, added)


class PromptVersions:
    """The registry of one worker; survives reloads. For one event loop."""

    __slots__ = ("_clock", "_window", "by_route")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.by_route: dict[str | None, RouteVersions] = {}  # of routes whose prompts have instructions or tools
        self._window = TallyWindow(SPAN_S, SLOT_S)

    def note_sample(self, request: Request, done: RequestDone, attempts: Sequence[Attempt]) -> None:
        """A request of a client ended with an answer, and `count` does not see it."""
        now, seen = done.ended_at, self.by_route.get(done.route) or self._add_route(done.route or "")
        seen.due_at = now + SAMPLE_EVERY_S
        head = read_head(request)
        if head is None:
            seen.n_unknown += 1
            return
        version = self._note_head(seen, head, request, done, attempts)
        version.last_at = now
        version.counts.add(done)
        for known in seen.by_id.values():
            if known.counts.n:
                known.counts.flush(self._window.at(known.key, now))

    def _add_route(self, route: str) -> RouteVersions:
        if len(self.by_route) >= MAX_ROUTES:
            del self.by_route[next(iter(self.by_route))]
        self.by_route[route] = seen = RouteVersions(route)
        return seen

    def _note_head(self, seen: RouteVersions, head: PromptHead, request: Request, done: RequestDone,
                   attempts: Sequence[Attempt]) -> LiveVersion:
        version, is_new = seen.identify(head, done.ended_at)
        counts, before = self._window.at(version.key, done.ended_at).counts, version.head
        counts["samples"] += 1
        begin = find_begin(head, request.body)
        if not is_new and before is not None and before.data != head.data:
            counts["moved"] += 1
            if (place := locate_change(before, head)) is not None:
                version.note_move(place)
            begin = _common_begin(version.begin, begin, request.body.find(head.blocks[0].data))
        elif version.begin and request.body.startswith(version.begin):
            begin = version.begin
        version.head, version.price = head, attempts[-1].price if attempts else version.price
        version.n_samples += 1
        version.traits.note_calls(head.called)
        if done.usage is not None and done.usage.input_total:
            version.tokens_a_byte = done.usage.input_total / head.n_prompt
        version.counts.head_tokens = len(head.data) * version.tokens_a_byte
        seen.remember_begin(version, begin)
        if is_new:
            self._limit_texts()
        return version

    def _limit_texts(self) -> None:
        versions = sorted((version for seen in self.by_route.values() for version in seen.by_id.values()
                           if version.head is not None), key=lambda version: version.last_at)
        n_bytes = sum(len(version.head.data) for version in versions if version.head is not None)
        for version in versions:
            if n_bytes <= MAX_TEXT_BYTES:
                return
            n_bytes -= len(version.head.data) if version.head is not None else 0
            version.head = None

    def collect(self) -> list[PromptVersionPart]:
        """What this worker contributes to a snapshot."""
        now = self._clock.now()
        for _, version in self._all(now):
            if version.counts.n:
                version.last_at = now
            version.counts.flush(self._window.at(version.key, now))
        wall_offset, tallies = self._clock.wall() - now, self._window.collect(now)
        return [PromptVersionPart(version.describe(route, wall_offset), tallies[version.key])
                for route, version in self._all(now) if version.key in tallies]

    def _all(self, now: float) -> Iterator[tuple[str, LiveVersion]]:
        for route, seen in self.by_route.items():
            for version in list(seen.by_id.values()):
                if now - version.last_at > KEEPS_S:
                    seen.forget(version.ids.whole)
                else:
                    yield route or "", version

    async def compare(self, version_id: str, before: str, *, has_text: bool) -> PromptComparison | None:
        """A version beside an earlier one; None: this worker does not have its text. has_text: with the texts. In a thread.
        """
        head = self.find_head(version_id)
        if head is None:
            return None
        return await asyncio.to_thread(compare_heads, self.find_head(before), head, (before, version_id), has_text=has_text)

    def find_head(self, version_id: str) -> PromptHead | None:
        """The tools and instructions as they were last sent; None: this worker does not have them."""
        for seen in self.by_route.values():
            version = seen.by_id.get(version_id)
            if version is not None and version.head is not None:
                return version.head
        return None

