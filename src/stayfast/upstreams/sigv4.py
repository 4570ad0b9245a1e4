"""AWS Signature Version 4 for requests whose body is in memory.

Problem: AWS accepts a request only with a signature over its method, path, host, date and body, made with a key that is
never sent. Rule: of the canonical request, hashed, with a key derived from the secret, the day, the region and the service:

    canonical = method, path, query, headers, their names, SHA-256 of the body: one a line
    text      = AWS4-HMAC-SHA256, the time, day/region/service/aws4_request, SHA-256 of canonical
    signature = HMAC(HMAC(HMAC(HMAC(HMAC("AWS4" + secret, day), region), service), "aws4_request"), text)

The path is encoded once more than it is sent, as all services but S3 require: a model's `%3A` becomes `%253A`.
Source: AWS General Reference, "Create a signed AWS API request"; tests compare it with botocore's own.
When wrong: a clock that is more than five minutes off; AWS then answers 403.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from hmac import digest
from time import gmtime, strftime
from urllib.parse import quote

from stayfast.upstreams.authentication import AwsKeys, CredentialMissing, CredentialSource

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_TARGETS = 1024  # paths in memory, one a model
_JSON = "application/json"  # the content type of all requests


class SigV4:
    """Signs the requests to one host, in one region, with the keys of a source. Task-safe."""

    __slots__ = ("_host", "_key", "_key_of", "_known_keys", "_region", "_secrets", "_service", "_source",
                 "_target")

    def __init__(self, source: CredentialSource[AwsKeys], region: str, host: str, service: str = "bedrock") -> None:
        """host: as in the request's header, with its port unless it is the usual one."""
        self._source = source
        self._region = region
        self._host = host
        self._service = service
        self._target = lru_cache(MAX_TARGETS)(canonical_target)
        self._key_of = ("", "")  # the secret and the day of the last signing key
        self._key = b""
        self._known_keys: AwsKeys | None = None  # those in _secrets
        self._secrets: tuple[str, ...] = ()

    def headers_for(self, method: str, target: str, body: bytes, now_wall: float) -> Sequence[tuple[str, str]]:
        keys = self._source.current()
        at = strftime("%Y%m%dT%H%M%SZ", gmtime(now_wall))
        scope = f"{at[:8]}/{self._region}/{self._service}/aws4_request"
        token_line, token_name = ("", "")
        if keys.session_token is not None:
            token_line, token_name = f"x-amz-security-token:{keys.session_token}\n", ";x-amz-security-token"
        names = f"content-type;host;x-amz-date{token_name}"
        canonical = (f"{method}\n{self._target(target)}\ncontent-type:{_JSON}\nhost:{self._host}\nx-amz-date:{at}\n"
                     f"{token_line}\n{names}\n{sha256(body).hexdigest()}")
        text = f"{ALGORITHM}\n{at}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        key = self._signing_key(keys.secret_access_key, at[:8])
        signature = digest(key, text.encode(), "sha256").hex()
        signed = f"{ALGORITHM} Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        headers = [("x-amz-date", at), ("authorization", signed)]
        if keys.session_token is not None:
            headers.append(("x-amz-security-token", keys.session_token))
        return headers

    def _signing_key(self, secret: str, day: str) -> bytes:
        """The key of one day; the same for all its requests."""
        if self._key_of != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = digest(key, part.encode(), "sha256")
            self._key, self._key_of = key, (secret, day)
        return self._key

    def secrets(self) -> Sequence[str]:
        try:
            keys = self._source.current()
        except CredentialMissing:
            return ()
        if keys is not self._known_keys:
            self._known_keys, self._secrets = keys, (keys.secret_access_key, keys.session_token or "")
        return self._secrets


def canonical_target(target: str) -> str:
    """The path and the query of the canonical request, on two lines."""
    path, _, query = target.partition("?")
    pairs = sorted(pair.partition("=")[::2] for pair in query.split("&")) if query else []
    return f"{quote(_normalize_path(path), safe='/~')}\n{'&'.join([f'{name}={value}' for name, value in pairs])}"


def _normalize_path(path: str) -> str:
    """The path without empty, `.` and `..` segments."""
    found: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del found[-1:]
        elif segment and segment != ".":
            found.append(segment)
    return "/" + "/".join(found) + ("/" if found and path.endswith("/") else "")
