"""When two requests are one: those of one client that carry the same `idempotency-key`.

Problem: a client that has lost its connection does not know whether its request was served, so it sends it again, and the
answer is made, paid for and, where tools act on it, acted on twice. Rule: of one client (its key; without keys, everybody is
one) the same `idempotency-key` with the same body is one request:

    the first still runs        the other shares its call and answer
    the first was answered      the other gets that answer, for `ttl_s`, byte for byte
    the first failed            the other is a new call: errors, and answers that broke off, are not kept

and with another body it is refused (422) for as long. A first that runs but cannot be shared any more (beyond 8 MiB of
stream, or in the moment before its call begins) makes the other a 409, which official SDKs try again.
Source: the IETF draft The Idempotency-Key HTTP Header Field (422, 409); Stripe's API for keeping answers.
When wrong: each process remembers its own, so a repeat that another worker or replica gets is a new call; answers of more
than `MAX_ANSWER_BYTES`, and those of a fallback or a template, are not kept; beyond `max_bytes` the oldest go first.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from stayfast.core.setting import SettingDoc, check_bounds

MAX_ANSWER_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 20_000  # some 400 bytes each, beside the answers


@dataclass(frozen=True, slots=True)
class IdempotencyConfig:
    """How long repeats of a request are recognised. In each worker."""

    ttl_s: Annotated[float, SettingDoc(
        "How long a repeated `idempotency-key` gets the same answer; 0: keys only go upstream.",
        minimum=0, maximum=604_800)] = 600.0
    max_bytes: Annotated[int, SettingDoc(
        "Memory for these answers, per worker.", minimum=1024, maximum=1 << 40)] = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        check_bounds(self)
