"""What `stayfast serve` says once it listens: where it is, and a line to try that works as it stands."""

import json
from collections.abc import Sequence

from stayfast.settings import HttpUpstream, Settings

_PREFERRED = ("stayfast-tiny", "simulated")
_UNKNOWN = "MODEL"


def hello(settings: Settings, addresses: Sequence[tuple[str, int]], version: str) -> str:
    """A few lines for the terminal."""
    host, port = addresses[0] if addresses else (settings.server.host, settings.server.port)
    url = f"http://{_reachable(host)}:{port}/v1"
    bound = "" if _reachable(host).strip("[]") == host else f" ({host}, port {port})"
    lines = [f"stayfast {version} listens on {url}{bound}", f"models: {', '.join(settings.routes)}"]
    model = _model_to_try(settings)
    if model is not None:
        key = ' -H "authorization: Bearer $STAYFAST_KEY"' if settings.server.demands_key else ""
        body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]})
        lines += [f"try, with a model that your upstream has for {_UNKNOWN}:" if model == _UNKNOWN else "try:",
                  f"  curl -i -N {url}/chat/completions{key} -H 'content-type: application/json' -d '{body}'"]
    return "\n".join(lines)


def _reachable(host: str) -> str:
    """An address to call, from one to listen on."""
    if host == "0.0.0.0":  # noqa: S104 - it is read, not listened on
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def _model_to_try(settings: Settings) -> str | None:
    """A route that costs nothing if there is one, else the first that has a name; of "*" a name that its upstreams know."""
    named = [name for name in settings.routes if name != "*" and "'" not in name]
    for name in _PREFERRED:
        if name in named:
            return name
    paid = {name for name, upstream in settings.upstreams.items() if isinstance(upstream, HttpUpstream)}
    free = [name for name in named if not paid.intersection(settings.routes[name].upstreams)]
    if free or named or "*" not in settings.routes:
        return next(iter(free or named), None)
    behind = settings.routes["*"].upstreams
    known = [name for upstream in behind for name in settings.upstreams[upstream].models if "'" not in name]
    return next(iter(known), _UNKNOWN if paid.intersection(behind) else "any")
