"""KV events of engines that do not arrive, or not all.

Problem: without events routing by prefix falls back to what it sent, silently. Rule: found if an engine's publisher has not
been reachable for a minute, if events were lost in the last hour, if messages are not readable, or if no prompt could be
tokenized, without which no event can be looked up. When wrong: an engine that restarts is not reachable for a while, too.
"""

from typing import NamedTuple

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange
from stayfast.core.units import format_seconds

KV_EVENTS_LOST = "engine.kv_events_lost"
MIN_LOST_S = 60.0
MIN_FAILED = 5
_STATE, _GAPS, _EVENTS = "stayfast_kv_event_state", "stayfast_kv_event_gaps_total", "stayfast_kv_events_total"
_TOKENIZED = "stayfast_prompts_tokenized_total"


class KvEventsState(NamedTuple):
    """The events of one upstream. lost_s: without a connection; None: there is one."""

    upstream: str
    lost_s: float | None
    n_gaps_1h: int
    n_malformed: int
    has_replay: bool
    has_events: bool
    n_learned: int  # prompts that engines tokenized
    n_failed: int


def find_kv_events(state: KvEventsState) -> Finding | None:
    """The finding for one upstream; None: nothing is wrong."""
    name, where = state.upstream, FindingSite(upstream=state.upstream)
    until_then = "Until then its cache is unknown, and routing uses what it sent there."
    if state.lost_s is not None and state.lost_s >= MIN_LOST_S:
        return Finding(
            KV_EVENTS_LOST, "warn", where, f"No KV events of {name} for {format_seconds(state.lost_s)}: no connection.",
            "Nothing publishes at kv_events.endpoint, or a firewall is between. " + until_then,
            (Evidence("time without a connection", state.lost_s, "s", None, _STATE),),
            (SettingsChange("At the engine: --kv-events-config with enable_kv_cache_events, publisher zmq and an endpoint "
                            "like tcp://*:5557, where * is needed: an address is connected to, not bound."),),
            f"{_STATE} of {name} is 1 or 2")
    if state.n_gaps_1h:
        return Finding(
            KV_EVENTS_LOST, "warn", where, f"{state.n_gaps_1h:,} gaps in the KV events of {name} in an hour.",
            "The publisher dropped messages, and no replay had them. After each gap most of its cache is unknown.",
            (Evidence("gaps", state.n_gaps_1h, "", 3600.0, _GAPS),),
            (SettingsChange("At the engine: larger buffer_steps and hwm in --kv-events-config." if state.has_replay else
                            "Set replay_endpoint at the engine, and kv_events.replay here."),),
            f'{_GAPS}{{result="lost"}} of {name} stops')
    if state.n_malformed and not state.has_events:
        return Finding(
            KV_EVENTS_LOST, "warn", where, f"The KV events of {name} are not readable.",
            "Its messages have another form than vLLM's and SGLang's. " + until_then,
            (Evidence("unreadable messages and events", state.n_malformed, "", None, _EVENTS),),
            (SettingsChange("Remove kv_events, or check that its endpoint is that of the KV events."),),
            f'{_EVENTS}{{kind="applied"}} of {name} grows')
    if state.n_failed >= MIN_FAILED and not state.n_learned:
        return Finding(
            KV_EVENTS_LOST, "warn", where, "No prompt could be tokenized, so the KV events cannot be used.",
            "The index looks prompts up by their tokens, which /tokenize of the engines gives; none answered.",
            (Evidence("failed calls", state.n_failed, "", None, _TOKENIZED),),
            (SettingsChange("Let the gateway reach /tokenize at the root of base_url, or remove kv_events."),),
            f'{_TOKENIZED}{{result="learned"}} grows')
    return None
