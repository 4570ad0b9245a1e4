"""Draw the pictures of docs/concepts: each policy off and on, with the same load and seed, in virtual time.

    make pictures                                   all of them, twenty thousand requests a line
    scripts/pictures/run.py hedging lanes --n 2000 --out /tmp
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import cache_scenes
import policy_scenes
import proof_scenes
from draw import Words, picture
from scene import Scene

SEED = 1
N = 20_000
ROOT = Path(__file__).parents[2]

SCENES: Mapping[str, Scene] = MappingProxyType({
    "admission": Scene(
        "Admission: premium requests at five times the capacity",
        "prove overload: an engine of 128 slots; a premium tenant uses 15 % of its capacity, other tenants the rest of "
        "the fivefold load. Without max_in_flight, the engine's learned limit delays and rejects all tenants alike.",
        proof_scenes.admission),
    "breakers": Scene(
        "Breakers: the first of two providers becomes ten times slower",
        "The providers of prove brownout (median 0.2 s), used in order (pick: order), 100 requests/s, from the start of "
        "the slow period on. Hedges are off, since they would hide the effect.",
        policy_scenes.breakers),
    "budget": Scene(
        "Deadlines and fallbacks: a slow tail, and 2.5 s for each answer",
        "The first choice takes 0.4 s, one time in ten 4 s (medians); the fallback takes 0.15 s and has half of the time. "
        "Hedges are off, since they would hide the effect. Without a fallback, a late request fails at its deadline.",
        policy_scenes.budget),
    "cache": Scene(
        "Cache: frequent questions",
        "Four of five questions are among 500 with frequencies by Zipf's law, from an empty cache; provider "
        "gpt-4o-mini-like. A hit takes no virtual time and is drawn at 1 ms.",
        policy_scenes.cache),
    "cache-stores": Scene(
        "Stores: eight gateways and a thousand frequent questions",
        "Four of five questions are among a thousand with frequencies by Zipf's law, sent to a random one of eight "
        "gateways, 20 requests/s in all, from empty caches; provider gpt-4o-mini-like. The store is 0.3 ms away. A hit "
        "takes no other virtual time and is drawn at 1 ms.",
        cache_scenes.stores),
    "fairness": Scene(
        "Fairness: two quiet tenants beside one with twenty times its share",
        "prove noisy: 32 slots; the third tenant's arrivals are as bursty as Azure's code trace. The curves are the quiet "
        "tenants'. If all use one key (one tenant), the noisy requests take the slots and fill the queue.",
        policy_scenes.fairness),
    "hedging": Scene(
        "Hedging: two providers, each with p99 8 s",
        "prove tail: 93.2 % lognormal (median 0.19 s), 6.8 % lognormal (median 3.7 s); 100 requests/s, default settings.",
        proof_scenes.hedging),
    "lanes": Scene(
        "Lanes: short prompts, while 1 of 50 has 100 times the tokens",
        "prove stragglers, continuous engine: 57.5 requests/s, 99 % of its prefill capacity; 128 slots and the same queue "
        "for both. The curves are the short prompts'.",
        proof_scenes.lanes),
    "limits": Scene(
        "Limits: an engine, a hosted provider behind it, and peaks",
        "pick: order; the engine's capacity is 32 requests at once (64/s), which the gateway does not know. The load is "
        "38/s, and 96/s for 20 s of each minute; provider gpt-4o-mini-like. Hedges and breakers are off, since they would "
        "hide the effect.",
        policy_scenes.limits),
    "prompt-layout": Scene(
        "Prompt layout: agents before Anthropic's prompt cache",
        "prove prefix, Anthropic: instructions and tools of about 20,000 tokens, 12 turns each, in virtual time by the "
        "provider's rules; the order of the tools is the same for both curves. The first token takes 0.1 ms for each "
        "token that is new to the provider.",
        cache_scenes.prompts),
    "quotas": Scene(
        "Quotas: beside a tenant that sends 1,000 requests in 10 s each minute",
        "One engine of 32 slots (64 requests/s) without max_in_flight. The curves are those of the other tenant, with 25 "
        "requests/s; the quota limits the greedy one.",
        policy_scenes.quotas),
    "retry-budget": Scene(
        "Retry budget: an engine that reads 10 prompts/s, and one burst",
        "Five minutes of 5 requests/s with 32 more within a second half-way, repeated from the start. Each attempt is "
        "given up after 2 s without a token, but the engine still reads its prompt: with two retries each, the retries "
        "alone keep it full for minutes. Breakers, limits and hedges are off.",
        policy_scenes.retries),
    "routing": Scene(
        "Routing: conversations of 8 turns before four engines with prefix caches",
        "0.8 conversations/s with a shared system prompt of 1,000 tokens; each engine reads 8,000 tokens/s.",
        policy_scenes.routing),
    "semantic-cache": Scene(
        "Semantic cache: 36 questions, each in 512 wordings",
        "20 requests/s, questions by Zipf's law, from empty caches; the model takes 0.5 s (median), the real embedder 2 "
        "ms of virtual time. Hit rate and errors depend on your questions: these are made from templates, and only the "
        "wait is meaningful.",
        cache_scenes.semantic),
    "stalls": Scene(
        "Stalls: one answer in fifty halts for 30 s",
        "prove stalls: two replicas, 120 words an answer at 20 ms a word.",
        proof_scenes.halts, "Longest gap in an answer"),
    "workers": Scene(
        "Workers: four processes, 32 slots",
        "40 clients, each connected to a random worker, use three quarters of the capacity of 32 slots. A request that "
        "waits longer than max_wait_s (2 s) for a slot is rejected.",
        policy_scenes.workers),
})


def write(name: str, n: int, seed: int, folder: Path) -> Path:
    """Run one scene and draw it."""
    scene = SCENES[name]
    off, on = scene.play(n, seed)
    n_drawn = len(off.values_s), len(on.values_s)
    counts = f"{n_drawn[0]:,}" if n_drawn[0] == n_drawn[1] else f"{n_drawn[0]:,} and {n_drawn[1]:,}"
    notes = (scene.about, f"{counts} values drawn, virtual time, seed {seed}: scripts/pictures/run.py {name} --n {n}")
    path = folder / f"policy-{name}.svg"
    path.write_text(picture(Words(scene.title, scene.measure, notes), off, on), encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*SCENES, []], help="pictures to draw (default: all)")
    parser.add_argument("--n", type=int, default=N, help="approximate number of requests a line")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="output folder")
    given = parser.parse_args()
    for name in given.names or SCENES:
        print(write(name, given.n, given.seed, given.out), flush=True)


if __name__ == "__main__":
    main()
