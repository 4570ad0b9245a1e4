"""Prompts that are longer than their use, from the shapes of a sample.

Problem: each input token delays the first token, and costs. Rule: find the part that dominates.

    history      grows with each message, and is most of the prompt       keep the last turns, summarise the rest
    system       over 1,000 tokens, and not read from the provider's cache
    tools, retrieved documents: over half of the prompt, and not read from it either
    logit bias   differs from request to request

    saved per request = tokens saved / 1000 * s_per_1k_input       the slope is measured on this route's requests

Parts that the provider's cache serves are cheap, so they are no finding. Source: limits of 1,000 tokens for a system prompt
and of 2 to 4 turns for a history are those of "LLM Latency In Production: What Actually Works"
(2025). When wrong: an answer may need its whole history or all documents: quality is not visible here.
"""

from collections.abc import Iterable, Iterator

from stayfast.core.findings import Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import PromptRow, Snapshot, Spread
from stayfast.core.units import format_seconds, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import HOUR_S, observe, route_row, share_of

MIN_PROMPTS = 50  # of the sample: a median within about a seventh of the distribution, and 2 or 3 beyond p95
LONG_SYSTEM_TOKENS = 1000.0  # "system prompts longer than 1k tokens are a latency tax"
MOST_TURNS = 4  # "keep only the last 2 to 4 raw turns"
LONG_HISTORY_TOKENS = 2000.0  # where a summary of 500 tokens still saves three quarters
MOST_OF_PROMPT = 0.5  # over half: halving any other part brings less
LONG_PART_TOKENS = 2000.0  # twice a long system prompt: tools and documents are larger by nature
WELL_CACHED = 0.6  # of input tokens, read from the provider's cache; the limit under which a KV cache counts as cold
DRIVEN_BY = 0.5  # correlation from which a size explains a quarter of a time's variance
MANY_BIASES = 5  # different ones; a product with a few classifiers has a few
MOSTLY_DIFFERENT = 0.25  # of those with a bias; the sample tells apart 64 of up to 240 in two minutes
SOURCE = "/admin/snapshot prompts"


def _rows(snapshot: Snapshot) -> Iterator[tuple[PromptRow, FindingSite]]:
    for row in snapshot.prompts:
        if row.n >= MIN_PROMPTS:
            yield row, FindingSite(route=row.route)


def cached_share(snapshot: Snapshot, route: str) -> float:
    """Share of a route's input tokens that providers read from their caches, over an hour."""
    row = route_row(snapshot, route, HOUR_S)
    return share_of(row.n_cached_tokens, row.n_input_tokens)


def _saved_s(row: PromptRow, n_tokens: float) -> float | None:
    """Time to the first token that so many fewer input tokens save; None if input does not drive it."""
    slope_s = row.s_per_1k_input
    return n_tokens / 1000 * slope_s if slope_s is not None and slope_s > 0 and n_tokens > 0 else None


def _effect(row: PromptRow, what: str, n_tokens: float) -> tuple[str, float | None]:
    saves_s = _saved_s(row, n_tokens)
    brings = f" and {format_seconds(saves_s)} to the first token" if saves_s is not None else ""
    return f"{what} It saves about {n_tokens:.0f} input tokens{brings}.", saves_s


def _elsewhere(row: PromptRow, what: str, n_tokens: float) -> SettingsChange:
    """A change of the application, with what it saves."""
    effect, saves_s = _effect(row, what, n_tokens)
    return SettingsChange(effect, confidence="measured" if saves_s is not None else "estimated", saves_s=saves_s)


def find_history_growth(snapshot: Snapshot) -> Iterable[Finding]:
    """Conversations longer than a few turns, whose history is most of the prompt and grows with each message."""
    for row, where in _rows(snapshot):
        history, whole = row.history_tokens.p95, row.input_tokens.p95
        turns, growth = (row.n_messages.p95 or 0.0) / 2, row.growth_tokens or 0.0
        if not history or not whole or history < LONG_HISTORY_TOKENS or turns <= MOST_TURNS or growth <= 0:
            continue
        if share_of(history, whole) < MOST_OF_PROMPT or cached_share(snapshot, row.route) >= WELL_CACHED:
            continue
        left = min(history, MOST_TURNS * 2 * growth)
        yield Finding(
            "prompt.history_growth", "warn", where,
            f"Each message adds {growth:.0f} tokens to the next prompt: at the p95, {history:.0f} of {whole:.0f} tokens are "
            "history.",
            "The whole conversation is sent with every request. The provider's cache serves little of it.",
            evidence=(observe("history_tokens p95", history, "tokens", HOUR_S, SOURCE),
                      observe("input_tokens p95", whole, "tokens", HOUR_S, SOURCE),
                      observe("growth_tokens per message", growth, "tokens", HOUR_S, SOURCE),
                      observe("n_messages p95", turns * 2, "", HOUR_S, SOURCE), observe("prompts", row.n, "", HOUR_S)),
            do=(_elsewhere(row, f"In the application: keep the last {MOST_TURNS} turns and a summary of the others.",
                           history - left),
                change_settings("The provider reads the unchanged history from its cache, where it has one: one "
                                "conversation stays at one upstream, and its end is marked.",
                                {"routes": {row.route: {"prefix": {"mode": "auto"}, "affinity": {"mode": "both"}}}})),
            verify=f"{SOURCE}: history_tokens of route {row.route} falls; stayfast_ttft_seconds p95 falls")


def find_long_system(snapshot: Snapshot) -> Iterable[Finding]:
    """System prompts over 1,000 tokens that are computed anew for each request."""
    for row, where in _rows(snapshot):
        usual = row.system_tokens.p50 or 0.0
        cached = cached_share(snapshot, row.route)
        if usual <= LONG_SYSTEM_TOKENS or cached >= WELL_CACHED:
            continue
        if usual <= cached * (row.input_tokens.p50 or 0.0):  # the cached part of a usual prompt covers it
            continue
        yield Finding(
            "prompt.long_system", "warn", where,
            f"The system prompt has {usual:.0f} tokens (p50), and providers read {format_share(cached)} of the input from "
            "their caches.",
            "Every request computes the system prompt again.",
            evidence=(observe("system_tokens p50", usual, "tokens", HOUR_S, SOURCE),
                      observe("cached input", cached, "ratio", HOUR_S, "stayfast_prefix_cache_tokens_total"),
                      observe("prompts", row.n, "", HOUR_S)),
            do=(change_settings("The provider reads it from its cache: 60 to 80 % less time to the first token for prompts "
                                "that hit.", {"routes": {row.route: {"prefix": {"mode": "auto"}}}}),
                _elsewhere(row, f"In the application: shorten it to {LONG_SYSTEM_TOKENS:.0f} tokens.",
                           usual - LONG_SYSTEM_TOKENS)),
            verify='stayfast_prefix_cache_tokens_total{kind="read"} rises, or system_tokens in /admin/snapshot falls')


def _dominates(snapshot: Snapshot, row: PromptRow, part: Spread) -> bool:
    usual, whole = part.p50 or 0.0, row.input_tokens.p50 or 0.0
    return (usual >= LONG_PART_TOKENS and share_of(usual, whole) > MOST_OF_PROMPT
            and cached_share(snapshot, row.route) < WELL_CACHED)


def find_dominant_tools(snapshot: Snapshot) -> Iterable[Finding]:
    """Definitions of tools that are most of the prompt."""
    for row, where in _rows(snapshot):
        if not _dominates(snapshot, row, row.tool_tokens):
            continue
        usual, whole = row.tool_tokens.p50 or 0.0, row.input_tokens.p50 or 0.0
        yield Finding(
            "prompt.tools_dominate", "warn", where,
            f"Definitions of tools are {usual:.0f} of {whole:.0f} input tokens (p50).",
            "All tools are sent with every request, and the provider's cache does not serve them.",
            evidence=(observe("tool_tokens p50", usual, "tokens", HOUR_S, SOURCE),
                      observe("input_tokens p50", whole, "tokens", HOUR_S, SOURCE), observe("prompts", row.n, "", HOUR_S)),
            do=(change_settings("The same tools in the same order are one cached prefix.",
                                {"routes": {row.route: {"prefix": {"mode": "auto", "sort_tools": True}}}}),
                _elsewhere(row, "In the application: send only the tools that a step may call.", usual / 2)),
            verify=f"{SOURCE}: tool_tokens of route {row.route} falls, or the cached share of its input rises")


def find_dominant_retrieval(snapshot: Snapshot) -> Iterable[Finding]:
    """Retrieved documents that are most of the prompt, where input drives the first token."""
    for row, where in _rows(snapshot):
        if not _dominates(snapshot, row, row.retrieved_tokens) or (row.ttft_by_input or 0.0) < DRIVEN_BY:
            continue
        usual, whole = row.retrieved_tokens.p50 or 0.0, row.input_tokens.p50 or 0.0
        yield Finding(
            "prompt.retrieval_dominates", "warn", where,
            f"Documents in the last message are about {usual:.0f} of {whole:.0f} input tokens (p50), and the first token "
            "waits for them.",
            f"The time to the first token follows the input (correlation {row.ttft_by_input:.2f}).",
            evidence=(observe("retrieved_tokens p50", usual, "tokens", HOUR_S, SOURCE),
                      observe("input_tokens p50", whole, "tokens", HOUR_S, SOURCE),
                      observe("ttft_by_input", row.ttft_by_input or 0.0, "", HOUR_S, SOURCE),
                      observe("prompts", row.n, "", HOUR_S)),
            do=(_elsewhere(row, "In the application: smaller chunks, a ranking, and fewer of them: half of the text.",
                           usual / 2),),
            verify=f"{SOURCE}: retrieved_tokens of route {row.route} and stayfast_ttft_seconds fall")


def find_varied_biases(snapshot: Snapshot) -> Iterable[Finding]:
    """Logit biases that differ from request to request."""
    for row, where in _rows(snapshot):
        if row.n_logit_biases <= MANY_BIASES or row.n_logit_biases <= MOSTLY_DIFFERENT * row.n_logit_bias:
            continue
        yield Finding(
            "prompt.varied_logit_bias", "info", where,
            f"{row.n_logit_bias} of {row.n} sampled requests have a logit bias, {row.n_logit_biases} of them different.",
            "A bias that changes shifts the output of equal prompts, makes each request a new entry of the response cache, "
            "and an engine builds it anew each time.",
            evidence=(observe("with a bias", row.n_logit_bias, "", HOUR_S, SOURCE),
                      observe("different biases", row.n_logit_biases, "", HOUR_S, SOURCE)),
            do=(SettingsChange("In the application: one fixed bias for each task, or a grammar or JSON schema.",
                               confidence="unknown"),),
            verify=f"{SOURCE}: n_logit_biases of route {row.route} falls")


CHECKS = (
    Check("prompt.history_growth", "the history of conversations grows and is most of the prompt", find_history_growth,
          ("prompt.stragglers", "waits.prefill_bound")),
    Check("prompt.long_system", "the system prompt has over 1,000 tokens that no cache serves", find_long_system,
          ("waits.prefill_bound",)),
    Check("prompt.tools_dominate", "definitions of tools are most of the prompt", find_dominant_tools,
          ("waits.prefill_bound",)),
    Check("prompt.retrieval_dominates", "retrieved documents are most of the prompt, and the first token waits for them",
          find_dominant_retrieval, ("waits.prefill_bound", "prompt.stragglers")),
    Check("prompt.varied_logit_bias", "logit biases differ from request to request", find_varied_biases),
)
