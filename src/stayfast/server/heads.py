"""Heads known by their bytes: what was found out about a head serves every request that begins with the same one.

A client sends one head again and again; only its content-length differs, and perhaps an id. To parse it costs a score of
functions, each of which comes from main memory where requests are rare. So a head that the parser took whole, and that was
let in, is remembered with what was found: path, headers, tenant. A request is taken without the parser only if

- all its bytes up to the body are those of such a head, but for the values of `_VARYING` headers;
- its content-length is digits that do not begin with 0, and no more than a body may have: after the same bytes the parser
  would have gone on in the same state with another number, and nothing hangs on that but the body's length;
- the other values that vary are visible ASCII, with spaces inside at most, which the parser takes as it comes, and the
  fields hold them as sent;
- the settings that it was let in by are still those in force.

What says `close`, `expect`, `upgrade`, HTTP/1.0 or a transfer-encoding, and what was refused, is never remembered. Before
a head is kept it is read back, and must give what the parser gave. Heads hold keys: they are compared in constant time,
found by a hash of the whole, never shown, and few. After a reload none is read any more; the bytes go when another head is
learned, and those of a connection's last one with its next request.
"""

import re
from hmac import compare_digest

from stayfast.core.types import Api
from stayfast.server.auth import Keys
from stayfast.server.backend import Current
from stayfast.server.inbound import Inbound

MOST_HEADS = 256
MOST_HEAD_BYTES = 4096
_MOST_VALUE_BYTES = 256
_LENGTH = b"content-length"
_VARYING = (_LENGTH, b"x-request-id", b"traceparent", b"tracestate", b"idempotency-key", b"x-session-id",
            b"x-correlation-id", b"x-client-request-id", b"x-amzn-trace-id", b"x-cloud-trace-context", b"x-b3-traceid",
            b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled", b"b3", b"baggage", b"sentry-trace", b"x-datadog-trace-id",
            b"x-datadog-parent-id", b"x-datadog-sampling-priority", b"x-datadog-tags", b"x-forwarded-for", b"x-real-ip")
_VARIES = re.compile(rb"\r\n(%b):[ \t]*([!-~]+(?: +[!-~]+)*)(?=\r\n)" % b"|".join(_VARYING), re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_VISIBLE = bytes(range(0x20, 0x7F))
_SPACE = ord(" ")
_ZERO = ord("0")
_END = b"\r\n\r\n"


class Head:
    """One head, and what was found out about it. Never changes, and neither do the fields that it hands out."""

    __slots__ = ("_fields", "_keys", "_tail", "_varying", "api", "is_used", "n_headers", "path", "patience_s", "query",
                 "tenant")

    def __init__(self, text: bytes, inbound: Inbound, patience_s: float, keys: Keys) -> None:
        varying, at = [], 0
        for found in _VARIES.finditer(text):
            varying.append((text[at:found.start(2)], found[1].lower()))
            at = found.end(2)
        self._varying = tuple(varying)  # the bytes before each value that varies, and its name
        self._tail = text[at:]
        self._fields = inbound.fields
        self._keys = keys
        self.n_headers = text.count(b"\r\n") - 2
        self.path = inbound.path
        self.query = inbound.query
        self.api: Api | None = inbound.api
        self.tenant = inbound.tenant
        self.patience_s = patience_s
        self.is_used = False  # since it was last old enough to go

    def read(self, data: bytes, keys: Keys) -> tuple[int, int, dict[bytes, bytes]] | None:
        """Where the head of `data` ends, how long its body is, and its fields; None where it is another head, or was let in
        by other keys than `keys`.
        """
        if keys is not self._keys:
            return None
        at, n_body, fields = 0, 0, self._fields
        for before, name in self._varying:
            begin = at + len(before)
            if not compare_digest(data[at:begin], before):
                return None
            at = data.find(b"\r", begin, begin + _MOST_VALUE_BYTES)
            if at <= begin:
                return None
            value = data[begin:at]
            if name == _LENGTH:
                if not value.isdigit() or value[0] == _ZERO:
                    return None
                n_body = int(value)
            elif value.translate(None, _VISIBLE) or value[0] == _SPACE or value[-1] == _SPACE:
                return None
            elif name in fields:
                fields = {**fields, name: value}
        end = at + len(self._tail)
        return (end, n_body, fields) if compare_digest(data[at:end], self._tail) else None

    def is_like(self, data: bytes, inbound: Inbound, keys: Keys) -> bool:
        """Whether it reads from `data` what the parser read from it: one request, whole or cut in its body."""
        found = self.read(data, keys)
        return (found is not None and any(name == _LENGTH for _, name in self._varying)
                and len(data) - found[0] <= found[1] and found[2] == inbound.fields)

    def __repr__(self) -> str:
        return f"<Head of {self.path}, {self.n_headers} headers>"


class Heads:
    """The heads that one loop remembers, of all its connections. Task-safe."""

    __slots__ = ("_keys", "_known", "current", "is_open")

    def __init__(self, current: Current) -> None:
        self.current = current
        self.is_open = True
        self._keys = current.keys
        self._known: dict[int, Head] = {}

    def find(self, data: bytes) -> Head | None:
        """The head that `data` may begin with: reading it says whether it does."""
        end = data.find(_END, 0, MOST_HEAD_BYTES)
        head = self._known.get(_index(data[:end + 2])) if end > 0 else None
        if head is not None:
            head.is_used = True
        return head

    def learn(self, data: bytes, inbound: Inbound, patience_s: float) -> Head | None:
        """Remember the head that `data` begins with, parsed and let in as `inbound`; None where it is not plain enough."""
        end = data.find(_END, 0, MOST_HEAD_BYTES)
        if end < 0 or inbound.method != "POST" or not data.startswith(b"POST "):
            return None
        text, keys = data[:end + len(_END)], self.current.keys
        head = Head(text, inbound, patience_s, keys)
        if _UPGRADE.search(text) or not head.is_like(data, inbound, keys):
            return None
        known = self._known
        if keys is not self._keys:
            known.clear()
            self._keys = keys
        index = _index(data[:end + 2])
        while len(known) >= MOST_HEADS and index not in known:
            oldest = next(iter(known))
            old = known.pop(oldest)
            if old.is_used:
                old.is_used = False
                known[oldest] = old
        known[index] = head
        return head

    def close(self) -> None:
        """Know none from here on."""
        self.is_open = False
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"<Heads: {len(self._known)} known>"


def _index(text: bytes) -> int:
    """The same for heads that differ in what varies only, for `text` that ends with a line. Nobody outside can tell it."""
    return hash(_VARIES.sub(b"", text))
