"""A gateway that is started by the command line and does nothing."""

from collections.abc import Callable, Sequence
from typing import Any

from stayfast.settings import Settings


class Compose:
    """In place of the running gateway: keeps what it was given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.settings: Settings | None = None
        self.given: dict[str, Any] = {}
        self._error = error

    def serve(self, settings: Settings, *, on_listening: Callable[[Sequence[tuple[str, int]]], None], **given: Any) -> int:
        """Pretend to serve."""
        self.settings, self.given = settings, given
        if self._error is not None:
            raise self._error
        on_listening([("127.0.0.1", 8090)])
        return 0
