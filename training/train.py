"""Trains the tokenizer, the tiny model and its draft on a CPU, from one seed.

The model is over-fitted on purpose: it should give the written answers word for word, also when a
client samples at temperature 1. What has to generalise is only the way from a question to its topic.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional

from training.augment import Augmenter
from training.chat import END, PAD, START, SYSTEM_PROMPTS, Example, ExampleMaker, render
from training.model import Shape, TinyLlama
from training.topics import REPOSITORY, Topic, held_out_questions, load_topics

OUT = REPOSITORY / "out" / "training"
SEED = 20261121
THREADS = 1
VOCABULARY = 2048
BATCH_TOKENS = 3584
COPIES, OFF_TOPIC_COPIES = 4, 40  # of each topic in a pool; what is off topic has no end of forms


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one model is trained. `seconds` is CPU time, so that a busy machine learns as much."""

    name: str
    width: int
    layers: int
    heads: int
    hidden: int
    seconds: float
    peak_rate: float
    dropout: float
    token_noise: float
    batch: int = 64
    warmup_steps: int = 100
    whole_answer_share: float = 0.3
    mixed_share: float = 0.0
    context_share: float = 0.3
    head_tokens: int = 12
    starts_from: str | None = None


RECIPES = {
    "answers": Recipe("answers", 256, 4, 4, 768, seconds=1200, peak_rate=2e-3, dropout=0.0, token_noise=0.05),
    "tiny": Recipe(
        "tiny", 256, 4, 4, 768, seconds=1600, peak_rate=1.2e-3, dropout=0.0, token_noise=0.02,
        whole_answer_share=0.3, mixed_share=0.4, context_share=0.3, head_tokens=8, starts_from="answers",
    ),
    "draft": Recipe("draft", 128, 1, 4, 352, seconds=300, peak_rate=4e-3, dropout=0.0, token_noise=0.02),
}  # fmt: skip


def train_tokenizer(topics: list[Topic], seed: int) -> Tokenizer:
    """Byte-level BPE on the corpus itself, in the cases and forms in which people type."""
    augmenter = Augmenter(topics, held_out_questions(), Random(seed))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()

    def texts() -> Iterator[str]:
        for topic in topics:
            yield from (render("assistant", topic.answer) for _ in range(2))
            for question in topic.ask:
                yield render("user", question)
                yield question.lower()
            yield from (augmenter.question(topic) for _ in range(8))
        yield from (render("system", prompt) for prompt in SYSTEM_PROMPTS)

    tokenizer.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[PAD, START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def epochs(maker: ExampleMaker, topics: list[Topic], recipe: Recipe, rng: Random) -> Iterator[list[Example]]:
    """Batches without end; each pool holds every topic, sorted to waste little padding."""
    while True:
        pool = [
            maker.make(topic, None if rng.random() < recipe.whole_answer_share else rng.randrange(3, recipe.head_tokens))
            for topic in topics
            for _ in range(OFF_TOPIC_COPIES if topic.nouns else COPIES)
        ]
        pool.sort(key=lambda example: (len(example.ids), rng.random()))
        batches = list(cut(pool, recipe.batch))
        rng.shuffle(batches)
        yield from batches


def cut(pool: list[Example], largest: int) -> Iterator[list[Example]]:
    """Slices of a sorted pool, bounded in examples and in padded tokens, so that long ones stay cheap."""
    batch: list[Example] = []
    for example in pool:
        if batch and (len(batch) == largest or (len(batch) + 1) * len(example.ids) > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch


def tensors(batch: list[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Padded ids, positions, and which ids are answer tokens to learn."""
    length = max(len(example.ids) for example in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    positions = torch.arange(length).repeat(len(batch), 1)
    is_answer = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        positions[row, example.turn_at :] += example.gap
        is_answer[row, example.answer_at : len(example.ids)] = True
    return ids, positions, is_answer


def answer_loss(model: TinyLlama, batch: list[Example], token_noise: float) -> Tensor:
    """Cross-entropy on answer tokens; some question tokens are garbled, so no single word is trusted."""
    ids, positions, is_answer = tensors(batch)
    noisy = (torch.rand(ids.shape) < token_noise) & ~is_answer & (ids > 2)
    garbled = torch.where(noisy, torch.randint(3, model.shape.vocabulary, ids.shape), ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model(garbled, positions)
        scores = model.logits(hidden[:, :-1][is_answer[:, 1:]])
    return functional.cross_entropy(scores.float(), ids[:, 1:][is_answer[:, 1:]])


def learning_rate(recipe: Recipe, step: int, progress: float) -> float:
    """Warm-up, then a straight line to zero at the end of the time budget."""
    return recipe.peak_rate * min(1.0, (step + 1) / recipe.warmup_steps) * max(0.0, 1.0 - progress)


def train_model(recipe: Recipe, topics: list[Topic], tokenizer: Tokenizer, seed: int) -> dict[str, float]:
    """Runs the recipe, writes checkpoints, and returns the figures worth keeping."""
    torch.manual_seed(seed)
    rng = Random(seed)
    maker = ExampleMaker(topics, tokenizer, rng, context_share=recipe.context_share, mixed_share=recipe.mixed_share)
    shape = Shape(tokenizer.get_vocab_size(), recipe.width, recipe.layers, recipe.heads, recipe.hidden)
    model = TinyLlama(shape, recipe.dropout)
    if recipe.starts_from:
        model.load_state_dict(torch.load(OUT / f"{recipe.starts_from}.pt", weights_only=True)["weights"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.02)
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{recipe.name}: {parameters:,} parameters", flush=True)
    began, cpu_began, recent, tokens = time.perf_counter(), time.process_time(), 0.0, 0
    for step, batch in enumerate(epochs(maker, topics, recipe, rng)):
        elapsed = time.process_time() - cpu_began
        if elapsed >= recipe.seconds:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step, elapsed / recipe.seconds)
        loss = answer_loss(model, batch, recipe.token_noise)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += sum(len(example.ids) for example in batch)
        recent = 0.98 * recent + 0.02 * loss.item() if step else loss.item()
        if step % 50 == 0:
            print(
                f"step {step} {elapsed:.0f}s loss {recent:.4f} {tokens / (elapsed + 1e-9):.0f} tok/s",
                flush=True,
            )
        if step % 250 == 249:
            save(model, recipe.name)
    save(model, recipe.name)
    return {
        "parameters": parameters, "steps": step, "tokens": tokens, "loss": recent,
        "wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_began,
    }  # fmt: skip


def save(model: TinyLlama, name: str) -> None:
    """Weights and shape, in one file that the exporter reads."""
    torch.save({"shape": asdict(model.shape), "weights": model.state_dict()}, OUT / f"{name}.part")
    (OUT / f"{name}.part").replace(OUT / f"{name}.pt")


def train(names: Sequence[str], seed: int, threads: int) -> None:
    """Trains the named models; the tokenizer is made first and reused when present."""
    torch.set_num_threads(threads)
    OUT.mkdir(parents=True, exist_ok=True)
    topics = load_topics()
    path = OUT / "tokenizer.json"
    if not path.exists():
        train_tokenizer(topics, seed).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    for name in names:
        figures = train_model(RECIPES[name], topics, tokenizer, seed)
        (OUT / f"{name}.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")
        print(json.dumps(figures), flush=True)


def main() -> None:
    """Trains what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(RECIPES), nargs="+")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--threads", type=int, default=THREADS)
    options = parser.parse_args()
    train(options.model, options.seed, options.threads)


if __name__ == "__main__":
    main()
