"""A gateway with two keys, for what belongs to a key: files and batches."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anthropic
import openai

from stayfast.server.auth import new_key
from tests.clients.callers import CLIENT_TIMEOUT_S
from tests.clients.gateway import SETTINGS, UPSTREAM_MODEL, Gateway, started
from tests.clients.upstream import Upstream

POLL_S = 0.1
BATCH_WITHIN_S = 30.0


@dataclass(frozen=True)
class KeyedGateway:
    """A running gateway and the secrets of its tenants `own` and `other`."""

    gateway: Gateway
    own: str
    other: str

    def openai(self, key: str | None = None) -> openai.OpenAI:
        """OpenAI's SDK with a key, by default of `own`."""
        return openai.OpenAI(base_url=self.gateway.openai_url, api_key=key or self.own, max_retries=0,
                             timeout=CLIENT_TIMEOUT_S)

    def anthropic(self, key: str | None = None) -> anthropic.Anthropic:
        """Anthropic's SDK with a key, by default of `own`."""
        return anthropic.Anthropic(base_url=self.gateway.origin, api_key=key or self.own, max_retries=0,
                                   timeout=CLIENT_TIMEOUT_S)


@contextmanager
def keyed_gateway(upstream: Upstream, folder: Path) -> Iterator[KeyedGateway]:
    """A gateway in front of `upstream`, whose jobs are in `folder`."""
    (own, own_digest), (other, other_digest) = (new_key(os.urandom(24)) for _ in range(2))
    text = SETTINGS.format(origin=upstream.origin, model=UPSTREAM_MODEL, keepalive_s=0.2, brief_s=1.0, folder=folder)
    text = text.replace("server: {", f"server: {{keys: {{own: '{own_digest}', other: '{other_digest}'}}, ", 1)
    settings = folder / "stayfast.yaml"
    settings.write_text(text)
    with started(settings, folder) as gateway:
        yield KeyedGateway(gateway, own, other)
