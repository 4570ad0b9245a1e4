"""What is sent of a long conversation: which turns as they are, which as a summary, which not at all.

Problem: a client sends its whole conversation with each request. The first token of turn 50 waits for 50 turns of prefill.
Rule, with the tokens of all turns, and A = `allowance_tokens`:

    up to start_at * A   everything is sent as it is
    beyond it            the turns before the last `raw_turns` are summarized in the background. A summary that exists is
                         sent in their place. It is extended when it and the turns after it exceed start_at * A again, by
                         at least GAIN * A tokens of turns
    beyond A             the oldest turns that no summary covers are left out until start_at * A remains

A provider's prompt cache misses when the beginning of a prompt changes. Therefore a summary is replaced only after GAIN * A
more tokens, and turns are left out in steps of (1 - start_at) * A. The turns that were left out of the last request stay
out: sizes are estimates, which change a little with each request. A process that has not seen it finds the steps again from
the sizes of the turns.
Source: trigger and bounds as in the design of published agents (60 % of the allowance, the last 2 to 4 turns raw).
When wrong: the last `raw_turns` are always sent, even if they alone exceed the allowance. Sizes are estimates where the
route counts no tokens exactly, so the allowance is not a limit of the model's context.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

from stayfast.core.setting import SettingDoc, check_bounds

GAIN: Final = 0.2  # of the allowance: tokens of turns that a summary must replace


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """The history of one route's conversations. Tokens are those of its turns, without system prompt and tools."""

    mode: Annotated[Literal["off", "trim", "summarize"], SettingDoc(
        "summarize: older turns become a summary that the route `by` makes in the background. trim: the oldest turns are "
        "left out beyond the allowance. off: all turns are sent.")] = "off"
    allowance_tokens: Annotated[int, SettingDoc(
        "Tokens of the turns that are sent.", minimum=200, maximum=10_000_000)] = 8000
    start_at: Annotated[float, SettingDoc(
        "Share of the allowance at which turns are summarized, and to which they are trimmed.",
        minimum=0.2, maximum=0.95)] = 0.6
    raw_turns: Annotated[int, SettingDoc("Last turns that are always sent as they are.", minimum=2, maximum=4)] = 3
    summary_share: Annotated[float, SettingDoc(
        "Longest summary, as a share of the allowance.", minimum=0.05, maximum=0.6)] = 0.25
    by: Annotated[str, SettingDoc("Route whose model summarizes, usually a small one.")] = ""
    pins: Annotated[tuple[str, ...], SettingDoc(
        "Regular expressions. Lines of users that match are repeated verbatim when their turn is not sent, in addition to "
        "the constraints that the gateway finds.")] = ()
    store: Annotated[str, SettingDoc(
        "A name in `stores`, shared by workers and gateways. Empty: memory of this worker, `max_bytes`.")] = ""
    max_bytes: Annotated[int, SettingDoc(
        "Memory for summaries, per worker, without a store.", minimum=65_536, maximum=1 << 40)] = 16 * 1024 * 1024
    ttl_s: Annotated[float, SettingDoc("Lifetime of a summary.", minimum=60, maximum=31_536_000)] = 86_400.0
    max_running: Annotated[int, SettingDoc("Summaries made at a time, per worker.", minimum=1, maximum=1000)] = 4
    timeout_s: Annotated[float, SettingDoc("Longest wait for one summary.", more_than=0, maximum=3600)] = 60.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.mode == "summarize" and not self.by:
            raise ValueError("by must name the route that summarizes")
        for number, pin in enumerate(self.pins):
            try:
                re.compile(pin)
            except re.error as error:
                raise ValueError(f"pins.{number} is not a regular expression: {error}") from None

    @property
    def start_tokens(self) -> int:
        """Tokens of turns above which the history is shortened."""
        return int(self.start_at * self.allowance_tokens)

    @property
    def summary_tokens(self) -> int:
        """The longest summary."""
        return int(self.summary_share * self.allowance_tokens)


class KnownSummary(NamedTuple):
    """A summary of the turns [0, after), of `n_tokens`."""

    after: int
    n_tokens: int


class SentHistory(NamedTuple):
    """How an earlier request of a conversation was sent: as a HistoryPlan, the turns [0, cut) were not."""

    n_summarized: int
    cut: int


class HistoryPlan(NamedTuple):
    """The turns [0, cut) are not sent; a summary stands for the first `n_summarized` of them. `n_tokens`: of what is sent.

    `start`: the turns [first, after) that should be summarized in the background; None: none.
    """

    cut: int
    n_summarized: int
    n_tokens: int
    start: tuple[int, int] | None = None

    @property
    def n_dropped(self) -> int:
        """Turns that are neither sent nor summarized."""
        return self.cut - self.n_summarized


def plan_history(sizes: Sequence[int], config: HistoryConfig, known: KnownSummary | None = None, *,
                 tried: Iterable[int] = (), before: SentHistory | None = None) -> HistoryPlan:
    """Decide for one request. sizes: tokens of its turns, the newest last. known: the newest summary of its beginning.
    tried: numbers of turns whose summary is being made, or could not be made. before: how the request before it was sent.
    """
    n, first, n_summary = len(sizes), known.after if known is not None else 0, known.n_tokens if known is not None else 0
    total = n_summary + sum(sizes[first:])
    end, last_cut = n - config.raw_turns, 0
    if before is not None and before.n_summarized == first <= before.cut <= end:
        last_cut = before.cut
    start = None
    if total > config.start_tokens:
        start = _choose_span(sizes, config, first, end, tried)
    elif not last_cut:
        return HistoryPlan(first, first, total)
    if last_cut:
        cut = _advance_cut(sizes, config, last_cut, n_summary + sum(sizes[last_cut:]))
    else:
        cut = find_cut(sizes, config, first, n_summary)
    return HistoryPlan(cut, first, n_summary + sum(sizes[cut:]), start)


def _choose_span(sizes: Sequence[int], config: HistoryConfig, first: int, end: int, tried: Iterable[int]
                 ) -> tuple[int, int] | None:
    """The turns to summarize; None: too few, or tried already."""
    if config.mode != "summarize" or end <= first or sum(sizes[first:end]) < GAIN * config.allowance_tokens:
        return None
    is_tried = any(first < turn <= end and sum(sizes[turn:end]) < config.allowance_tokens for turn in tried)
    return None if is_tried else (first, end)


def find_cut(sizes: Sequence[int], config: HistoryConfig, first: int, n_summary: int) -> int:
    """The first turn that is sent as it is, if turns before `first` cost `n_summary`: replays the conversation, and cuts
    each time it exceeds the allowance.
    """
    cut, n_sent = first, n_summary
    for turn in range(first, len(sizes)):
        n_sent += sizes[turn]
        if n_sent > config.allowance_tokens:
            last = turn + 1 - config.raw_turns
            while cut < last and n_sent > config.start_tokens:
                n_sent -= sizes[cut]
                cut += 1
    return cut


def _advance_cut(sizes: Sequence[int], config: HistoryConfig, cut: int, n_sent: int) -> int:
    """The first turn that is sent as it is, where `cut` was, and `n_sent` tokens would be with it."""
    last = len(sizes) - config.raw_turns
    if n_sent > config.allowance_tokens:
        while cut < last and n_sent > config.start_tokens:
            n_sent -= sizes[cut]
            cut += 1
    return cut


def divide_span(sizes: Sequence[int], first: int, after: int, most_tokens: int) -> list[tuple[int, int]]:
    """[first, after) in parts of at most `most_tokens`, each of one turn at least: for models with a short context."""
    parts, begin, n_tokens = [], first, 0
    for turn in range(first, after):
        if turn > begin and n_tokens + sizes[turn] > most_tokens:
            parts.append((begin, turn))
            begin, n_tokens = turn, 0
        n_tokens += sizes[turn]
    return [*parts, (begin, after)] if after > begin else parts


def share_tokens(n_tokens: int, n_bytes: int, sizes_bytes: Sequence[int]) -> list[int]:
    """The tokens of a prompt's parts by their bytes, from those of the whole prompt."""
    ratio = n_tokens / n_bytes if n_bytes else 0.0
    return [max(1, round(size * ratio)) for size in sizes_bytes]
