"""Tokens of Google, by google-auth (extra `google`). Imported only if configured.

A file's `type` selects the class; classes that run a program are not among them.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import google.auth
import google.auth.aws
import google.auth.compute_engine
import google.auth.identity_pool
import google.auth.impersonated_credentials
import google.oauth2.credentials
import google.oauth2.service_account
import requests
from google.auth.transport.requests import Request

from stayfast.upstreams.credentials.fetching import HTTP_S, silence_logger
from stayfast.upstreams.credentials.renewed import IssuedCredential, RenewalFailed

_SERVICE_ACCOUNT: Any = google.oauth2.service_account.Credentials  # without types
_USER: Any = google.oauth2.credentials.Credentials
_IMPERSONATED: Any = google.auth.impersonated_credentials.Credentials
_MACHINE: Any = google.auth.compute_engine.Credentials
_AWS_SUBJECT = "urn:ietf:params:aws:token-type:aws4_request"


class GoogleIdentity(NamedTuple):
    """Which identity to use: that of a file, else the machine's by `is_managed`, else the application default one."""

    scope: str
    file: str = ""
    is_managed: bool = False


def make_fetch(identity: GoogleIdentity) -> Callable[[], IssuedCredential[str]]:
    """A function that fetches a token, and blocks."""
    silence_logger("google")

    def fetch() -> IssuedCredential[str]:
        with requests.Session() as session:
            request = Request(session)
            credentials = _open_credentials(identity, request)
            credentials.refresh(partial(request, timeout=HTTP_S))
        expiry = credentials.expiry  # UTC, without a zone
        return IssuedCredential(credentials.token, inf if expiry is None else _timestamp(expiry))

    return fetch


def _timestamp(expiry: datetime) -> float:
    return (expiry if expiry.tzinfo is not None else expiry.replace(tzinfo=UTC)).timestamp()


def _open_credentials(identity: GoogleIdentity, request: Request) -> Any:
    scopes = [identity.scope]
    if identity.file:
        return _of_file(json.loads(Path(identity.file).read_text(encoding="utf-8")), scopes)
    if identity.is_managed:
        return _MACHINE(scopes=scopes)
    credentials, _ = google.auth.default(scopes=scopes, request=request)
    return credentials


def _of_file(info: Any, scopes: list[str]) -> Any:
    kind = info.get("type") if isinstance(info, dict) else None
    if kind == "service_account":
        return _SERVICE_ACCOUNT.from_service_account_info(info, scopes=scopes)
    if kind == "external_account":
        pool = google.auth.aws if info.get("subject_token_type") == _AWS_SUBJECT else google.auth.identity_pool
        return pool.Credentials.from_info(info, scopes=scopes)
    if kind == "authorized_user":
        return _USER.from_authorized_user_info(info, scopes=scopes)
    if kind == "impersonated_service_account":
        return _IMPERSONATED.from_impersonated_service_account_info(info, scopes=scopes)
    raise RenewalFailed("the file's `type` must be service_account, external_account, authorized_user or "
                        "impersonated_service_account")
