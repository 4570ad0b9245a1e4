"""Versions of system prompts that cost more than they must: repeated paragraphs, moving parts, unused tools.

Problem: instructions are written once and paid for on every call. Rule, for each version of the last hour:

    repeated     paragraphs that resemble an earlier one (`policy.context.repeats`), REPEATED_TOKENS together
    moving       a byte in the first half changes between requests, so that a prefix cache ends there
    tools        UNUSED_TOKENS of definitions of tools that no sampled conversation called
    examples     EXAMPLE_TOKENS of marked examples (`policy.context.examples`)
    new version  less than half of the cached share of the version before, and more tokens computed for each request

Source: limits are ours, but for the first half: "static part first" of the providers' guides to prompt caches.
When wrong: a tool that is called once a week is not needless; whether an example is of use no figure of a gateway shows; a
request that no other follows hides its calls, so tools are not judged while such calls are the only ones.
"""

from collections.abc import Iterable, Iterator

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.prompt_versions import PromptPlace, PromptVersionRow
from stayfast.core.snapshot import Snapshot
from stayfast.core.units import format_share
from stayfast.policy.context.prompt_costs import cost_of_change, usd_a_day
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import HOUR_S, observe, share_of

MIN_REQUESTS = 50
MIN_SAMPLES = 20
REPEATED_TOKENS = 100.0
MOVED_SHARE = 0.2  # of the samples; a date that changes once a day stays far below
FIRST_HALF = 0.5
MOVING_TOKENS = 500.0  # behind the moving byte; half of what providers cache at least
WELL_CACHED = 0.6
MIN_TOOL_SAMPLES = 100
UNUSED_TOKENS = 1000.0
EXAMPLE_TOKENS = 500.0
CACHED_BEFORE = 0.5
DROP = 0.5
MORE_TOKENS = 500.0  # computed for each request
MAX_NAMED = 5
SOURCE = "/admin/prompts"
CACHED = 'stayfast_prefix_cache_tokens_total{kind="read"}'
_DATED = frozenset(("a date", "a UUID", "a timestamp"))  # what prefix.move_volatile recognises


def _rows(snapshot: Snapshot) -> Iterator[tuple[PromptVersionRow, FindingSite]]:
    for row in snapshot.prompt_versions:
        if row.n >= MIN_REQUESTS:
            yield row, FindingSite(route=row.route)


def short_id(row: PromptVersionRow) -> str:
    """The first 12 digits of its id, by which `stayfast prompts` finds it."""
    return row.id[:12]


def _observe(name: str, value: float, unit: str = "") -> Evidence:
    return observe(name, value, unit, HOUR_S, SOURCE)


def _cost(row: PromptVersionRow, n_tokens: float) -> str:
    """In words, with the sum for a day where it is known."""
    usd = usd_a_day(row, n_tokens)
    return f"{n_tokens:.0f} tokens of each request{f', {usd:.2f} USD a day' if usd is not None else ''}"


def find_repeated_paragraphs(snapshot: Snapshot) -> Iterable[Finding]:
    """Paragraphs of instructions that stand twice."""
    for row, where in _rows(snapshot):
        is_dropped = snapshot.setting("routes", row.route, "context", "diet", "drop_repeats") is True
        repeats = [one for one in row.repeats if not is_dropped or one.overlap < 1.0]
        n_tokens = sum(one.n_tokens for one in repeats)
        if n_tokens < REPEATED_TOKENS:
            continue
        named = ", ".join(f"byte {one.at} of {one.path} repeats byte {one.first_at}"
                          f"{f' of {one.first_path}' if one.first_path != one.path else ''} ({format_share(one.overlap)})"
                          for one in repeats[:MAX_NAMED])
        equal = [one for one in repeats if one.overlap == 1.0]
        change = change_settings(
            f"Paragraphs that equal an earlier one are left out: {sum(one.n_tokens for one in equal):.0f} tokens of each "
            "request.", {"routes": {row.route: {"context": {"diet": {"drop_repeats": True}}}}}, "measured")
        yield Finding(
            "prompt.repeated_paragraphs", "warn", where,
            f"{len(repeats)} paragraphs of system prompt {short_id(row)} repeat earlier ones: {_cost(row, n_tokens)}.",
            f"In the text, {named}.",
            evidence=(_observe("repeated tokens", n_tokens, "tokens"),
                      _observe("system_tokens", row.system_tokens, "tokens"),
                      _observe("requests", row.n)),
            do=(*([change] if equal else ()),
                SettingsChange("In the application: write each rule once.", confidence="measured")),
            verify=f"`stayfast prompts show {short_id(row)}`: its repeats are gone, and system_tokens falls")


def find_moving_part(snapshot: Snapshot) -> Iterable[Finding]:
    """A date, an id or a counter in the first half of the instructions."""
    for row, where in _rows(snapshot):
        place, cached = row.moving, row.cached_ratio or 0.0
        moved = share_of(row.n_moved, row.n_samples)
        if place is None or row.n_samples < MIN_SAMPLES or moved < MOVED_SHARE or place.ratio >= FIRST_HALF:
            continue
        if place.n_tokens_after < MOVING_TOKENS or cached >= WELL_CACHED:
            continue
        what = "The order of the tools" if place.kind == "order" else place.kind[:1].upper() + place.kind[1:]
        yield Finding(
            "prompt.moving_part", "warn", where,
            f"{what} at byte {place.at} of {place.path} changes in {format_share(moved)} of the requests with system prompt "
            f"{short_id(row)}.",
            f"A prefix cache ends there: the {place.n_tokens_after:.0f} tokens of instructions and tools behind it are "
            "computed again for each request.",
            evidence=(_observe("byte", place.at, "bytes"), _observe("moved", moved, "ratio"),
                      _observe("tokens behind it", place.n_tokens_after, "tokens"), _observe("cached", cached, "ratio"),
                      _observe("samples", row.n_samples)),
            do=tuple(_move_out(row, place)),
            verify=f"`stayfast prompts show {short_id(row)}`: nothing moves; {CACHED} of route {row.route} rises")


def _move_out(row: PromptVersionRow, place: PromptPlace) -> Iterator[SettingsChange]:
    saved = f"It lets the provider's cache serve {_cost(row, place.n_tokens_after)}."
    if place.kind == "order":
        yield change_settings(f"The tools of each request stand in the same order. {saved}",
                              {"routes": {row.route: {"prefix": {"mode": "auto", "sort_tools": True}}}})
        return
    if place.kind in _DATED:
        yield change_settings("Where it stands in a block of its own, that block moves behind the constant ones. " + saved,
                              {"routes": {row.route: {"prefix": {"mode": "auto", "move_volatile": True}}}})
    yield SettingsChange(f"In the application: put it at the end of the instructions, or into the user's message. {saved}")


def find_unused_tools(snapshot: Snapshot) -> Iterable[Finding]:
    """Definitions of tools that no conversation called."""
    for row, where in _rows(snapshot):
        unused = [tool for tool in row.tools if not tool.n_calls]
        n_tokens = sum(tool.n_tokens for tool in unused)
        if row.n_samples < MIN_TOOL_SAMPLES or n_tokens < UNUSED_TOKENS:
            continue
        if len(unused) == len(row.tools) and row.n_tool_ends:  # they are called, but no later request shows which
            continue
        names = ", ".join(tool.name for tool in unused[:MAX_NAMED])
        yield Finding(
            "prompt.tools_unused", "warn", where,
            f"{len(unused)} of {len(row.tools)} tools were called in none of {row.n_samples} sampled conversations: "
            f"{_cost(row, n_tokens)}.",
            f"Each request defines all tools, among them {names}{' and others' * (len(unused) > MAX_NAMED)}.",
            evidence=(_observe("tokens of unused tools", n_tokens, "tokens"),
                      _observe("tool_tokens", row.tool_tokens, "tokens"), _observe("samples", row.n_samples),
                      _observe("requests", row.n), _observe("answers that call a tool", row.n_tool_ends)),
            do=(SettingsChange("In the application: define a tool only where a step may call it, or let the model search "
                               "for tools. Ask first who needs it rarely.", confidence="measured"),),
            verify=f"`stayfast prompts show {short_id(row)}`: tool_tokens falls")


def find_long_examples(snapshot: Snapshot) -> Iterable[Finding]:
    """Few-shot examples that are long and computed anew."""
    for row, where in _rows(snapshot):
        if row.example_tokens < EXAMPLE_TOKENS or (row.cached_ratio or 0.0) >= WELL_CACHED:
            continue
        yield Finding(
            "prompt.long_examples", "info", where,
            f"{row.n_examples} examples in system prompt {short_id(row)} are {_cost(row, row.example_tokens)}.",
            "A model reads all examples each time, so no figure of a gateway shows which of them it needs.",
            evidence=(_observe("example_tokens", row.example_tokens, "tokens"),
                      _observe("system_tokens", row.system_tokens, "tokens"), _observe("requests", row.n)),
            do=(SettingsChange("In the application: run your evaluation with half of the examples, and with none; leave out "
                               "those that change nothing.", confidence="unknown"),),
            verify=f"`stayfast prompts show {short_id(row)}`: example_tokens falls, and the evaluation gives the same")


def find_broken_cache(snapshot: Snapshot) -> Iterable[Finding]:
    """A new version of which the provider's cache serves much less than of the one before."""
    by_id = {(row.route, row.id): row for row in snapshot.prompt_versions}
    for row, where in _rows(snapshot):
        change = row.change
        before = by_id.get((row.route, change.before)) if change is not None else None
        if change is None or before is None or before.n < MIN_REQUESTS:
            continue
        cached, usual = row.cached_ratio or 0.0, before.cached_ratio or 0.0
        n_more = row.n_tokens * (1 - cached) - before.n_tokens * (1 - usual)
        if usual < CACHED_BEFORE or cached >= DROP * usual or n_more < MORE_TOKENS:
            continue
        cost = cost_of_change(before, row)
        usd = f", {cost.usd_a_day:.2f} USD a day more" if cost is not None else ""
        yield Finding(
            "prompt.version_broke_cache", "warn", where,
            f"{format_share(cached)} of system prompt {short_id(row)} is read from the provider's cache; of "
            f"{short_id(before)}, the version before it, {format_share(usual)} was{usd}.",
            f"The new version first differs at byte {change.place.at} of {change.place.path} ({change.place.kind}), and is "
            "not read from the cache since.",
            evidence=(_observe("cached", cached, "ratio"), _observe("cached before", usual, "ratio"),
                      _observe("tokens computed more", n_more, "tokens"), _observe("requests", row.n),
                      _observe("requests before", before.n)),
            do=(change_settings("Static parts come first, and their end is marked for the provider's cache.",
                                {"routes": {row.route: {"prefix": {"mode": "auto"}}}}),
                SettingsChange("In the application: compare the versions, and restore what the cache needs: its markers, "
                               "the order of the parts, the length.")),
            verify=f"`stayfast prompts list`: the cached share of {short_id(row)} rises over {format_share(WELL_CACHED)}")


_CACHE = ("prompt.prefix_differs", "prompt.cache_dropped", "prompt.cache_rarely_read", "prompt.long_system")
CHECKS = (
    Check("prompt.moving_part", "a byte in the first half of a system prompt changes between requests", find_moving_part,
          (*_CACHE, "prompt.version_broke_cache")),
    Check("prompt.version_broke_cache", "a new version of a system prompt is hardly read from the provider's cache",
          find_broken_cache, _CACHE),
    Check("prompt.repeated_paragraphs", "paragraphs of a system prompt repeat earlier ones", find_repeated_paragraphs),
    Check("prompt.tools_unused", "over 1,000 tokens define tools that no conversation called", find_unused_tools),
    Check("prompt.long_examples", "over 500 tokens of examples that no cache serves", find_long_examples),
)
