"""Renewal of credentials, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from random import Random
from typing import Any

import pytest

from stayfast.core.credentials import CredentialRenewalFailed, CredentialRenewed
from stayfast.core.events import Fact
from stayfast.testing import SimLoop, run
from stayfast.upstreams.authentication import CredentialMissing
from stayfast.upstreams.credentials.renewed import (
    FETCH_S,
    BearerToken,
    IssuedCredential,
    RenewalFailed,
    RenewedCredential,
)


class Issuer:
    """An issuer of tokens with a life of an hour, that can fail or hang."""

    def __init__(self, loop: SimLoop, life_s: float = 3600.0) -> None:
        self.loop, self.life_s = loop, life_s
        self.n, self.calls_at = 0, list[float]()
        self.why, self.hangs = "", False
        self.facts: list[Fact] = []

    async def fetch(self) -> IssuedCredential[str]:
        self.calls_at.append(self.loop.now())
        if self.hangs:
            await asyncio.sleep(1e6)
        if self.why:
            raise RenewalFailed(self.why)
        self.n += 1
        return IssuedCredential(f"token-{self.n}", self.loop.wall() + self.life_s)

    def emit(self, fact: Fact) -> None:
        self.facts.append(fact)

    def failures(self) -> list[CredentialRenewalFailed]:
        return [fact for fact in self.facts if isinstance(fact, CredentialRenewalFailed)]


Story = Callable[[Issuer, RenewedCredential[str]], Coroutine[Any, Any, None]]


def play(story: Story, life_s: float = 3600.0, *, why: str = "") -> None:
    """Run a story while the credential is renewed in the background."""
    async def main(loop: SimLoop) -> None:
        issuer = Issuer(loop, life_s)
        issuer.why = why
        source = RenewedCredential("az", "entra", issuer.fetch, clock=loop, rng=Random(3), sink=issuer)
        task = loop.create_task(source.run())
        try:
            await story(issuer, source)
        finally:
            task.cancel()
    run(main)


def test_credential_is_renewed_at_four_fifths_of_its_life() -> None:
    async def story(issuer: Issuer, source: RenewedCredential[str]) -> None:
        with pytest.raises(CredentialMissing, match="not fetched yet"):
            source.current()
        await source.wait_until_tried()
        assert source.current() == "token-1"
        await asyncio.sleep(0.7 * 3600)
        assert source.current() == "token-1"
        await asyncio.sleep(0.1 * 3600)
        assert source.current() == "token-2"
        assert [type(fact) for fact in issuer.facts] == [CredentialRenewed] * 2
        assert source.missing() is None
    play(story)


def test_credential_stays_in_force_to_its_end_while_renewals_fail() -> None:
    async def story(issuer: Issuer, source: RenewedCredential[str]) -> None:
        await source.wait_until_tried()
        issuer.why = "status 503"
        await asyncio.sleep(3599)
        assert source.current() == "token-1"
        assert source.state.n_failed > 3
        assert source.state.left_s == pytest.approx(1.0)
        assert [fact.left_s is not None and fact.left_s > 0 for fact in issuer.failures()] == [True] * source.state.n_failed
        await asyncio.sleep(2)
        with pytest.raises(CredentialMissing, match=r"status 503.*docs/credentials\.md"):
            source.current()
        assert source.missing() == "status 503"
        issuer.why = ""
        await asyncio.sleep(61)
        assert source.current() == "token-2"
        assert (source.state.n_failed, source.state.why, source.state.since) == (0, "", None)
    play(story)


def test_failing_issuer_is_called_at_most_once_a_minute() -> None:
    async def story(issuer: Issuer, source: RenewedCredential[str]) -> None:
        await asyncio.sleep(3600)
        assert 60 <= len(issuer.calls_at) <= 130
        gaps = [after - before for before, after in zip(issuer.calls_at, issuer.calls_at[1:], strict=False)]
        assert gaps[0] <= 1.0
        assert max(gaps) <= 60.0
        assert min(gaps[8:]) >= 30.0
    play(story, why="status 401")


def test_hanging_issuer_is_given_up_and_called_again() -> None:
    async def story(issuer: Issuer, source: RenewedCredential[str]) -> None:
        await source.wait_until_tried()
        issuer.hangs = True
        await asyncio.sleep(0.8 * 3600 + FETCH_S + 1)
        assert "did not respond in 20 s" in source.state.why
        assert source.current() == "token-1"
        issuer.hangs = False
        await asyncio.sleep(60)
        assert source.current() == "token-2"
    play(story)


def test_credential_that_has_ended_already_is_a_failure() -> None:
    """The clock of the machine is wrong, or the issuer's."""
    async def story(issuer: Issuer, source: RenewedCredential[str]) -> None:
        await source.wait_until_tried()
        assert "machine's clock" in str(source.missing())
        assert len(issuer.calls_at) == 1
    play(story, life_s=-5.0)


def test_credential_without_an_end_is_read_again() -> None:
    async def story(issuer: Issuer, source: RenewedCredential[str]) -> None:
        await asyncio.sleep(3600)
        assert 4 <= issuer.n <= 5
        assert source.state.left_s == inf
        assert isinstance(issuer.facts[0], CredentialRenewed)
        assert issuer.facts[0].left_s is None
    play(story, life_s=inf)


def test_bearer_token_header_is_made_once_for_each_token() -> None:
    async def story(issuer: Issuer, source: RenewedCredential[str]) -> None:
        bearer = BearerToken(source)
        await source.wait_until_tried()
        headers = bearer.headers_for("POST", "/", b"", 0.0)
        assert headers == (("authorization", "Bearer token-1"),)
        assert bearer.headers_for("POST", "/other", b"x", 1.0) is headers
        assert bearer.secrets() is bearer.secrets()
        await asyncio.sleep(3000)
        assert bearer.headers_for("POST", "/", b"", 0.0) == (("authorization", "Bearer token-2"),)
        assert bearer.secrets() == ("token-2", "token-1")  # an answer to the former may still quote it
    play(story)


def test_nothing_prints_a_token() -> None:
    async def story(issuer: Issuer, source: RenewedCredential[str]) -> None:
        await source.wait_until_tried()
        bearer = BearerToken(source)
        bearer.headers_for("POST", "/", b"", 0.0)
        assert "token-" not in f"{source!r} {bearer!r} {IssuedCredential('token-9', 1.0)!r} {source.state} {issuer.facts}"
    play(story)
