"""What a request holds. Released once, in reverse, without awaiting: so no cancellation can come between."""

from collections.abc import Callable


class Held:
    """A stack of releases. One task owns it; `hand_over` moves the whole stack to whoever outlives the story."""

    __slots__ = ("_releases",)

    def __init__(self) -> None:
        self._releases: list[Callable[[], None]] = []

    def add(self, release: Callable[[], None]) -> None:
        """Remember how to give something back."""
        self._releases.append(release)

    def hand_over(self) -> "Held":
        """Everything held so far, with a new owner; this one then holds nothing."""
        taken = Held()
        taken._releases, self._releases = self._releases, []
        return taken

    def release(self) -> None:
        """Give everything back, last first; each exactly once, even if one of them raises."""
        while self._releases:
            give_back = self._releases.pop()
            try:
                give_back()
            except BaseException:
                self.release()
                raise

    def __len__(self) -> int:
        return len(self._releases)

    def __repr__(self) -> str:
        return f"<Held {len(self._releases)}>"
