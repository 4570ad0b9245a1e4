"""The upstreams of one set of settings, by name."""

from collections.abc import Iterable, Iterator

from stayfast.upstreams.state.upstream_state import UpstreamState


class Registry:
    """Upstreams by name, fixed for one set of settings. A reload reuses the states of unchanged upstreams."""

    __slots__ = ("_members",)

    def __init__(self, members: Iterable[UpstreamState]) -> None:
        self._members = {member.upstream.name: member for member in members}

    def __getitem__(self, name: str) -> UpstreamState:
        return self._members[name]

    def __iter__(self) -> Iterator[UpstreamState]:
        return iter(self._members.values())

    @property
    def has_proven(self) -> bool:
        """Whether at least one upstream has sent a token; readiness requires it."""
        return any(member.is_proven for member in self._members.values())

    def close(self, successor: "Registry | None" = None) -> None:
        """Close idle connections, except of upstreams that `successor` reuses; those in use close with their streams."""
        for name, member in self._members.items():
            if successor is None or successor._members.get(name) is not member:
                member.upstream.close()
