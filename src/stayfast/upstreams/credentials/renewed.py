"""A credential that is renewed in the background, and the header of those that are bearer tokens.

The old credential stays in force until its own end, so a failed renewal is no request's error while it holds. Ends are
instants of the wall clock, as issuers give them; the wait for the next renewal is checked every minute, because the loop's
clock stands still while a machine is suspended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Generic, NamedTuple, TypeVar

from stayfast.core.clock import Clock, Rng
from stayfast.core.credentials import CredentialRenewalFailed, CredentialRenewed
from stayfast.core.events import Sink
from stayfast.policy.credentials.renewal import RenewalConfig, wait_after_failure_s, wait_before_renewal_s
from stayfast.policy.findings.credentials import RenewalState
from stayfast.upstreams.authentication import CredentialMissing, CredentialSource

Credential = TypeVar("Credential")
MAX_SLEEP_S = 60.0
FETCH_S = 20.0  # limit of one call of the issuer


class RenewalFailed(Exception):
    """A renewal failed. The message has the cause in words, and no secret."""


class IssuedCredential(NamedTuple, Generic[Credential]):
    """What an issuer returned. ends_at: seconds since the epoch, inf: it has no end."""

    credential: Credential
    ends_at: float

    def __repr__(self) -> str:
        return f"<IssuedCredential until {self.ends_at:.0f}>"


class RenewedCredential(Generic[Credential]):
    """The credential of one upstream: a `CredentialSource`. Belongs to one loop; `run` renews it until it is cancelled."""

    def __init__(self, upstream: str, kind: str, fetch: Callable[[], Awaitable[IssuedCredential[Credential]]], *,
                 clock: Clock, rng: Rng, sink: Sink, config: RenewalConfig | None = None) -> None:
        """fetch: raises RenewalFailed."""
        self.upstream = upstream
        self.kind = kind
        self._fetch = fetch
        self._clock = clock
        self._rng = rng
        self._sink = sink
        self._config = config or RenewalConfig()
        self._held: IssuedCredential[Credential] | None = None
        self._n_failed = 0  # in a row
        self._why = "the first one was not fetched yet"
        self._failing_since: float | None = None
        self._was_tried = asyncio.Event()

    def current(self) -> Credential:
        """The credential in force. Raises CredentialMissing."""
        held = self._held
        if held is not None and self._clock.wall() < held.ends_at:
            return held.credential
        raise CredentialMissing(f"{self._why}; see `credentials` of the upstream in the settings, and docs/credentials.md")

    @property
    def state(self) -> RenewalState:
        return RenewalState(self.upstream, self.kind, self._left_s(), self._n_failed, self._why if self._n_failed else "",
                            self._failing_since)

    def missing(self) -> str | None:
        """Why there is no valid credential; None: there is one."""
        return None if self._left_s() > 0 else self._why

    async def wait_until_tried(self) -> None:
        """Return once the first fetch has succeeded or failed."""
        await self._was_tried.wait()

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            wait_s = await self.renew()
            self._was_tried.set()
            due_at = self._clock.wall() + wait_s
            while True:
                left_s = due_at - self._clock.wall()
                if left_s <= 0:
                    break
                await asyncio.sleep(min(MAX_SLEEP_S, left_s))

    async def renew(self) -> float:
        """Fetch once, in at most FETCH_S; returns the seconds to wait before the next time."""
        try:
            async with asyncio.timeout(FETCH_S):
                self._held = await self._fetch()
        except RenewalFailed as failed:
            return self._record_failure(str(failed))
        except TimeoutError:
            return self._record_failure(f"the issuer did not respond in {FETCH_S:g} s")
        left_s = self._left_s()
        if left_s <= 0:
            return self._record_failure("the issuer returned a credential that has ended: is the machine's clock correct?")
        self._n_failed, self._failing_since, self._why = 0, None, "the last one has ended"
        self._sink.emit(CredentialRenewed(self.upstream, self.kind, _whole(left_s)))
        return wait_before_renewal_s(self._config, left_s, self._rng)

    def _record_failure(self, why: str) -> float:
        self._n_failed += 1
        self._why = why
        if self._failing_since is None:
            self._failing_since = self._clock.wall()
        self._sink.emit(CredentialRenewalFailed(self.upstream, self.kind, why, self._n_failed, _whole(self._left_s())))
        return wait_after_failure_s(self._config, self._n_failed, self._rng)

    def _left_s(self) -> float:
        return max(0.0, self._held.ends_at - self._clock.wall()) if self._held is not None else 0.0

    def __repr__(self) -> str:
        return f"<RenewedCredential {self.kind} of {self.upstream}>"


def _whole(seconds: float) -> int | None:
    return None if seconds == inf else int(seconds)


class BearerToken:
    """An `Authenticator` that sends a token as `authorization: Bearer`. Its header is made once for each token."""

    def __init__(self, source: CredentialSource[str]) -> None:
        self._source = source
        self._token = ""
        self._headers: tuple[tuple[str, str], ...] = ()
        self._secrets: tuple[str, ...] = ()

    def headers_for(self, method: str, target: str, body: bytes, now_wall: float) -> Sequence[tuple[str, str]]:
        """Raises CredentialMissing."""
        token = self._source.current()
        if token is not self._token:
            self._secrets = tuple(filter(None, (token, self._token)))  # answers to the former may still arrive
            self._token, self._headers = token, (("authorization", f"Bearer {token}"),)
        return self._headers

    def secrets(self) -> Sequence[str]:
        return self._secrets

    def __repr__(self) -> str:
        return f"<BearerToken from {self._source!r}>"
