"""Logs and models for the tests of `stayfast plan`."""

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from stayfast.lab.harness.hidden_world import PRICE, HiddenWorld, draw_world
from stayfast.lab.plan.fitting import SeenCall
from stayfast.lab.plan.traffic import RouteTraffic, pick_route, read_log
from stayfast.lab.plan.workload import KnownSettings, TrafficModel, build_model
from stayfast.observe.traffic_rows import TrafficLine
from stayfast.policy.resilience.limits import LimitConfig


@cache
def world(kind: str, seed: int, n: int) -> tuple[HiddenWorld, tuple[bytes, ...]]:
    """A hidden world and the log of its day."""
    drawn = draw_world(seed, kind, n)
    return drawn, tuple(drawn.run(1))


def model_of(kind: str, seed: int, n: int) -> TrafficModel:
    """The model of such a log, with the settings of its gateway."""
    drawn, lines = world(kind, seed, n)
    settings = drawn.settings
    return build_model(traffic_of(lines), KnownSettings(settings.route, settings.admission, {"provider": PRICE},
                                                        {"provider": LimitConfig(mode="off")}))


def traffic_of(lines: Sequence[bytes]) -> RouteTraffic:
    return pick_route(read_log(lines)[0])


def calls(n: int, *, k: float = 0.0, b: float = 0.0, seed: int = 1, median_s: float = 0.5) -> list[SeenCall]:
    """Streamed calls whose first token takes e * (1 + k * tokens) + b * tokens, e lognormal; 20 ms a token."""
    rng = Random(seed)
    made = []
    for number in range(n):
        n_tokens, n_output = rng.randrange(50, 5000), rng.randrange(20, 300)
        ttft_s = median_s * rng.lognormvariate(0, 0.25) * (1 + k * n_tokens) + b * n_tokens
        made.append(SeenCall(float(number), n_tokens, n_output, ttft_s + 0.02 * (n_output - 1), ttft_s, 0.02, True))
    return made


def rows(n: int, *, first_s: float = 0.5, every_s: float = 1.0, **fields: Any) -> list[TrafficLine]:
    """Requests of the route "m" that take `first_s` and 10 ms a token."""
    given: dict[str, Any] = {"upstream": "u", "n_input": 100, "n_output": 51, "is_stream": True, "ttft_s": first_s,
                             "tpot_s": 0.01, "e2e_s": first_s + 0.5, "n_attempts": 1}
    return [TrafficLine(1000.0 + number * every_s, "m", **(given | fields)) for number in range(n)]
