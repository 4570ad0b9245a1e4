"""From how many requests a day work on software pays, and below it a bigger machine or nothing.

Problem: two weeks of engineering save 40 % of an answer's time or cost. For 100 requests a day that is never paid back; a
bigger machine, ready in an afternoon, is the cheaper way to the same latency. Rule, with all costs per day:

    software      = days of work * engineer / days of use                       does not grow with the traffic
    machine       = machines * 24 * (bigger - current) USD per hour              grows with the traffic
    machines      = ceil(requests a day / requests a day that one machine carries)
    hosted API    = requests a day * cost of a request * share saved             what software saves there

The traffic at which both are equal is the break-even. The rule of thumb: below 1,000 a day hardware, above 10,000 software.
Source: published experience for a 70B model on one A100 against one H100 (40 % less latency).
When wrong: software has upkeep, and the engineer something better to do; a machine may not be had.
"""

from math import ceil

import msgspec

SOFTWARE_DAYS = 10.0  # speculative decoding, prompt compression and cache tuning: two weeks
USE_DAYS = 365.0
BUSY_SHARE = 0.5  # of a machine's time at which its waits are still short
HARDWARE_BELOW, SOFTWARE_ABOVE = 1000, 10_000
_MOST = 10**9


class BreakEven(msgspec.Struct, frozen=True):
    """Costs in USD per day. requests_per_day: None: never within any traffic that makes sense."""

    requests_per_day: float | None
    traffic_per_day: float
    software_usd: float
    machine_usd: float | None  # at the present traffic; None: a hosted API
    saved_usd: float | None  # by software at the present traffic; None: own machines, or no prices
    advice: str
    assumptions: str


def break_even_machines(traffic_per_day: float, busy_s_per_request: float, *, engineer_usd: float, machine_usd_per_h: float,
                        bigger_usd_per_h: float) -> BreakEven:
    """Own machines. busy_s_per_request: of one machine, if nothing else ran on it."""
    carried = 86_400.0 * BUSY_SHARE / max(1e-6, busy_s_per_request)
    software = SOFTWARE_DAYS * engineer_usd / USE_DAYS
    each = 24 * max(0.01, bigger_usd_per_h - machine_usd_per_h)
    n_now = max(1, ceil(traffic_per_day / carried))
    n_even = max(1, ceil(software / each))
    even = (n_even - 1) * carried if n_even > 1 else 0.0
    hardware = each * n_now
    advice = ("buy the bigger machine: it costs less than the work" if hardware < software
              else "work on the software: it costs less than bigger machines")
    return BreakEven(even, traffic_per_day, software, hardware, None, advice,
                     f"{SOFTWARE_DAYS:g} days of work at {engineer_usd:g} USD over {USE_DAYS:g} days; machines at "
                     f"{machine_usd_per_h:g} and {bigger_usd_per_h:g} USD/h; one carries {carried:,.0f} requests a day")


def break_even_hosted(traffic_per_day: float, usd_per_request: float | None, saved_share: float, *,
                      engineer_usd: float) -> BreakEven:
    """A hosted API, where work on prompts and caches saves a share of the bill."""
    software = SOFTWARE_DAYS * engineer_usd / USE_DAYS
    assumed = f"{SOFTWARE_DAYS:g} days of work at {engineer_usd:g} USD over {USE_DAYS:g} days; {saved_share:.0%} of the bill"
    if not usd_per_request or saved_share <= 0:
        advice = ("below the rule of thumb's 1,000 requests a day: leave it" if traffic_per_day < HARDWARE_BELOW else
                  "no price, or nothing to save: only latency can justify the work")
        return BreakEven(None, traffic_per_day, software, None, None, advice, assumed)
    saved = traffic_per_day * usd_per_request * saved_share
    even = min(_MOST, software / (usd_per_request * saved_share))
    advice = "the work pays" if saved > software else "the work does not pay by its savings alone"
    return BreakEven(even, traffic_per_day, software, None, saved, advice, assumed)
