"""Checks of the pass-through against the upstreams and the gateway's own paths."""

from collections.abc import Callable

from stayfast.server.paths import allowed_methods
from stayfast.settings.model import Settings
from stayfast.settings.problems import Path, quote, suggest
from stayfast.settings.upstreams import HttpUpstream
from stayfast.wire.passthrough.paths import MOVABLE, is_below, is_movable

PASSABLE = ("openai", "anthropic")


def check_pass_through(settings: Settings, add_problem: Callable[[Path, str], None]) -> None:
    """Unknown upstreams, kinds without such paths, and the gateway's own paths."""
    passed = settings.passthrough
    named: dict[Path, str] = {("passthrough", "paths", prefix): name for prefix, name in passed.paths.items()}
    if passed.upstream is not None:
        named["passthrough", "upstream"] = passed.upstream
    for path, name in named.items():
        why = _why_not(settings, name)
        if why is not None:
            add_problem(path, why)
    for prefix in passed.paths:
        if not is_movable(prefix) and (allowed_methods(prefix) or is_below(prefix, "/v1/jobs")):
            add_problem(("passthrough", "paths", prefix), "the gateway serves this path itself; only /v1/files and "
                        "/v1/batches can be passed instead")
    moved = [prefix for prefix in MOVABLE if prefix in passed.paths]
    if len(moved) == 1:
        other = next(prefix for prefix in MOVABLE if prefix not in passed.paths)
        add_problem(("passthrough", "paths", moved[0]), f"files and batches belong together: name {other} as well, because "
                    "batches read files of their own side")


def _why_not(settings: Settings, name: str) -> str | None:
    upstream = settings.upstreams.get(name)
    if upstream is None:
        return f"there is no upstream {quote(name)}{suggest(name, settings.upstreams)}"
    if not isinstance(upstream, HttpUpstream):
        return f"upstream {quote(name)} is of kind {upstream.kind}: requests are passed to endpoints on the network only"
    if upstream.kind not in PASSABLE:
        return (f"upstream {quote(name)} is of kind {upstream.kind}, whose paths are not those of OpenAI's or Anthropic's "
                "API (and a signature would cover the whole body, which is not held)")
    return None
