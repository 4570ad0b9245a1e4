"""What a route believes to be cached, and how answers correct it."""

from stayfast.core.engine_signals import EngineSignals
from stayfast.core.types import Usage
from stayfast.pipeline.routing.prefix_beliefs import TOKENS_A_BLOCK, PrefixBeliefs
from stayfast.policy.routing.affinity import BLOCK_BYTES, AffinityConfig
from stayfast.policy.routing.replica_cost import FAILED_S

N = 100  # blocks of a prompt
WHOLE = Usage(input_total=N * TOKENS_A_BLOCK, cached_read=N * TOKENS_A_BLOCK)
NOTHING = Usage(input_total=N * TOKENS_A_BLOCK)


def blocks_of(prompt: int) -> list[int]:
    return list(range(prompt * 1000, prompt * 1000 + N))


class Route:
    """Sends prompts to one upstream, one a second."""

    def __init__(self) -> None:
        self.beliefs = PrefixBeliefs(AffinityConfig("prefix"))
        self.now = 0.0

    def send(self, prompt: int, usage: Usage | None = None, signals: EngineSignals | None = None) -> None:
        self.now += 1
        sent = self.beliefs.note_sent("a", blocks_of(prompt), N * BLOCK_BYTES, signals, self.now)
        if usage is not None:
            self.beliefs.note_usage("a", sent, usage)

    def cached(self, prompt: int) -> float:
        return self.beliefs.cached_tokens("a", blocks_of(prompt), self.now)


def test_beliefs_sent_prompt_is_believed_at_its_upstream_only() -> None:
    route = Route()
    route.send(1)
    assert route.cached(1) == N * TOKENS_A_BLOCK
    assert route.beliefs.cached_tokens("b", blocks_of(1), 2.0) == 0


def test_beliefs_evicted_prompt_makes_older_ones_forgotten() -> None:
    """An engine evicts the least recently used first: what was sent before the evicted prompt is gone, too."""
    route = Route()
    for prompt in range(6):
        route.send(prompt)
    route.send(0, WHOLE)  # it reports cached tokens
    route.send(2, NOTHING)  # and has evicted this one
    assert [route.cached(prompt) > 0 for prompt in range(6)] == [True, False, True, True, True, True]


def test_beliefs_upstream_that_never_reports_is_not_corrected() -> None:
    route = Route()
    route.send(1)
    route.send(2)
    route.send(1, NOTHING)
    assert route.cached(2) == N * TOKENS_A_BLOCK
    [truth] = route.beliefs.truths.values()
    assert (truth.truth, truth.belief) == (None, 1.0)
    assert route.beliefs.checked == {("a", "unreported"): N * TOKENS_A_BLOCK}


def test_beliefs_hit_rates_part_where_engine_evicts_early() -> None:
    route = Route()
    route.send(1)
    route.send(1, WHOLE)
    for _ in range(50):
        route.send(1, NOTHING)
    [truth] = route.beliefs.truths.values()
    assert truth.truth is not None
    assert truth.belief is not None
    assert truth.belief - truth.truth > 0.9
    assert route.beliefs.checked["a", "believed"] > route.beliefs.checked["a", "cached"]


def test_beliefs_capacity_is_that_of_the_engines_memory() -> None:
    """2.5 prompts fit."""
    route, signals = Route(), EngineSignals(read_at=0.0, kv_tokens=2.5 * N * TOKENS_A_BLOCK)
    for prompt in range(5):
        route.send(prompt, signals=signals)
    assert [route.cached(prompt) / N / TOKENS_A_BLOCK for prompt in range(5)] == [0, 0, 0.5, 1, 1]


def test_beliefs_confirmed_hits_raise_the_capacity_again() -> None:
    route = Route()
    for prompt in range(4):
        route.send(prompt)
    route.send(3, WHOLE)
    route.send(1, NOTHING)
    small = route.beliefs.n_blocks
    for _ in range(200):
        route.send(1, WHOLE)
    for prompt in range(10):
        route.send(prompt)
    assert route.beliefs.n_blocks > small


def test_beliefs_unanswered_attempt_leaves_nothing_believed() -> None:
    """Its prompt may not have been computed."""
    route = Route()
    sent = route.beliefs.note_sent("a", blocks_of(1), N * BLOCK_BYTES, None, 1.0)
    route.beliefs.note_unanswered("a", sent, blocks_of(1))
    assert route.cached(1) == 0


def test_beliefs_failures_cost_for_a_while() -> None:
    route = Route()
    route.beliefs.note_failure("a", 0.0)
    assert route.beliefs.failed_s("a", 0.0) == FAILED_S
    assert route.beliefs.failed_s("b", 0.0) == 0.0
    assert route.beliefs.failed_s("a", 60.0) < 0.01
