"""The pictures of docs/concepts: each policy off and on, the same load and the same draws, in virtual time.

    make pictures                                   all of them, twenty thousand requests a line
    scripts/pictures/run.py hedging lanes --n 2000 --out /tmp
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import kept
import own
import proofs
from draw import Words, picture
from scene import Scene

SEED = 1
N = 20_000
ROOT = Path(__file__).parents[2]

SCENES: Mapping[str, Scene] = MappingProxyType({
    "admission": Scene(
        "Admission: premium requests while five times too much is asked",
        "prove overload: an engine of 128 slots; a premium tenant asks 15 % of what it can do, others the rest of the five "
        "times. Without a ceiling the engine's learned limit makes everybody wait and turns away whoever comes, premium or "
        "not.", proofs.admission),
    "breakers": Scene(
        "Breakers: the first of two providers turns ten times slower",
        "The providers of prove brownout (median 0.2 s), asked in order (pick: order), 100 requests/s, from the start of "
        "the slow time on. Hedges are off, which would hide it.", own.breakers),
    "budget": Scene(
        "Deadlines and fallbacks: a slow tail, and 2.5 s for each answer",
        "The first choice takes 0.4 s, and one time in ten 4 s (medians); the fallback takes 0.15 s and has half of the "
        "time. Hedges are off, which would hide it. Without a fallback a late request fails at its deadline.", own.budget),
    "cache": Scene(
        "Cache: frequent questions",
        "Four of five questions are among 500 that come by Zipf's law, from an empty cache; provider gpt-4o-mini-like. A "
        "hit takes no virtual time and is drawn at 1 ms; a miss waits as ever.", own.cache),
    "cache-stores": Scene(
        "Stores: eight gateways and a thousand frequent questions",
        "Four of five questions are among a thousand that come by Zipf's law, to any of eight gateways, 20 requests/s in "
        "all, from empty caches; provider gpt-4o-mini-like. The store is 0.3 ms away. A hit takes no other virtual time and "
        "is drawn at 1 ms.", kept.stores),
    "fairness": Scene(
        "Fairness: two quiet tenants beside one with twenty times its share",
        "prove noisy: 32 places; the third's arrivals are as bursty as Azure's code trace; drawn are the quiet ones. As one "
        "tenant (one key for all) the noisy one's requests have the places and fill the queue.", own.fairness),
    "hedging": Scene(
        "Hedging: two providers, each with p99 8 s",
        "prove tail: 93.2 % lognormal (median 0.19 s), 6.8 % lognormal (median 3.7 s); 100 requests/s, nothing "
        "configured.", proofs.hedging),
    "lanes": Scene(
        "Lanes: short prompts, while 1 of 50 has 100 times the tokens",
        "prove stragglers, continuous engine: 57.5 requests/s, 99 % of what it can read; 128 places and the same queue for "
        "both. Drawn are the short ones.", proofs.lanes),
    "limits": Scene(
        "Limits: an engine, a hosted provider behind it, and peaks",
        "pick: order; the engine runs 32 requests (64/s) and is asked 38/s, and 96/s in 20 s of each minute; the gateway is "
        "told neither; provider gpt-4o-mini-like. Hedges and breakers are off, which would hide it.",
        own.limits),
    "prompt-layout": Scene(
        "Prompt layout: agents before Anthropic's prompt cache",
        "prove prefix, Anthropic: instructions and tools of some 20,000 tokens, 12 turns each, in virtual time by the "
        "provider's rules; tools come in one order with and without. The first token waits 0.1 ms for each token that is "
        "new to the provider.", kept.prompts),
    "quotas": Scene(
        "Quotas: beside a tenant that sends 1,000 requests in 10 s each minute",
        "One engine of 32 slots (64 requests/s) and no ceiling; the other tenant asks 25/s, and its waits are drawn. The "
        "quota is the greedy one's.", own.quotas),
    "retry-budget": Scene(
        "Retry budget: an engine that reads 10 prompts/s, and one burst",
        "Five minutes of 5 requests/s, 32 more within a second in their middle, again and again from the start. Each "
        "attempt is given up after 2 s without a token, and the engine reads on what was given up: with two retries each "
        "the retries alone keep it full for minutes. Breakers, limits and hedges are off.", own.retries),
    "routing": Scene(
        "Routing: conversations of 8 turns before four engines that keep prompts",
        "0.8 conversations/s over a system prompt of 1,000 tokens that all share; each engine reads 8,000 tokens/s.",
        own.routing),
    "semantic-cache": Scene(
        "Semantic cache: 36 things, each asked for in 512 ways",
        "20 requests/s, things by Zipf's law, from empty caches; the model takes 0.5 s (median), the real embedder is given "
        "2 ms of virtual time. How much is given, and how often that is wrong, depends on your questions: these are made "
        "of templates, and this is a picture of the wait alone.", kept.semantic),
    "stalls": Scene(
        "Stalls: one answer in fifty halts for 30 s",
        "prove stalls: two replicas, 120 words an answer at 20 ms a word.", proofs.halts, "Longest wait inside an answer"),
    "workers": Scene(
        "Workers: four processes, 32 places",
        "40 clients, each with its connection at one of the workers by chance, ask for three quarters of what 32 places "
        "give. Who waits longer than max_wait_s (2 s) for a place is turned away.", own.workers),
})


def write(name: str, n: int, seed: int, folder: Path) -> Path:
    """Play one and draw it."""
    scene = SCENES[name]
    off, on = scene.play(n, seed)
    n_drawn = len(off.values_s), len(on.values_s)
    counts = f"{n_drawn[0]:,}" if n_drawn[0] == n_drawn[1] else f"{n_drawn[0]:,} and {n_drawn[1]:,}"
    notes = (scene.about, f"{counts} values drawn, virtual time, seed {seed}: scripts/pictures/run.py {name} --n {n}")
    path = folder / f"policy-{name}.svg"
    path.write_text(picture(Words(scene.title, scene.measure, notes), off, on), encoding="utf-8")
    return path


def main() -> None:
    """Read the command line, play, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*SCENES, []], help="which (all)")
    parser.add_argument("--n", type=int, default=N, help="requests a line, about")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="a folder")
    given = parser.parse_args()
    for name in given.names or SCENES:
        print(write(name, given.n, given.seed, given.out), flush=True)


if __name__ == "__main__":
    main()
