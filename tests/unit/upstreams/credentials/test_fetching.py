"""Fetching in daemon threads, and what their errors become."""

import asyncio
import threading
from math import inf
from types import SimpleNamespace

import pytest

from stayfast.upstreams.credentials.fetching import explain_failure, fetch_in_thread
from stayfast.upstreams.credentials.renewed import IssuedCredential, RenewalFailed

SECRET = "marker-7f3a"


class AnsweredError(Exception):
    """An error with what the issuer answered, as libraries raise it."""

    def __init__(self, response: object) -> None:
        super().__init__(SECRET)
        self.response = response


def test_fetch_runs_outside_the_loop_in_a_daemon_thread() -> None:
    seen = list[threading.Thread]()

    def fetch() -> IssuedCredential[str]:
        seen.append(threading.current_thread())
        return IssuedCredential("t", inf)

    assert asyncio.run(fetch_in_thread("az", fetch)()) == IssuedCredential("t", inf)
    assert seen[0].daemon
    assert seen[0] is not threading.main_thread()


def test_fetch_that_hangs_is_not_started_twice() -> None:
    release, n = threading.Event(), list[int]()

    def fetch() -> IssuedCredential[str]:
        n.append(1)
        release.wait(20)
        return IssuedCredential("t", inf)

    async def main() -> None:
        fetched = fetch_in_thread("az", fetch)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await fetched()
        with pytest.raises(RenewalFailed, match="still hangs"):
            await fetched()
        release.set()
        while True:
            try:
                issued = await fetched()
            except RenewalFailed:
                await asyncio.sleep(0.01)
            else:
                assert issued.credential == "t"
                return

    asyncio.run(main())
    assert len(n) == 2


def test_failure_of_a_library_becomes_a_cause_without_its_text() -> None:
    def fetch() -> IssuedCredential[str]:
        raise ValueError(f"the issuer answered {SECRET}: AADSTS7000215 invalid_client")

    with pytest.raises(RenewalFailed) as failed:
        asyncio.run(fetch_in_thread("az", fetch)())
    assert str(failed.value) == "ValueError (AADSTS7000215, invalid_client)"


def test_failure_explains_itself_by_known_words_only() -> None:
    error = AnsweredError({"Error": {"Code": "AccessDenied", "Message": SECRET}})
    error.__cause__ = ConnectionRefusedError(111, "refused " + SECRET)
    assert explain_failure(error) == "AnsweredError (AccessDenied, Connection refused)"
    assert explain_failure(AnsweredError(SimpleNamespace(status_code=503))) == "AnsweredError (status 503)"
    assert explain_failure(FileNotFoundError(2, SECRET, SECRET)) == "FileNotFoundError (No such file or directory)"
