"""The corpus: what the tiny model should say, and the phrasings that it learns from.

Held-out paraphrases live with the tests. They are read here for one purpose only: to keep them,
and anything that equals them apart from case and punctuation, out of training.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
CORPUS = REPOSITORY / "training" / "corpus"
HELD_OUT = REPOSITORY / "tests" / "engine" / "questions.yaml"


@dataclass(frozen=True, slots=True)
class Topic:
    """One answer with the questions that lead to it.

    `terms` are names of the thing itself; they fit into "what is ...". `nouns` are everyday words
    from which off-topic questions are made.
    """

    name: str
    answer: str
    ask: tuple[str, ...]
    terms: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()
    clues: bool = True


def normalise(question: str) -> str:
    """Lower case without punctuation: the sense in which two questions count as the same."""
    return " ".join(re.findall(r"[a-z0-9]+", question.lower()))


def load_topics(folder: Path = CORPUS) -> list[Topic]:
    """Every topic of the corpus, in the stable order of files and entries."""
    return [
        Topic(
            name=entry["topic"],
            answer=entry["answer"],
            ask=tuple(entry["ask"]),
            terms=tuple(entry.get("terms", ())),
            nouns=tuple(entry.get("nouns", ())),
            clues=entry.get("clues", True),
        )
        for path in sorted(folder.glob("*.yaml"))
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]


def load_held_out(path: Path = HELD_OUT) -> dict[str, list[str]]:
    """Topic name to the paraphrases that only the tests ask."""
    held_out: dict[str, list[str]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return held_out


def held_out_questions() -> list[str]:
    """The questions that training must never see."""
    return [question for questions in load_held_out().values() for question in questions]
