"""What the tokens of a system prompt cost, and what a new version of it costs more.

Problem: a new version costs more for two reasons, and only one of them is seen in its length: it has more tokens, or less of
it is read from the provider's cache. Rule, per request, with prices of a token:

    e = cached * read + (1 - cached) * input        of one token of a version
    usd = n * e
    more = (n1 - n0) * e1  +  n0 * (cached0 - cached1) * (input - read)        longer, and read less

Source: arithmetic; prices are those of `policy.admission.price`. When wrong: writes to a cache cost more than plain input at
some providers, which is not counted here; the shares are those of the last hour.
"""

from typing import Final, NamedTuple

from stayfast.core.prompt_versions import PromptVersionRow

TOKENS_A_PRICE: Final = 1_000_000  # prices are of a million tokens


class CostOfChange(NamedTuple):
    """USD a day that a version costs more than the one before it; negative: less."""

    longer: float
    read_less: float

    @property
    def usd_a_day(self) -> float:
        return self.longer + self.read_less


def usd_a_token(row: PromptVersionRow) -> float | None:
    """The mean price of one of its tokens; None: unknown."""
    if row.usd_per_mtok is None:
        return None
    cached = row.cached_ratio or 0.0
    return (cached * _read_price(row) + (1 - cached) * row.usd_per_mtok) / TOKENS_A_PRICE


def usd_a_day(row: PromptVersionRow, n_tokens: float | None = None) -> float | None:
    """What its tokens cost, or `n_tokens` of them; None: the price or the rate is unknown."""
    each = usd_a_token(row)
    if each is None or row.n_a_day is None:
        return None
    return each * (row.n_tokens if n_tokens is None else n_tokens) * row.n_a_day


def cost_of_change(before: PromptVersionRow, after: PromptVersionRow) -> CostOfChange | None:
    """At the rate of requests of `after`; None: the price or the rate is unknown."""
    each = usd_a_token(after)
    if each is None or after.n_a_day is None or after.usd_per_mtok is None:
        return None
    fewer = (before.cached_ratio or 0.0) - (after.cached_ratio or 0.0)
    less_usd = (after.usd_per_mtok - _read_price(after)) / TOKENS_A_PRICE
    return CostOfChange((after.n_tokens - before.n_tokens) * each * after.n_a_day,
                        before.n_tokens * fewer * less_usd * after.n_a_day)


def _read_price(row: PromptVersionRow) -> float:
    """USD per million tokens that are read from the cache."""
    return row.usd_per_mtok_read if row.usd_per_mtok_read is not None else row.usd_per_mtok or 0.0
