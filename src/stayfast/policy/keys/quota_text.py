"""A quota as people type it: `requests: 100/min, tokens: 1M/day, cost: 5/day`.

Problem: a quota has six limits with long names. Rule: `KIND: AMOUNT/WINDOW`, separated by commas; kinds are requests, tokens
and cost (USD), windows min and day, amounts may end in k or M. The names in the settings are accepted as well.
When wrong: the amount is the burst, too, as in `policy.admission.quota`.
"""

import re
from collections.abc import Iterable, Mapping

from stayfast.policy.admission.quota import KINDS, QuotaConfig

FORM = "like `requests: 100/min` or `cost: 5/day`; kinds: requests, tokens, cost (USD); windows: min, day"
_LIMIT = re.compile(r"([a-z]+)\s*[:=]\s*([0-9]+(?:\.[0-9]+)?)\s*([kM]?)\s*/\s*(min|minute|day)")
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6}
LIMITS = tuple(f"{kind}_per_{window}" for window in ("minute", "day") for kind in KINDS)


def parse_quota(texts: Iterable[str]) -> dict[str, float]:
    """Limits by their name in the settings. Raises ValueError."""
    limits: dict[str, float] = {}
    for text in (part.strip() for given in texts for part in given.split(",")):
        found = _LIMIT.fullmatch(text)
        if found is None or found[1] not in KINDS:
            raise ValueError(f"{text[:64]!r} is no limit: write it {FORM}")
        name = f"{found[1]}_per_{'day' if found[4] == 'day' else 'minute'}"
        if name in limits:
            raise ValueError(f"{name} is given twice")
        limits[name] = float(found[2]) * _FACTORS[found[3]]
    return check_quota(limits)


def check_quota(limits: Mapping[str, float]) -> dict[str, float]:
    """The limits of a key's quota. Raises ValueError for an unknown name or an amount out of its range."""
    for name in limits:
        if name not in LIMITS:
            raise ValueError(f"{name[:64]!r} is no limit: there are {', '.join(LIMITS)}")
    make_quota(limits)
    return {name: float(limits[name]) for name in LIMITS if name in limits}


def make_quota(limits: Mapping[str, float]) -> QuotaConfig:
    """The quota of limits that were checked; an unknown one, of a later version, is left out. Raises ValueError."""
    known: dict[str, float | None] = {name: limit for name, limit in limits.items() if name in LIMITS}
    get = known.get
    return QuotaConfig(requests_per_minute=get("requests_per_minute"), tokens_per_minute=get("tokens_per_minute"),
                       cost_per_minute=get("cost_per_minute"), requests_per_day=get("requests_per_day"),
                       tokens_per_day=get("tokens_per_day"), cost_per_day=get("cost_per_day"))


def format_quota(limits: Mapping[str, float]) -> str:
    """In the form that `parse_quota` takes."""
    words = (name.partition("_per_") for name in LIMITS if name in limits)
    return ", ".join(f"{kind}: {limits[f'{kind}_per_{window}']:g}/{'min' if window == 'minute' else 'day'}"
                     for kind, _, window in words)
