"""The shipped model gives the written answers, also to paraphrases that it never saw."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from tests.engine.answers import DRAFT, TINY, Probe, ask, held_out_probes, mistakes, serving
from training.augment import Augmenter
from training.topics import Topic, load_held_out, load_topics, normalise

pytestmark = pytest.mark.sockets

TRAINING_SHARE = 0.90
HELD_OUT_SHARE = 0.70


@pytest.fixture(scope="module")
def topics() -> list[Topic]:
    """The corpus, read once."""
    return load_topics()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One real server for all questions."""
    with serving() as where:
        yield where


def assert_share(probes: Sequence[Probe], failed: Sequence[str], wanted: float) -> None:
    """The message lists what went wrong: a bare percentage starts no repair."""
    share = 1 - len(failed) / len(probes)
    assert share >= wanted, f"{share:.1%} of {len(probes)} right, wanted {wanted:.0%}:\n" + "\n".join(failed)


def test_answers_trained_questions(address: str, topics: list[Topic]) -> None:
    """The first phrasing of every topic, and one more drawn with a fixed seed."""
    rng = Random(7)
    probes = [Probe(topic.name, q) for topic in topics for q in (topic.ask[0], rng.choice(topic.ask[1:]))]
    assert_share(probes, mistakes(address, probes, topics), TRAINING_SHARE)


def test_answers_unseen_paraphrases(address: str, topics: list[Topic]) -> None:
    """All held-out questions."""
    probes = held_out_probes()
    assert_share(probes, mistakes(address, probes, topics), HELD_OUT_SHARE)


def test_answers_at_the_temperature_of_clients(address: str, topics: list[Topic]) -> None:
    """Clients rarely set a temperature; 1.0 is what the OpenAI API documents as its default."""
    probes = [Probe(topic.name, topic.ask[0]) for topic in Random(8).sample(topics, 100)]
    assert_share(probes, mistakes(address, probes, topics, temperature=1.0, seed=1), TRAINING_SHARE)


def test_answers_the_last_question_of_a_conversation(address: str, topics: list[Topic]) -> None:
    """A system prompt and an earlier turn do not distract it."""
    rng = Random(9)
    probes = []
    for topic in rng.sample(topics, 80):
        past = rng.choice(topics)
        before = (("system", "You are a helpful assistant."), ("user", past.ask[0]), ("assistant", past.answer))
        probes.append(Probe(topic.name, topic.ask[0], before))
    assert_share(probes, mistakes(address, probes, topics), TRAINING_SHARE)


@pytest.mark.parametrize("system", ["You are a helpful assistant.", "You are a careful assistant for engineers. " * 30],
                         ids=["short", "long"])
def test_a_system_prompt_changes_few_answers(address: str, topics: list[Topic], system: str) -> None:
    """Not even one of 210 words, which is left out."""
    probes = [Probe(topic.name, topic.ask[0], (("system", system),)) for topic in topics[::3]]
    assert_share(probes, mistakes(address, probes, topics), TRAINING_SHARE)


def test_draft_changes_no_answer(address: str, topics: list[Topic]) -> None:
    """Speculation is allowed to save time, never to change a word."""
    questions = [Probe(topic.name, topic.ask[0]) for topic in Random(10).sample(topics, 12)]
    with serving(draft=DRAFT) as with_draft:
        for probe in questions:
            assert ask(with_draft, probe, {"temperature": 0}) == ask(address, probe, {"temperature": 0})


def test_every_topic_has_enough_phrasings(topics: list[Topic]) -> None:
    """At least 250 topics, six phrasings each, and held-out paraphrases for every one."""
    held_out = load_held_out()
    assert len(topics) >= 250
    assert sorted(held_out) == sorted(topic.name for topic in topics)
    assert [topic.name for topic in topics if len(topic.ask) < 6] == []


def test_held_out_questions_are_not_trained(topics: list[Topic]) -> None:
    """Neither as written nor apart from case and punctuation."""
    trained = {normalise(q) for topic in topics for q in topic.ask}
    held_out = [q for questions in load_held_out().values() for q in questions]
    assert [q for q in held_out if normalise(q) in trained] == []


def test_augmentation_makes_no_held_out_question(topics: list[Topic]) -> None:
    """The augmenter is told what is forbidden, and a long draw obeys."""
    held_out = {normalise(q) for questions in load_held_out().values() for q in questions}
    augmenter = Augmenter(topics, held_out, Random(11))
    drawn = {normalise(augmenter.question(topic)) for topic in topics for _ in range(100)}
    assert drawn & held_out == set()


def test_files_are_small_enough_to_ship() -> None:
    """They travel in the wheel."""
    assert 3_000_000 < TINY.stat().st_size < 8_000_000
    assert DRAFT.stat().st_size < 1_000_000
