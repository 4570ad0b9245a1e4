"""The address of a PostgreSQL server, as the settings name it. Without the driver, so that settings can be checked."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

MAX_CONNECTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A URL, parsed. `dsn` may contain a password and is never shown."""

    dsn: str
    max_connections: int = MAX_CONNECTIONS
    is_pooled: bool = False  # a pooler stands between, which gives each transaction another connection of the server

    def __repr__(self) -> str:
        return "<PostgresAddress>"


def parse_postgres_url(url: str) -> PostgresAddress:
    """postgres://USER:PASSWORD@HOST:PORT/DATABASE?... with libpq's parameters, settings of the server such as
    `search_path=NAME`, and two of ours:

        connections=8        the most connections of this process
        pooler=transaction   for PgBouncer in its transaction mode: no prepared statements, no LISTEN, no settings

    Raises ValueError with a text that contains no password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("not a URL") from None  # its text may contain the password
    if not _has_valid_port(parts):
        raise ValueError("the port must be a number up to 65535")
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError("the scheme must be postgres or postgresql")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    pooler = options.pop("pooler", "")
    if pooler not in ("", "transaction"):
        raise ValueError("`pooler` must be transaction")
    try:
        n_connections = int(options.pop("connections", MAX_CONNECTIONS))
    except ValueError:
        n_connections = 0
    if not 2 <= n_connections <= 1000:
        raise ValueError("`connections` must be a number from 2 to 1000")
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(options), ""))
    return PostgresAddress(dsn, n_connections, is_pooled=bool(pooler))


def _has_valid_port(parts: SplitResult) -> bool:
    """Several hosts, separated by commas, are the driver's to check."""
    if "," in parts.netloc:
        return True
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False
