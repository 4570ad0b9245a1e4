"""The address of a Redis server from its parts in a LiteLLM file."""

import re
from collections.abc import Mapping

from stayfast.settings.litellm_import.ledger import SourceNode
from stayfast.settings.litellm_import.scalars import SecretNames, as_reference, switch_of, variable_of

# LiteLLM's variables where its file has no address. An empty password is none.
USUAL = "redis://:${REDIS_PASSWORD:-}@${REDIS_HOST}:${REDIS_PORT:-6379}"
_SAFE = re.compile(r"[A-Za-z0-9_.-]+")
_URL = re.compile(r"rediss?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[0-9]{0,5})?")


def redis_url(parts: Mapping[str, SourceNode], secrets: SecretNames) -> str | None:
    """The URL for a settings file; None if a part is unusable. parts: url, host, port, username, password, db, ssl.

    Without url and host it is USUAL.
    """
    url = parts.get("url")
    if url is not None and url.text:
        for name, node in parts.items():
            if name in ("host", "port", "username", "password", "db", "ssl"):
                node.differ("nothing", "url applies")
        if variable_of(url.text) is None and _URL.fullmatch(url.text):
            return url.text
        return secrets.take_secret(url, "REDIS_URL", "the address of Redis")
    host = _plain(parts, "host")
    if host is None:
        return None if "host" in parts else USUAL
    port, user, db = _plain(parts, "port"), _plain(parts, "username"), _plain(parts, "db")
    password = parts.get("password")
    login = user or ""
    if password is not None and password.text:
        if variable_of(password.text) is not None:
            password.differ("the address of Redis", "write / @ # ? of the password as %2F %40 %23 %3F")
            login += f":{as_reference(password.text)}"
        else:
            login += f":{secrets.take_secret(password, 'REDIS_PASSWORD', 'the address of Redis')}"
    scheme = "rediss" if switch_of(parts.get("ssl")) else "redis"
    return f"{scheme}://{login + '@' if login else ''}{host}{':' + port if port else ''}{'/' + db if db else ''}"


def _plain(parts: Mapping[str, SourceNode], name: str) -> str | None:
    """A part as a reference, or as it is if it has only letters, digits and _ . -"""
    node = parts.get(name)
    if node is None or not node.text:
        return None
    if variable_of(node.text) is None and not _SAFE.fullmatch(node.text):
        node.refuse("no name or number that fits into an address")
        return None
    return as_reference(node.text)
