"""Versions of system prompts, planted: what they repeat, what moves in them, which tools nobody calls, a bad release."""

from dataclasses import replace
from random import Random
from typing import Any

from stayfast.lab.doctor.latency_plants import both
from stayfast.lab.doctor.prompt_plants import CACHED, PROMPTS, WORD, tool_body
from stayfast.lab.doctor.scene import Flow, Plant, Scene

Json = dict[str, Any]
MARKED = {"rules": "breakpoints", "min_tokens": 1024}
N_WORDS = 1500
_VOCABULARY = ("order", "parcel", "customer", "invoice", "refund", "shelf", "courier", "address", "promise", "answer",
               "sentence", "voice", "window", "number", "country", "language", "price", "tax", "garden", "winter", "summer")


def rules(n_words: int, seed: int = 1) -> str:
    """Paragraphs of words, no two alike."""
    rng = Random(seed)
    lines = [" ".join(rng.choice(_VOCABULARY) for _ in range(40)) for _ in range(n_words // 40)]
    return ".\n\n".join(lines)


RULES = rules(N_WORDS)


def _send(scene: Scene, system: Any, *, is_cached: bool = True, **flow: Any) -> Scene:
    """system: the instructions, or a function from a random generator to them."""
    def make(rng: Random, _: Flow) -> list[Json]:
        text = system(rng) if callable(system) else system
        return [{"role": "system", "content": text}, {"role": "user", "content": f"{rng.random()} {WORD * 80}"}]

    settings: Json = {"prompt_cache": CACHED} if is_cached else {}
    return scene.set(**both(**settings)).set_flow("chat", **{"make_messages": make, **flow})


def _repeated(*, is_equal: bool) -> str:
    again = rules(400, 7 if not is_equal else 1)
    return f"{RULES}\n\n{again}"


def _clocked(at: float) -> Any:
    """Instructions with the time of each request at this share of them."""
    n = int(len(RULES) * at)

    def make(rng: Random) -> str:
        now = f"2026-11-{rng.randrange(1, 29):02} {rng.randrange(24):02}:{rng.randrange(60):02}:07"
        return f"{RULES[:n]}\nNow {now}.\n{RULES[n:]}"

    return make


def _tooled(scene: Scene, *, calls_all: bool) -> Scene:
    """Eight tools of 400 tokens; the conversations call one, or all of them in turn."""
    def make(rng: Random, _: Flow) -> list[Json]:
        name = f"tool_{rng.randrange(8) if calls_all else 0}"
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
        return [{"role": "system", "content": RULES}, {"role": "user", "content": f"{rng.random()} {WORD * 40}"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": WORD * 60}]

    return scene.set(**both(prompt_cache=CACHED)).set_flow("chat", make_messages=make, body=tool_body(8))


def _examples(n_words: int) -> str:
    shots = [f"Example {n}:\nInput: {rules(n_words, n)}\nOutput: {WORD}".replace("\n\n", "\n") for n in range(2, 6)]
    return "\n\n".join([rules(400), *shots])


def _released(scene: Scene, *, is_marked: bool) -> Scene:
    """A new version after 690 s; providers cache what is marked, and its text has its mark or lost it."""
    def parts(text: str, *, has_mark: bool) -> list[Json]:
        mark: Json = {"prompt_cache_breakpoint": {"mode": "explicit"}} if has_mark else {}
        return [{"type": "text", "text": text, **mark}]

    before = _send(scene, parts(RULES, has_mark=True), per_s=2.0, until_s=690.0).set(**both(prompt_cache=MARKED))
    text = RULES.replace("parcel", "package", 3)

    def make(rng: Random, _: Flow) -> list[Json]:
        return [{"role": "system", "content": parts(text, has_mark=is_marked)},
                {"role": "user", "content": f"{rng.random()} {WORD * 80}"}]

    after = before.set_flow("chat later", per_s=2.0, from_s=690.0, make_messages=make)
    return replace(after, seconds=990.0)


PLANTS = (
    Plant("instructions with ten paragraphs twice", "prompt.repeated_paragraphs", True,
          lambda scene: _send(scene, _repeated(is_equal=True)), touches=PROMPTS),
    Plant("instructions of fifty different paragraphs", "prompt.repeated_paragraphs", False,
          lambda scene: _send(scene, _repeated(is_equal=False)), touches=PROMPTS),
    Plant("the time of each request after a tenth of the instructions", "prompt.moving_part", True,
          lambda scene: _send(scene, _clocked(0.1)), touches=PROMPTS),
    Plant("the time of each request at the end of the instructions", "prompt.moving_part", False,
          lambda scene: _send(scene, _clocked(0.97)), touches=PROMPTS),
    Plant("eight tools, of which one is called", "prompt.tools_unused", True,
          lambda scene: _tooled(scene, calls_all=False), touches=PROMPTS),
    Plant("eight tools, all called", "prompt.tools_unused", False, lambda scene: _tooled(scene, calls_all=True),
          touches=PROMPTS),
    Plant("four long examples that no cache serves", "prompt.long_examples", True,
          lambda scene: _send(scene, _examples(120), is_cached=False), touches=PROMPTS),
    Plant("four short examples", "prompt.long_examples", False,
          lambda scene: _send(scene, _examples(40), is_cached=False), touches=PROMPTS),
    Plant("release that loses the mark for the cache", "prompt.version_broke_cache", True,
          lambda scene: _released(scene, is_marked=False), touches=PROMPTS | frozenset({"seconds"})),
    Plant("release with its mark", "prompt.version_broke_cache", False,
          lambda scene: _released(scene, is_marked=True), touches=PROMPTS | frozenset({"seconds"})),
)
