"""Findings that other parts make from more than a snapshot: prompt caches, semantic caches, the embedded engine.

Problem: each part had its own sentence and its own place. Rule: each such fact becomes the one record, so that the page, the
doctor and the log show the same. The facts hold names, positions and figures, never words of a prompt.
"""

from stayfast.core.events import EngineState, Fact, JudgeUnclear, PrefixFinding
from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.policy.findings.patches import change_settings

KINDS: frozenset[type] = frozenset({JudgeUnclear, EngineState})  # facts that are the only trace of a finding
PREFIX_STATE = "/debug/state"
PREFIX_IDS = {"moves": "prompt.moving_prefix", "unread": "prompt.cache_unread", "refused": "prompt.field_refused"}


def finding_of(fact: Fact, at: float | None = None) -> Finding | None:
    """The finding of a fact, if it is one. at: since when, in seconds since the epoch."""
    match fact:
        case JudgeUnclear():
            return _judge_finding(fact, at)
        case EngineState(state="crashed"):
            return _engine_finding(fact, at)
    return None


def prefix_finding(fact: PrefixFinding, at: float | None = None) -> Finding:
    """Why a provider's prompt cache cannot serve a route's prompts."""
    evidence = [Evidence("tokens a request", fact.n_tokens, "tokens", None, "stayfast_prefix_moving_tokens")]
    if fact.usd_a_day is not None:
        evidence.append(Evidence("cost a day", fact.usd_a_day, "USD", None, PREFIX_STATE))
    if fact.what == "moves":
        evidence.append(Evidence("first difference at byte", fact.at_byte, "", None, PREFIX_STATE))
    return Finding(
        PREFIX_IDS.get(fact.what, "prompt.moving_prefix"), "info" if fact.what == "refused" else "warn",
        FindingSite(route=fact.route, upstream=fact.upstream), f"{fact.detail[0].upper()}{fact.detail[1:]}.",
        _prefix_cause(fact), tuple(evidence), (_prefix_change(fact),),
        f"stayfast_prefix_moving_tokens of route {fact.route} falls; its tokens of kind cached rise", at)


def _prefix_cause(fact: PrefixFinding) -> str:
    if fact.what == "moves":
        return f"{fact.where} differs between requests, and a provider's cache serves only an equal beginning."
    if fact.what == "unread":
        return "No later request begins with the same text while the entry lives, and writing costs more than plain input."
    return "The upstream does not know the field that marks what is to be cached."


def _prefix_change(fact: PrefixFinding) -> SettingsChange:
    prefix = {"prefix": {"mode": "auto", "move_volatile": True}} if fact.what == "moves" else {"prefix": {"mode": "off"}}
    if fact.what == "moves":
        return change_settings(f"Blocks with {fact.word} go behind the others: {fact.n_tokens:,} tokens a request become "
                               "readable. In the client: leave it out, or put it last.", {"routes": {fact.route: prefix}})
    if fact.what == "unread":
        return change_settings("Nothing is written to the cache any more.", {"routes": {fact.route: prefix}}, "measured")
    return change_settings("The field is never sent.", {"routes": {fact.route: {
        "prefix": {"models": {fact.model: {"breakpoints": "none"}}}}}}, "measured")


def _judge_finding(fact: JudgeUnclear, at: float | None) -> Finding:
    return Finding(
        "semantic.judge_unclear", "warn", FindingSite(route=fact.route),
        f"The model of route {fact.judge} gave no verdict {fact.n} times in a row ({fact.what}).",
        "Without verdicts the semantic cache learns nothing and serves nothing.",
        (Evidence("replies without a verdict", fact.n, "", None, "stayfast_semantic_judged_total"),),
        (change_settings("Rules about words compare the answers instead of a model.",
                         {"routes": {fact.route: {"cache": {"judge": "local"}}}}),),
        f'stayfast_semantic_judged_total{{result="unclear"}} of route {fact.route} stops', at)


def _engine_finding(fact: EngineState, at: float | None) -> Finding:
    return Finding(
        "engine.embedded_restarts", "warn", FindingSite(), f"The embedded engine ended unexpectedly{_detail(fact)}.",
        "It is started again, and its answers until then were lost.",
        (Evidence("process", float(fact.pid or 0), "", None, "the log"),),
        (SettingsChange("Fewer slots or a smaller model need less memory; the log has its last "
                        "lines.", confidence="unknown"),),
        'stayfast_engine_states_total{state="crashed"} stays', at)


def _detail(fact: EngineState) -> str:
    return f": {fact.detail}" if fact.detail else ""
