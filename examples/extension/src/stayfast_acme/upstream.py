"""`kind: acme`: OpenAI's protocol behind a gate that wants each request signed.

    upstreams:
      inside: {kind: acme, base_url: "http://gate.acme.example/v1", secret: "${ACME_SECRET}"}
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from stayfast.core.clock import Clock
from stayfast.core.events import Fanout
from stayfast.core.setting import Secret, SettingDoc
from stayfast.core.types import Api
from stayfast.http.client.client import HttpClient, HttpConfig
from stayfast.policy.admission.price import Prices
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.upstreams.base import Upstream
from stayfast.upstreams.dialect import DialectConfig, DialectUpstream


class Signature:
    """`x-acme-signature: T:MAC`, with an HMAC-SHA256 of time, method, path and body."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def headers_for(self, method: str, target: str, body: bytes, now_wall: float) -> Sequence[tuple[str, str]]:
        stamp = str(int(now_wall))
        signed = b"\n".join((stamp.encode(), method.encode(), target.encode(), body))
        mac = hmac.new(self._secret.encode(), signed, hashlib.sha256).hexdigest()
        return [("x-acme-signature", f"{stamp}:{mac}")]

    def secrets(self) -> Sequence[str]:
        return [self._secret]


@dataclass(frozen=True, slots=True)
class AcmeUpstream:
    """Its fields are the settings; no base class is needed."""

    base_url: Annotated[str, SettingDoc("Address of the gate.", pattern=r"https?://[^\s/?#@]+(/[^\s?#]*)?",
                                        form="like https://host/v1")]
    secret: Annotated[Secret, SettingDoc("The secret that signs requests.")]
    kind: Annotated[Literal["acme"], SettingDoc("A model behind Acme's gate.")] = "acme"
    models: Annotated[Mapping[str, str], SettingDoc("Model names: the client's, and the gate's.")] = field(
        default_factory=dict)
    prices: Annotated[Prices, SettingDoc("USD per million tokens, by the gate's model name.")] = field(default_factory=dict)
    probe: Annotated[bool, SettingDoc("Request one token at start.")] = True
    limit: Annotated[LimitConfig, SettingDoc("Concurrency limit.")] = field(default_factory=LimitConfig)
    breaker: Annotated[BreakerConfig, SettingDoc("Circuit breaker.")] = field(default_factory=BreakerConfig)

    def build_upstream(self, name: str, clock: Clock) -> Upstream:
        """The protocol is OpenAI's, so the gateway's own implementation serves it; another one has an `open` of its own."""
        dialect = DialectConfig("openai", frozenset({Api.CHAT}), authenticator=Signature(self.secret.reveal()))
        return DialectUpstream(name, dialect, HttpClient(name, HttpConfig(self.base_url), sink=Fanout(), clock=clock),
                               clock)
