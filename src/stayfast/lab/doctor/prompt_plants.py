"""Prompts, and the providers' caches of them, planted."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from stayfast.lab.doctor.latency_plants import TTFT, both, chat
from stayfast.lab.doctor.recorded import with_prompts, with_upstream
from stayfast.lab.doctor.scene import Flow, Plant, Scene, draw_tokens

Messages = Callable[[Random, Flow], list[dict[str, Any]]]
PROMPTS, ENGINE = frozenset({"chat.prompts"}), frozenset({"north.engine"})
CACHED = {"rules": "automatic", "min_tokens": 1024}
WORD = "word"  # one estimated token
TOOL_WORDS = 400


def conversation(n_turns: int, n_words: int) -> Messages:
    """Messages of conversations with up to `n_turns` earlier turns of `n_words` tokens each; each one on its own subject."""
    def make(rng: Random, _: Flow) -> list[dict[str, Any]]:
        turns = [{"role": role, "content": f"{rng.random()} {WORD * (n_words // 2)}"} for _ in range(rng.randint(0, n_turns))
                 for role in ("user", "assistant")]
        return [*turns, {"role": "user", "content": WORD * 60}]

    return make


def instructed(n_system: int, user: tuple[float, float], *, n_applications: int = 1, is_moving: bool = False) -> Messages:
    """A system prompt, one of n_applications, and a question of (median, sigma) tokens. is_moving: it begins with a number
    that changes.
    """
    def make(rng: Random, _: Flow) -> list[dict[str, Any]]:
        begin = rng.random() if is_moving else rng.randrange(n_applications)
        n = draw_tokens(rng, user)
        return [{"role": "system", "content": f"{begin} {WORD * n_system}"},
                {"role": "user", "content": f"{rng.random()} {WORD * n}"}]

    return make


def tool_body(n_tools: int) -> dict[str, Any]:
    """Definitions of tools of about TOOL_WORDS tokens each."""
    return {"tools": [{"type": "function", "function": {"name": f"tool_{number}", "description": WORD * TOOL_WORDS,
                                                        "parameters": {"type": "object", "properties": {}}}}
                      for number in range(n_tools)]}


def _send(scene: Scene, make_messages: Messages, *, is_cached: bool = False, prefill: float = 0.0, **flow: Any) -> Scene:
    """Other prompts on the chat route. is_cached: its providers cache prefixes. prefill: relative wait per prompt token."""
    settings: dict[str, Any] = {"prefill_per_token": prefill, **({"prompt_cache": CACHED} if is_cached else {})}
    return scene.set(**both(**settings)).set_flow("chat", make_messages=make_messages, **flow)


def _marked(scene: Scene, *, is_moving: bool) -> Scene:
    """Instructions that the gateway marks for the providers' caches."""
    prompts = _send(scene, instructed(2500, USER, is_moving=is_moving), is_cached=True)
    return prompts.set(**chat(model="gpt-5-2025-08-07", prefix={"mode": "auto"}))


def _biases(scene: Scene, n_different: int) -> Scene:
    return scene.amend(with_prompts("chat", n_logit_bias=200, n_logit_biases=n_different))


def _released(scene: Scene, *, is_moving: bool) -> Scene:
    """A new system prompt after 690 s; the providers cache prefixes."""
    before = _send(scene, instructed(2500, (300.0, 0.3)), is_cached=True, per_s=2.0, until_s=690.0)
    later = before.set_flow("chat later", per_s=2.0, from_s=690.0,
                            make_messages=instructed(2600, (300.0, 0.3), is_moving=is_moving))
    return replace(later, seconds=990.0)


def _cold_engine(scene: Scene, hit: float) -> Scene:
    return scene.amend(with_prompts("chat", shared_prefix_ratio=0.8)).amend(
        with_upstream("north", n_attempts=600,
                      engine={"kv_hit_ratio": hit, "kv_used_ratio": 0.5, "waiting": 0.0, "age_s": 3.0}))


USER = (200.0, 0.4)
COLD, MOVES = frozenset({"prompt.cache_rarely_read"}), frozenset({"prompt.moving_part"})
DOCUMENTS = (6000.0, 0.4)
PLANTS = (
    Plant("conversations of thirty turns", "prompt.history_growth", True,
          lambda scene: _send(scene, conversation(30, 300)), touches=PROMPTS),
    Plant("conversations of four turns", "prompt.history_growth", False, lambda scene: _send(scene, conversation(4, 300)),
          touches=PROMPTS),
    Plant("system prompt of 2,000 tokens", "prompt.long_system", True,
          lambda scene: _send(scene, instructed(2000, USER)), COLD, PROMPTS),
    Plant("cached system prompt of 2,000 tokens", "prompt.long_system", False,
          lambda scene: _send(scene, instructed(2000, USER), is_cached=True), touches=PROMPTS),
    Plant("a dozen tools", "prompt.tools_dominate", True,
          lambda scene: _send(scene, instructed(20, USER), body=tool_body(12)), COLD | {"prompt.tools_unused"}, PROMPTS),
    Plant("one tool", "prompt.tools_dominate", False,
          lambda scene: _send(scene, instructed(20, USER), body=tool_body(1)), touches=PROMPTS),
    Plant("documents that the first token waits for", "prompt.retrieval_dominates", True,
          lambda scene: _send(scene, instructed(100, DOCUMENTS), prefill=0.0005), touches=PROMPTS | TTFT),
    Plant("documents without effect on the first token", "prompt.retrieval_dominates", False,
          lambda scene: _send(scene, instructed(100, DOCUMENTS)), touches=PROMPTS),
    Plant("a logit bias for each request", "prompt.varied_logit_bias", True, lambda scene: _biases(scene, 64),
          touches=PROMPTS),
    Plant("a logit bias for each of two classifiers", "prompt.varied_logit_bias", False, lambda scene: _biases(scene, 2),
          touches=PROMPTS),
    Plant("stable prompts without a provider's cache", "prompt.cache_rarely_read", True,
          lambda scene: _send(scene, instructed(2500, USER)), touches=PROMPTS),
    Plant("short stable prompts", "prompt.cache_rarely_read", False,
          lambda scene: _send(scene, instructed(500, (80.0, 0.3))), touches=PROMPTS),
    Plant("system prompt that begins with a number", "prompt.prefix_differs", True,
          lambda scene: _send(scene, instructed(2500, USER, is_moving=True), is_cached=True), MOVES, PROMPTS),
    Plant("twenty applications with stable prompts", "prompt.prefix_differs", False,
          lambda scene: _send(scene, instructed(2500, USER, n_applications=20), is_cached=True), touches=PROMPTS),
    Plant("instructions that begin with an id", "prompt.moving_prefix", True, lambda scene: _marked(scene, is_moving=True),
          touches=PROMPTS),
    Plant("stable instructions that are marked", "prompt.moving_prefix", False,
          lambda scene: _marked(scene, is_moving=False), touches=PROMPTS),
    Plant("release with a number in its system prompt", "prompt.cache_dropped", True,
          lambda scene: _released(scene, is_moving=True), frozenset({"prompt.prefix_differs"}) | MOVES,
          PROMPTS | frozenset({"seconds"})),
    Plant("release with a stable system prompt", "prompt.cache_dropped", False,
          lambda scene: _released(scene, is_moving=False), touches=PROMPTS | frozenset({"seconds"})),
    Plant("engine without a prefix cache", "engine.kv_hit_low", True, lambda scene: _cold_engine(scene, 0.05),
          touches=PROMPTS | ENGINE),
    Plant("engine with a warm prefix cache", "engine.kv_hit_low", False, lambda scene: _cold_engine(scene, 0.75),
          touches=PROMPTS | ENGINE),
)
