"""What the settings of admission mean: places, queue, tenants, quotas. The bounds are the ones their own checks hold."""

from collections.abc import Mapping
from typing import Any

from stayfast.core.setting import About
from stayfast.policy.admission.lanes import LanesConfig
from stayfast.policy.admission.overload import AdmissionConfig, SizeConfig, TenantConfig
from stayfast.policy.admission.priority import MAX_POINTS, Points
from stayfast.policy.admission.queue import QueueConfig
from stayfast.policy.admission.quota import QuotaConfig


def _points(doc: str) -> About:
    return About(doc, minimum=-MAX_POINTS, maximum=MAX_POINTS)


POINTS = {
    "premium": _points("A tenant of tier premium."),
    "realtime": _points("A stream, or what says `x-stayfast-priority: realtime`."),
    "retry": _points("A repeat: x-stainless-retry-count above 0, or an idempotency key that came before."),
    "batch": _points("A tenant of tier batch, or what says `x-stayfast-priority: batch`."),
}

QUEUE = {
    "max_queue": About("Most requests that wait for a place; beyond it the least deserving is turned away.",
                       minimum=0, maximum=100_000),
    "max_wait_s": About("The longest wait for a place; turned away at once where it is predicted to be longer.",
                        minimum=0.001, maximum=3600),
    "target_wait_s": About("The longest wait where a tenant's queue has not been empty for `max_wait_s`.",
                           minimum=0.001, maximum=3600),
    "ages_within_s": About("A request is overtaken by more urgent ones of its tenant for so long only.",
                           minimum=0, maximum=3600),
}

ADMISSION = {
    "max_in_flight": About("Most requests in flight, in all workers together; the others queue. Unset: no ceiling.",
                           minimum=1, maximum=1_000_000),
    "queue": About("The queue before the places.", is_inline=True),
    "hold_back": About("The share of the places that is kept free for each band above, while that has traffic.",
                       minimum=0, maximum=0.2),
    "lag_s": About("An event loop as late as this is one of five signs of overload.", minimum=0.001, maximum=10),
    "busy": About("A process that uses this share of a core is another one.", minimum=0.1, maximum=1),
    "points": About("What a request's properties are worth; their sum decides who goes first."),
    "lanes": About("Shares of the places for short, long and batch requests. null: all share all."),
}

LANES = {
    "long_input": About("Prompts of so many tokens or more are long; what the prefix cache saves counts off.",
                        minimum=1, maximum=100_000_000),
    "long_output": About("So are answers that are predicted to come to as many tokens as this.",
                         minimum=1, maximum=100_000_000),
    "long_share": About("The long lane's share of the places.", minimum=0.001, maximum=0.9),
    "batch_share": About("That of what is in band batch. What both leave is the short lane's.", minimum=0.001, maximum=0.9),
    "long_wait_s": About("The longest wait of a long request. null: as `max_wait_s` and `target_wait_s` of admission say.",
                         minimum=0.001, maximum=3600),
    "batch_wait_s": About("The same for the batch lane.", minimum=0.001, maximum=3600),
    "max_prefills": About("Requests of the long and batch lanes that may wait for their first token at a time, in each "
                          "worker. null: as many as have places.", minimum=1, maximum=100_000),
    "apart": About("Short requests never run beside others: for engines that batch statically."),
}

_PER_MINUTE, _PER_DAY = "in a minute; as many at once, refilled evenly.", "in a day; as many at once, refilled evenly."
QUOTA = {
    "requests_per_minute": About(f"Requests {_PER_MINUTE}", minimum=1, maximum=1e15),
    "tokens_per_minute": About(f"Tokens, of prompts and answers, {_PER_MINUTE}", minimum=1, maximum=1e15),
    "cost_per_minute": About(f"USD, by the upstreams' `prices`, {_PER_MINUTE}", minimum=1e-6, maximum=1e15),
    "requests_per_day": About(f"Requests {_PER_DAY}", minimum=1, maximum=1e15),
    "tokens_per_day": About(f"Tokens, of prompts and answers, {_PER_DAY}", minimum=1, maximum=1e15),
    "cost_per_day": About(f"USD, by the upstreams' `prices`, {_PER_DAY}", minimum=1e-6, maximum=1e15),
}

TENANT = {
    "tier": About("premium goes first, batch last."),
    "weight": About("Its part of what there is, where tenants want more.", minimum=0.001, maximum=1000),
    "priority": _points("Points for all of its requests, beside its tier's."),
    "quota": About("How much it may use, at all workers together."),
}

SIZE = {
    "max_input_tokens": About("The longest prompt, in estimated tokens; 413 beyond it. null: any.", minimum=1,
                              maximum=100_000_000),
    "max_input_by_tier": About("The same for tenants of a tier: premium, standard, batch.", minimum=1, maximum=100_000_000),
    "offline": About("The route that longer prompts go to, on its terms. Empty: they are refused."),
}

DESCRIBED: Mapping[type[Any], Mapping[str, About]] = {
    LanesConfig: LANES, SizeConfig: SIZE,
    AdmissionConfig: ADMISSION, QueueConfig: QUEUE, Points: POINTS, TenantConfig: TENANT, QuotaConfig: QUOTA,
}
