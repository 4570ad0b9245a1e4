"""What the histories of all routes have done: counters, and the figures of `GET /admin/conversations`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stayfast.compose.context import history_steps
from stayfast.observe.metrics.counters import Samples
from stayfast.observe.metrics.definitions import (
    HISTORY_REQUESTS,
    HISTORY_RULES,
    HISTORY_SAVED_TOKENS,
    HISTORY_SUMMARIES,
)
from stayfast.pipeline.plan import Route


class HistoryFigures(msgspec.Struct, frozen=True):
    """One worker's history of one route. n_stored, n_bytes: summaries in the worker's own memory; None: in a store that
    holds other answers too.
    """

    mode: str
    store: str
    n_running: int
    n_stored: int | None
    n_bytes: int | None
    requests: dict[str, int]
    summaries: dict[str, int]
    rules: dict[str, int]
    n_saved_tokens: int


def history_counts(routes: Mapping[str, Route]) -> Samples:
    """Counters of long histories."""
    states = [(name, step.state) for name, step in history_steps(routes)]
    return {HISTORY_REQUESTS.name: [((name, what), n) for name, state in states for what, n in state.requests.items()],
            HISTORY_SUMMARIES.name: [((name, what), n) for name, state in states for what, n in state.summaries.items()],
            HISTORY_RULES.name: [((name, what), n) for name, state in states for what, n in state.rules.items()],
            HISTORY_SAVED_TOKENS.name: [((name,), state.n_saved_tokens) for name, state in states]}


def read_figures(routes: Mapping[str, Route]) -> dict[str, HistoryFigures]:
    """One worker's figures by route."""
    found = {}
    for name, step in history_steps(routes):
        state, is_own = step.state, not step.config.store
        found[name] = HistoryFigures(
            step.config.mode, step.config.store, len(state.jobs), step.store.n_entries if is_own else None,
            step.store.n_bytes if is_own else None, dict(state.requests), dict(state.summaries), dict(state.rules),
            state.n_saved_tokens)
    return found


def encode_figures(workers: Iterable[Mapping[str, HistoryFigures]]) -> bytes:
    """The figures of all workers, as JSON. No text of any conversation."""
    by_route: dict[str, list[HistoryFigures]] = {}
    for figures in workers:
        for name, one in figures.items():
            by_route.setdefault(name, []).append(one)
    return msgspec.json.encode({"object": "list", "data": [_merge(name, every) for name, every in by_route.items()]})


def merge_deleted(deleted: Sequence[Mapping[str, Any]]) -> bytes | None:
    """The results of purges as one, as JSON; None: nothing was deleted, and all replied."""
    whole = {"deleted": sum(one["forgotten"] for one in deleted),
             "gone": sorted({why for one in deleted for why in one["gone"]}),
             "unconfirmed": sorted({name for one in deleted for name in one.get("unconfirmed", ())})}
    return msgspec.json.encode(whole) if any(whole.values()) else None


def _merge(name: str, every: list[HistoryFigures]) -> dict[str, Any]:
    first = every[0]
    return {"route": name, "mode": first.mode, "store": first.store or None,
            "summaries_in_memory": None if first.n_stored is None else sum(one.n_stored or 0 for one in every),
            "bytes_in_memory": None if first.n_bytes is None else sum(one.n_bytes or 0 for one in every),
            "running": sum(one.n_running for one in every), "saved_tokens": sum(one.n_saved_tokens for one in every),
            "requests": _add(one.requests for one in every), "summaries": _add(one.summaries for one in every),
            "refused_by_rule": _add(one.rules for one in every)}


def _add(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    whole: dict[str, int] = {}
    for one in counts:
        for what, n in one.items():
            whole[what] = whole.get(what, 0) + n
    return whole
