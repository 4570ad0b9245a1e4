"""Asks the shipped model many questions and judges the answers.

Run it to see every figure, over all phrasings: python -m tests.engine.answers
"""

import argparse
import contextlib
import difflib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from training.topics import REPOSITORY, Topic, load_held_out, load_topics

MODELS = REPOSITORY / "src" / "stayfast" / "engine" / "models"
TINY = MODELS / "stayfast-tiny-q8_0.gguf"
DRAFT = MODELS / "stayfast-draft-q8_0.gguf"
N_SLOTS = 8
SLOT_TOKENS = 1024
CLOSE_ENOUGH = 0.85


@dataclass(frozen=True, slots=True)
class Probe:
    """A question, the topic that should answer it, and what precedes it in the conversation."""

    topic: str
    question: str
    before: tuple[tuple[str, str], ...] = ()


@contextlib.contextmanager
def serving(model: Path = TINY, draft: Path | None = None) -> Iterator[str]:
    """The address of a real llama.cpp server with the model; it ends with the block."""
    command = [sys.executable, str(Path(__file__).with_name("answers_server.py")), str(model)]
    command += [str(N_SLOTS), str(SLOT_TOKENS)] + ([str(draft)] if draft else [])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), f"the server did not start: {address!r}, rc {child.poll()}"
        try:
            yield address
        finally:
            child.communicate(timeout=20)


def ask(address: str, probe: Probe, options: dict[str, Any]) -> str:
    """The text of one answer."""
    messages = [{"role": role, "content": content} for role, content in probe.before]
    messages.append({"role": "user", "content": probe.question})
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        body = json.dumps({"messages": messages, "max_tokens": 96, **options})
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        reply = json.loads(response.read())
        assert response.status == 200, reply
        text: str = reply["choices"][0]["message"]["content"]
        return text
    finally:
        connection.close()


def wrong(probes: Sequence[Probe], texts: Sequence[str], topics: Sequence[Topic]) -> list[str]:
    """One line for each answer that is not the answer of its topic."""
    answers = {topic.name: topic.answer for topic in topics}
    return [
        f"{probe.topic}: {probe.question!r} -> {text[:70]!r}"
        for probe, text in zip(probes, texts, strict=True)
        if not is_right(text, probe.topic, answers)
    ]


def is_right(text: str, topic: str, answers: dict[str, str]) -> bool:
    """Close to the reference answer, and closer to it than to the answer of any other topic."""
    if text == answers[topic]:
        return True
    likeness = difflib.SequenceMatcher(None, text, answers[topic], autojunk=False).ratio()
    if likeness < CLOSE_ENOUGH:
        return False
    others = (answer for name, answer in answers.items() if name != topic)
    return all(difflib.SequenceMatcher(None, text, other, autojunk=False).ratio() < likeness for other in others)


def mistakes(address: str, probes: Sequence[Probe], topics: Sequence[Topic], **options: Any) -> list[str]:
    """Asks everything in parallel; greedy unless the options say otherwise."""
    chosen = options or {"temperature": 0}
    with ThreadPoolExecutor(N_SLOTS) as pool:
        texts = list(pool.map(lambda probe: ask(address, probe, chosen), probes))
    return wrong(probes, texts, topics)


def held_out_probes() -> list[Probe]:
    """Every paraphrase that training never saw."""
    return [Probe(topic, q) for topic, questions in load_held_out().items() for q in questions]


def main() -> None:
    """Prints the accuracy over every phrasing there is, and the mistakes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=TINY)
    options = parser.parse_args()
    topics = load_topics()
    groups = {
        "training": [Probe(topic.name, q) for topic in topics for q in topic.ask],
        "held out": held_out_probes(),
    }
    with serving(options.model) as address:
        for name, probes in groups.items():
            for label, how in (("greedy", {"temperature": 0}), ("server default", {"seed": 1})):
                failed = mistakes(address, probes, topics, **how)
                right = len(probes) - len(failed)
                summary = f"{name}, {label}: {right} of {len(probes)} = {100 * right / len(probes):.1f} %"
                sys.stdout.write("\n  ".join([summary, *failed]) + "\n")


if __name__ == "__main__":
    main()
