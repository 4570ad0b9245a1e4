"""Prompts that are longer than their use."""

from typing import Any

import pytest

from stayfast.core.snapshot import Snapshot
from tests.unit.policy.findings.check_rig import find, find_one, prompts, snapshot, spread, traffic

HISTORY: dict[str, Any] = {"input_tokens": spread(3000, 9000), "history_tokens": spread(2500, 8000),
                           "n_messages": spread(10, 40), "growth_tokens": 200.0, "s_per_1k_input": 0.1}
SYSTEM: dict[str, Any] = {"input_tokens": spread(2500), "system_tokens": spread(2000), "s_per_1k_input": 0.1}
TOOLS: dict[str, Any] = {"input_tokens": spread(5000), "tool_tokens": spread(4000)}
DOCUMENTS: dict[str, Any] = {"input_tokens": spread(8000), "retrieved_tokens": spread(6000), "ttft_by_input": 0.8,
                             "s_per_1k_input": 0.05}
BIASES: dict[str, Any] = {"n_logit_bias": 100, "n_logit_biases": 64}
FAULTS = {"prompt.history_growth": HISTORY, "prompt.long_system": SYSTEM, "prompt.tools_dominate": TOOLS,
          "prompt.retrieval_dominates": DOCUMENTS,
          "prompt.varied_logit_bias": BIASES}


def observed(n: int = 500, n_cached: int = 0, **fields: Any) -> Snapshot:
    row = traffic(n_input_tokens=1_000_000, n_cached_tokens=n_cached)
    return snapshot(prompts=(prompts(n=n, **fields),), traffic=(row,))


@pytest.mark.parametrize("check", FAULTS)
def test_long_part_is_found(check: str) -> None:
    assert find_one(check, observed(**FAULTS[check])).where.route == "chat"


@pytest.mark.parametrize("check", FAULTS)
def test_few_samples_prove_nothing(check: str) -> None:
    assert find(check, observed(**{**FAULTS[check], "n": 20, "n_logit_biases": 5})) == []


@pytest.mark.parametrize("check", ["prompt.history_growth", "prompt.long_system", "prompt.tools_dominate",
                                   "prompt.retrieval_dominates"])
def test_part_that_the_provider_caches_is_no_finding(check: str) -> None:
    assert find(check, observed(**FAULTS[check], n_cached=700_000)) == []


@pytest.mark.parametrize(("check", "changes"), [
    ("prompt.history_growth", {"history_tokens": spread(300, 800)}),  # one long document, not the conversation
    ("prompt.history_growth", {"n_messages": spread(3, 8)}),  # four turns are the advice
    ("prompt.history_growth", {"growth_tokens": -5.0}),  # the application shortens its history
    ("prompt.long_system", {"system_tokens": spread(900)}),
    ("prompt.tools_dominate", {"input_tokens": spread(20_000)}),  # much else beside the tools
    ("prompt.tools_dominate", {"input_tokens": spread(900), "tool_tokens": spread(600)}),  # most of a short prompt
    ("prompt.retrieval_dominates", {"ttft_by_input": 0.1}),  # the first token does not wait for them
    ("prompt.varied_logit_bias", {"n_logit_biases": 3}),  # one for each classifier
    ("prompt.varied_logit_bias", {"n_logit_bias": 400, "n_logit_biases": 20}),  # 20 classifiers
])
def test_look_alike_is_not_found(check: str, changes: dict[str, Any]) -> None:
    assert find(check, observed(**{**FAULTS[check], **changes})) == []


def test_saving_follows_the_slope_of_the_route() -> None:
    """8,000 tokens of history become 4 turns of 400: 6,400 tokens, 0.1 s for each thousand."""
    finding = find_one("prompt.history_growth", observed(**HISTORY))
    assert finding.do[0].saves_s == pytest.approx(0.64)
    assert "6400 input tokens and 640 ms" in finding.do[0].effect
