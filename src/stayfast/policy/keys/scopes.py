"""Scopes of a key: which routes it may call, and whether it may read metrics or administer the gateway.

Problem: a key that leaks is worth what it may do. Rule: a key may do what one of its scopes names, and nothing else.

    routes:NAME,PATTERN    requests to models with such a name; `*` in a pattern stands for any characters, also for none
    metrics                GET /metrics
    admin                  the admin endpoints and the page, keys included

    allowed(model) = some pattern of some `routes` scope matches the whole name, in the case in which it is written

A key without scopes has `routes:*`. `admin` includes `metrics`, and no routes: a key of an operator's script needs none.
Source: the glob of fnmatch(3) with `*` alone, matched without backtracking beyond the last `*` (Kirk J. Krauss, 2008), so
that a pattern of n and a name of m characters cost at most n * m steps.
When wrong: a pattern matches the name that the client sends, not the one at the upstream; a route that sends long prompts to
another route, or falls back to one, does so for every key.
"""

from collections.abc import Iterable
from functools import lru_cache

import msgspec

ADMIN, METRICS, ROUTES = "admin", "metrics", "routes"
ANY_ROUTE = "*"
DEFAULT_SCOPES = ("routes:*",)
MAX_PATTERNS = 100
MAX_PATTERN_CHARS = 128
FORM = "`admin`, `metrics` or `routes:NAME,PATTERN`"


class KeyScopes(msgspec.Struct, frozen=True):
    """What a key may do."""

    routes: tuple[str, ...] = ()
    is_admin: bool = False
    may_read_metrics: bool = False

    def allows_route(self, model: str) -> bool:
        """Whether the key may call a model by this name."""
        return _known(self.routes, model) if len(model) <= MAX_PATTERN_CHARS else _matches_any(self.routes, model)

    @property
    def allows_all_routes(self) -> bool:
        return ANY_ROUTE in self.routes


def _matches_any(patterns: tuple[str, ...], model: str) -> bool:
    return any(matches_pattern(pattern, model) for pattern in patterns)


_known = lru_cache(maxsize=4096)(_matches_any)  # not for long names, which would take memory


ALL_ROUTES = KeyScopes((ANY_ROUTE,))
EVERYTHING = KeyScopes((ANY_ROUTE,), is_admin=True, may_read_metrics=True)


def normalize_scopes(texts: Iterable[str]) -> tuple[str, ...]:
    """Scopes in one form: sorted, each once, all routes in one. Empty: the default. Raises ValueError."""
    given = [text.strip() for text in texts]
    if not given:
        return DEFAULT_SCOPES
    words: set[str] = set()
    patterns: dict[str, None] = {}
    for text in given:
        word, has_names, names = text.partition(":")
        if word == ROUTES and has_names:
            patterns |= dict.fromkeys(_split_patterns(names))
        elif text in (ADMIN, METRICS):
            words.add(text)
        else:
            raise ValueError(f"{text[:64]!r} is no scope: it must be {FORM}")
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"a key may have {MAX_PATTERNS} names and patterns of routes, not {len(patterns)}")
    routes = [f"{ROUTES}:{','.join([ANY_ROUTE] if ANY_ROUTE in patterns else sorted(patterns))}"] if patterns else []
    return (*sorted(words), *routes)


def _split_patterns(names: str) -> list[str]:
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if not name or len(name) > MAX_PATTERN_CHARS or not name.isprintable():
            raise ValueError(f"{name[:64]!r} is no name or pattern of a route: 1 to {MAX_PATTERN_CHARS} visible characters")
    return found


@lru_cache(maxsize=4096)
def compile_scopes(scopes: tuple[str, ...]) -> KeyScopes:
    """The rights of scopes in the form of `normalize_scopes`. A word of a later version grants nothing."""
    patterns = [name for scope in scopes if scope.startswith(f"{ROUTES}:") for name in scope[len(ROUTES) + 1:].split(",")]
    return KeyScopes(tuple(patterns), ADMIN in scopes, ADMIN in scopes or METRICS in scopes)


def matches_pattern(pattern: str, name: str) -> bool:
    """Whether a pattern, in which `*` stands for any characters, matches the whole name."""
    at = start = 0
    star = -1  # of the last `*`; `start` is where its text ends for now
    for_end = len(pattern)
    n = 0
    while n < len(name):
        if at < for_end and pattern[at] == ANY_ROUTE:
            star, start, at = at, n, at + 1
        elif at < for_end and pattern[at] == name[n]:
            at, n = at + 1, n + 1
        elif star >= 0:
            start += 1
            at, n = star + 1, start
        else:
            return False
    return all(char == ANY_ROUTE for char in pattern[at:])
