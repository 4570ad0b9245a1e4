"""Every upstream by name, with what is known of it now: requests in flight, failures in a row, whether it ever answered."""

from collections.abc import Iterable, Iterator

from stayfast.policy.balance import Load
from stayfast.upstreams.base import Upstream

N_FAILED_IN_ROW_IS_FAILING = 3
N_FAILED_IN_ROW_UNPROVEN = 10
QUICKEST_GROWS = 1.02  # with every answer: an upstream that has become slow for good is known as such after some dozens
BENCHED_S = 5.0  # after its last failure; then traffic tries it again, and its next failure benches it again


class Member:
    """One upstream and its live state. Changed only on the event loop, without awaiting."""

    __slots__ = ("is_proven", "last_failed_at", "n_failed_in_row", "n_in_flight", "quickest_s", "upstream")

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.n_in_flight = 0
        self.n_failed_in_row = 0
        self.last_failed_at = float("-inf")
        self.is_proven = False  # it answered with a real token, and has not failed many times in a row since
        self.quickest_s = 0.0  # about the shortest of its recent times to a first token; 0: none is known

    def load(self, now: float) -> Load:
        """What `policy.balance` wants to know."""
        is_failing = self.n_failed_in_row >= N_FAILED_IN_ROW_IS_FAILING and now - self.last_failed_at < BENCHED_S
        return Load(is_failing, self.n_in_flight)

    def enter(self) -> None:
        """A request starts."""
        self.n_in_flight += 1

    def leave(self) -> None:
        """A request is over, whatever its end."""
        self.n_in_flight -= 1

    def succeeded(self, ttft_s: float | None = None) -> None:
        """A real token came, `ttft_s` after it was asked for."""
        self.n_failed_in_row = 0
        self.is_proven = True
        if ttft_s is not None:
            forgiven_s = self.quickest_s * QUICKEST_GROWS
            self.quickest_s = ttft_s if ttft_s < forgiven_s or not forgiven_s else forgiven_s

    def failed(self, now: float) -> None:
        """An attempt failed by the upstream's fault."""
        self.n_failed_in_row += 1
        self.last_failed_at = now
        if self.n_failed_in_row >= N_FAILED_IN_ROW_UNPROVEN:
            self.is_proven = False

    def __repr__(self) -> str:
        state = "proven" if self.is_proven else "unproven"
        failed = f"{self.n_failed_in_row} failed in a row"
        return f"<Member {self.upstream.name}: {self.n_in_flight} in flight, {failed}, {state}>"


class Registry:
    """Name to member; fixed for the life of one set of settings. A reload hands on the members that did not change."""

    __slots__ = ("_members",)

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = {member.upstream.name: member for member in members}

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def has_proven(self) -> bool:
        """Whether at least one upstream answered with a real token: what readiness means."""
        return any(member.is_proven for member in self._members.values())

    def close(self, kept: "Registry | None" = None) -> None:
        """Close what is idle, but for the members that `kept` goes on with; what is in use closes with its stream."""
        for name, member in self._members.items():
            if kept is None or kept._members.get(name) is not member:
                member.upstream.close()
