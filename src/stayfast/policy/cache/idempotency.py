"""Idempotent requests: requests of one client with the same `idempotency-key` are one request.

Problem: a client that lost its connection sends its request again, and the answer is generated and paid for twice. Rule: for
one client (its key; without keys, all clients together) the same `idempotency-key` with the same body is one request:

    the first still runs        the second shares its call and answer
    the first was answered      the second gets the same bytes, for `ttl_s`
    the first failed            the second is a new call: errors and broken answers are not stored

With another body it is refused (422). If the first runs but can no longer be shared (more than 8 MiB of stream), the second
gets a 409, which official SDKs retry.
Source: the IETF draft The Idempotency-Key HTTP Header Field (422, 409); Stripe's API for storing answers.
When wrong: a retry that reaches another worker or replica is a new call. Answers of more than `MAX_ANSWER_BYTES`, fallbacks
and templates are not stored. Beyond `max_bytes` the oldest answers are dropped.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from stayfast.core.setting import SettingDoc, check_bounds

MAX_ANSWER_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 20_000  # about 400 bytes each, without the answers


@dataclass(frozen=True, slots=True)
class IdempotencyConfig:
    ttl_s: Annotated[float, SettingDoc(
        "How long a repeated `idempotency-key` gets the same answer; 0: keys only go upstream.",
        minimum=0, maximum=604_800)] = 600.0
    max_bytes: Annotated[int, SettingDoc(
        "Memory for these answers, per worker.", minimum=1024, maximum=1 << 40)] = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        check_bounds(self)
