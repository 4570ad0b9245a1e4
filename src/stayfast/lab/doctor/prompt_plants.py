"""Prompts, and the providers' caches of them, planted."""

from random import Random
from typing import Any

from stayfast.lab.doctor.recorded import spread, with_prompts, with_traffic, with_upstream
from stayfast.lab.doctor.scene import Flow, Plant, Scene

PROMPTS, ENGINE = frozenset({"chat.prompts"}), frozenset({"north.engine"})
WORD = "word"  # one estimated token
TOOL_WORDS = 400


def conversation(n_turns: int, n_words: int) -> Any:
    """Messages of conversations with up to `n_turns` earlier turns of `n_words` tokens each."""
    def make(rng: Random, _: Flow) -> list[dict[str, Any]]:
        turns = [{"role": role, "content": WORD * (n_words // 2)} for _ in range(rng.randint(0, n_turns))
                 for role in ("user", "assistant")]
        return [*turns, {"role": "user", "content": WORD * 60}]

    return make


def instructed(n_system: int, n_user: int, *, is_moving: bool = False) -> Any:
    """A system prompt and a question. is_moving: the system prompt begins with a number that changes."""
    def make(rng: Random, _: Flow) -> list[dict[str, Any]]:
        begin = f"{rng.random()} " if is_moving else ""
        return [{"role": "system", "content": begin + WORD * n_system}, {"role": "user", "content": WORD * n_user}]

    return make


def tool_body(n_tools: int) -> dict[str, Any]:
    """Definitions of tools of about TOOL_WORDS tokens each."""
    return {"tools": [{"type": "function", "function": {"name": f"tool_{number}", "description": WORD * TOOL_WORDS,
                                                        "parameters": {"type": "object", "properties": {}}}}
                      for number in range(n_tools)]}


def _send(scene: Scene, shapes: dict[str, Any], cached: float = 0.0, **flow: Any) -> Scene:
    """Other prompts on the chat route. cached: share of the input that providers read from their caches."""
    n_input = 1_000_000
    amended = scene.amend(with_prompts("chat", **shapes)).amend(
        with_traffic("chat", n_input_tokens=n_input, n_cached_tokens=int(cached * n_input)))
    return amended.set_flow("chat", **flow) if flow else amended


def _long_history(scene: Scene, n_turns: int, n_words: int) -> Scene:
    most = n_turns * n_words
    return _send(scene, {"input_tokens": spread(most / 2 + 60, most + 60), "history_tokens": spread(most / 2, most),
                         "n_messages": spread(n_turns + 1, 2 * n_turns + 1), "growth_tokens": n_words / 2,
                         "s_per_1k_input": 0.05},
                 make_messages=conversation(n_turns, n_words))


def _instructions(scene: Scene, n_system: int, n_user: int, *, shared: float | None = None, cached: float = 0.0) -> Scene:
    shapes = {"input_tokens": spread(n_system + n_user), "system_tokens": spread(n_system), "shared_prefix_ratio": shared}
    return _send(scene, shapes, cached, make_messages=instructed(n_system, n_user, is_moving=shared == 0.0))


def _tools(scene: Scene, n_tools: int, n_user: int) -> Scene:
    n = n_tools * TOOL_WORDS
    return _send(scene, {"input_tokens": spread(n + n_user), "tool_tokens": spread(n)}, body=tool_body(n_tools),
                 make_messages=instructed(20, n_user))


def _documents(scene: Scene, correlation: float) -> Scene:
    return _send(scene, {"input_tokens": spread(8000, 9000), "retrieved_tokens": spread(7000, 8000),
                         "ttft_by_input": correlation, "s_per_1k_input": 0.03 if correlation > 0.5 else 0.0},
                 make_messages=instructed(100, 7000))


def _biases(scene: Scene, n_different: int) -> Scene:
    return scene.amend(with_prompts("chat", n_logit_bias=200, n_logit_biases=n_different))


def _dropped(scene: Scene, now: float) -> Scene:
    """The hour's share of 70 %, and what it is now."""
    before = with_traffic("chat", window_s=3600.0, n=12_000, n_input_tokens=12_000_000, n_cached_tokens=8_000_000)
    later = with_traffic("chat", window_s=300.0, n_input_tokens=1_000_000, n_cached_tokens=int(now * 1_000_000))
    return scene.amend(before).amend(later)


def _cold_engine(scene: Scene, hit: float) -> Scene:
    return scene.amend(with_prompts("chat", shared_prefix_ratio=0.8)).amend(
        with_upstream("north", n_attempts=600,
                      engine={"kv_hit_ratio": hit, "kv_used_ratio": 0.5, "waiting": 0.0, "age_s": 3.0}))


PLANTS = (
    Plant("conversations of thirty turns", "prompt.history_growth", True, lambda scene: _long_history(scene, 30, 300),
          touches=PROMPTS),
    Plant("conversations of four turns", "prompt.history_growth", False, lambda scene: _long_history(scene, 4, 300),
          touches=PROMPTS),
    Plant("system prompt of 2,000 tokens", "prompt.long_system", True, lambda scene: _instructions(scene, 2000, 200),
          touches=PROMPTS),
    Plant("cached system prompt of 2,000 tokens", "prompt.long_system", False,
          lambda scene: _instructions(scene, 2000, 200, shared=0.9, cached=0.8), touches=PROMPTS),
    Plant("a dozen tools", "prompt.tools_dominate", True, lambda scene: _tools(scene, 12, 300), touches=PROMPTS),
    Plant("one tool", "prompt.tools_dominate", False, lambda scene: _tools(scene, 1, 300), touches=PROMPTS),
    Plant("seven documents of 1,000 tokens", "prompt.retrieval_dominates", True, lambda scene: _documents(scene, 0.8),
          touches=PROMPTS),
    Plant("documents without effect on the first token", "prompt.retrieval_dominates", False,
          lambda scene: _documents(scene, 0.1), touches=PROMPTS),
    Plant("a logit bias for each request", "prompt.varied_logit_bias", True, lambda scene: _biases(scene, 64),
          touches=PROMPTS),
    Plant("a logit bias for each of two classifiers", "prompt.varied_logit_bias", False, lambda scene: _biases(scene, 2),
          touches=PROMPTS),
    Plant("stable prompts without marks", "prompt.cache_rarely_read", True,
          lambda scene: _instructions(scene, 2500, 300, shared=0.88, cached=0.05), touches=PROMPTS),
    Plant("short stable prompts", "prompt.cache_rarely_read", False,
          lambda scene: _instructions(scene, 500, 80, shared=0.85, cached=0.0), touches=PROMPTS),
    Plant("system prompt that begins with a number", "prompt.prefix_differs", True,
          lambda scene: _instructions(scene, 2500, 300, shared=0.0, cached=0.0), touches=PROMPTS),
    Plant("twenty applications with stable prompts", "prompt.prefix_differs", False,
          lambda scene: _instructions(scene, 2500, 300, shared=0.05, cached=0.85), touches=PROMPTS),
    Plant("cache that serves nothing since a release", "prompt.cache_dropped", True, lambda scene: _dropped(scene, 0.05),
          touches=PROMPTS),
    Plant("cache that serves a little less", "prompt.cache_dropped", False, lambda scene: _dropped(scene, 0.5),
          touches=PROMPTS),
    Plant("engine without a prefix cache", "engine.kv_hit_low", True, lambda scene: _cold_engine(scene, 0.05),
          touches=PROMPTS | ENGINE),
    Plant("engine with a warm prefix cache", "engine.kv_hit_low", False, lambda scene: _cold_engine(scene, 0.75),
          touches=PROMPTS | ENGINE),
)
