"""Calls of the synchronous libraries of Entra, Google and AWS, each in a daemon thread.

A call that hangs cannot be ended. So its thread neither blocks the exit of the process, nor is another one started while it
runs. Errors of the libraries quote what an issuer answered, which may be a secret: only names, numbers and words of fixed
sets are taken from them.
"""

import asyncio
import logging
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic

from stayfast.upstreams.credentials.renewed import Credential, IssuedCredential, RenewalFailed

Fetch = Callable[[], IssuedCredential[Credential]]
FetchOnce = Callable[[], Coroutine[Any, Any, IssuedCredential[Credential]]]
HTTP_S = 8.0  # for libraries that have a limit for one HTTP request
_OAUTH_ERRORS = ("invalid_request", "invalid_client", "invalid_grant", "invalid_scope", "invalid_target", "invalid_token",
                 "unauthorized_client", "unsupported_grant_type", "access_denied", "temporarily_unavailable")
_CODES = re.compile(rf"\bAADSTS\d{{4,9}}\b|\b(?:{'|'.join(_OAUTH_ERRORS)})\b")
_AWS_CODE = re.compile(r"[A-Za-z.]{1,64}")
_MAX_CODES = 3


class FetchThread(threading.Thread, Generic[Credential]):
    """The thread of one fetch. As a context manager it sets an exception raised in it on the future."""

    def __init__(self, name: str, fetch: Fetch[Credential]) -> None:
        super().__init__(name=f"stayfast-credential-{name}", daemon=True)
        self.future: Future[IssuedCredential[Credential]] = Future()
        self._fetch = fetch

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            with self:
                self.future.set_result(self._fetch())

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> bool:
        if error is not None:
            self.future.set_exception(error)
        return True


def fetch_in_thread(name: str, fetch: Fetch[Credential]) -> FetchOnce[Credential]:
    """`fetch` as a coroutine function that raises RenewalFailed. name: of the upstream."""
    running: list[FetchThread[Credential]] = []

    async def fetch_once() -> IssuedCredential[Credential]:
        if running and running[0].is_alive():
            raise RenewalFailed("the last call of the issuer still hangs")
        running[:] = [FetchThread(name, fetch)]
        running[0].start()
        try:
            return await asyncio.wrap_future(running[0].future)
        except RenewalFailed:
            raise
        except Exception as error:
            raise RenewalFailed(explain_failure(error)) from error

    return fetch_once


def explain_failure(error: BaseException) -> str:
    """The cause in words, without anything that an issuer or a file may have put into the message."""
    details = list(dict.fromkeys(_known_words(error)))[:_MAX_CODES]
    return type(error).__name__ + (f" ({', '.join(details)})" if details else "")


def _known_words(error: BaseException | None) -> Iterator[str]:
    """System errors, HTTP statuses, and codes of OAuth, Entra and AWS, in an error and its causes."""
    n_left = 5
    while error is not None and n_left:
        if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
            yield os.strerror(error.errno)
        answer = getattr(error, "response", None)
        status = getattr(answer, "status_code", None)
        if isinstance(status, int):
            yield f"status {status}"
        code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None  # of botocore
        if isinstance(code, str) and _AWS_CODE.fullmatch(code):
            yield code
        yield from _CODES.findall(str(error))
        error, n_left = error.__cause__ or error.__context__, n_left - 1


def silence_logger(name: str) -> None:
    """Keep a library's warnings off standard error: they quote answers of the issuer."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
