"""A request to the simulator."""

from stayfast.http.server.parser import HttpRequest


class SimRequest(HttpRequest):
    """What the simulator reads of a request's head: who is asking."""

    READ_HEADERS = frozenset((b"authorization", b"x-api-key"))

    __slots__ = ()

    @property
    def key(self) -> bytes:
        """The API key that came with it; empty without one."""
        return self.fields.get(b"x-api-key") or self.fields.get(b"authorization", b"").removeprefix(b"Bearer ")
