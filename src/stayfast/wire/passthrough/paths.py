"""Which upstream a path is passed to, and how its target is written there.

Problem: a proxy that compares paths as they are sent, and an upstream that decodes them, disagree about `/v1/%66iles`,
`/v1/images/..%2fadmin` or `/v1//files`; a client uses that to reach what the proxy withholds. Rule: a path is compared in
its canonical form (decoded until nothing changes, lower case, without path parameters), and sent as the client wrote it. A
path with a dot segment, an empty segment, a backslash or a control character in any of its decoded forms is rejected. The
longest prefix of whole segments decides. Source: RFC 3986, 5.2.4 and 6.2.2; CWE-22, CWE-436.
"""

from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from stayfast.core.errors import Rejected

ROOT = "/v1"
MOVABLE = ("/v1/files", "/v1/batches")  # of the gateway's own paths: these may be passed instead
OTHER = "other"
_MAX_DECODINGS = 4
# Second segments of OpenAI's and Anthropic's APIs and of engines, which are labels of metrics.
KNOWN = ("assistants", "audio", "batches", "chat", "containers", "conversations", "evals", "files", "fine_tuning", "images",
         "messages", "models", "moderations", "organization", "organizations", "projects", "realtime", "responses",
         "score", "skills", "threads", "tokenize", "uploads", "vector_stores", "videos")


def is_below(path: str, prefix: str) -> bool:
    """Whether a path is the prefix, or has it as its first segments."""
    return path == prefix or path.startswith(f"{prefix}/")


def is_movable(path: str) -> bool:
    return any(is_below(path, prefix) for prefix in MOVABLE)


def canonical_path(path: str) -> str:
    """The form in which a percent-encoded path is compared. Raises Rejected (400) for one that servers may read differently.
    """
    text = path
    for _ in range(_MAX_DECODINGS):
        _check_form(text)
        decoded = unquote_to_bytes(text).decode("latin-1")
        if decoded == text:
            return "/".join(part.split(";")[0] for part in text.lower().split("/")).rstrip("/")
        text = decoded
    raise _bad_path("is percent-encoded too often")


def _check_form(text: str) -> None:
    parts = text.replace("\\", "/").split("/")
    if any(part.split(";")[0] in (".", "..") for part in parts):
        raise _bad_path("contains a dot segment")
    if "" in parts[1:-1]:
        raise _bad_path("contains an empty segment")
    if "\\" in text or any(char < " " or char == "\x7f" for char in text):
        raise _bad_path("contains a backslash or a control character")


def _bad_path(why: str) -> Rejected:
    return Rejected(f"The path {why}, which is not passed to an upstream.", code="bad_path")


class PassedPaths:
    """Upstreams by prefix. Immutable."""

    __slots__ = ("_by_prefix", "_labels", "default")

    def __init__(self, default: str | None, by_prefix: Mapping[str, str]) -> None:
        """default: the upstream of all other paths; None: they are not passed."""
        self.default = default
        self._by_prefix = dict(by_prefix)
        self._labels = frozenset((*(f"{ROOT}/{name}" for name in KNOWN), *by_prefix))

    def find_named(self, canonical: str) -> str | None:
        """The upstream of the longest prefix, if any."""
        prefix = self._longest(canonical)
        return self._by_prefix[prefix] if prefix is not None else None

    def find(self, canonical: str) -> str | None:
        """The upstream of a path in its canonical form; None: it is not passed."""
        return self.find_named(canonical) or self.default

    def label(self, canonical: str) -> str:
        """The path as a metric label: its prefix in the settings, else its first two segments if they are known."""
        prefix = self._longest(canonical)
        if prefix is not None:
            return prefix
        family = "/".join(canonical.split("/")[:3])
        return family if family in self._labels else OTHER

    def _longest(self, canonical: str) -> str | None:
        prefix = canonical
        while prefix and prefix not in self._by_prefix:
            prefix = prefix.rpartition("/")[0]
        return prefix or None

    def __repr__(self) -> str:
        return f"<PassedPaths: {self.default or 'none'}, {self._by_prefix}>"


def upstream_target(base_path: str, path: str, query: bytes) -> str:
    """The request target at an upstream: its base path instead of /v1. `path`: under /v1, percent-encoded."""
    target = base_path + path[len(ROOT):]
    return f"{target}?{query.decode('latin-1')}" if query else target
