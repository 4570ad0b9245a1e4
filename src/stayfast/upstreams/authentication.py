"""How requests to an upstream are authenticated, where a constant header is not enough.

Problem: tokens of Entra, Google and AWS expire, and renewing one takes a network call; a signature covers the whole request.
Rule: a `CredentialSource` is renewed in the background and read without waiting; an `Authenticator` turns what it holds into
headers of one request.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

Credential_co = TypeVar("Credential_co", covariant=True)


class AwsKeys(NamedTuple):
    """Keys of an AWS identity. `session_token`: of temporary ones, else None."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "AwsKeys(***)"


class CredentialSource(Protocol[Credential_co]):
    """A credential that expires, renewed off the path of requests. Task-safe."""

    def current(self) -> Credential_co:
        """The credential in force; never waits. Raises CredentialMissing if there is none yet, or if the last has ended."""


class CredentialMissing(Exception):
    """There is no valid credential. The message has the cause and what to do, and quotes no secret."""


class Authenticator(Protocol):
    """Makes the headers that authenticate one request. Task-safe; never waits."""

    def headers_for(self, method: str, target: str, body: bytes, now_wall: float) -> Sequence[tuple[str, str]]:
        """target: the path and query that are sent. now_wall: seconds since the epoch. Raises CredentialMissing."""

    def secrets(self) -> Sequence[str]:
        """What errors of the upstream must not quote; the same object until it changes."""
