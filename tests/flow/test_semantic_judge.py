"""The semantic cache with the real embedder and the real judge, on what fooled one."""

from itertools import product
from pathlib import Path
from random import Random

import pytest
import uvloop

from stayfast.pipeline.cache.answer_judge import N_SHORT_WORDS
from stayfast.policy.cache.similarity import SemanticConfig
from stayfast.stores.onnx_embedder import OnnxEncoder
from tests.flow.real_embedder import LearningCache, weights

__all__ = ["weights"]
Weights = tuple[OnnxEncoder, Path]

PRICES = {"one": 4, "two": 9, "three": 14, "four": 23, "five": 31}
LETTER = (
    "Thank you for asking. Sending a parcel in the {kilos} kilogram class with our standard service costs {price} euros in "
    "total, tax included, wherever in the country you send it to. Drop it at any of our shops or lockers before noon, keep "
    "the receipt that you are given there, and follow it with the number that is printed on it. A parcel is usually at its "
    "door after a day or at most after the next, and we tell its receiver by message when that is so.")
ASKED = ("What does a {kilos} kilogram parcel cost to send", "How much is it to send a {kilos} kilogram parcel",
         "What do you charge for a parcel of {kilos} kilograms", "Which fee is there for a {kilos} kilogram parcel",
         "How much do I pay for sending a parcel of {kilos} kilograms",
         "What is the cost for shipping a {kilos} kilogram parcel")
ENDS = ("", " please", " within the country", " by standard service", " in your shop", " if I drop it off",
        " for a customer", " at your counter", " as a private person", " to a friend")

FABRICS = {"cotton": "hot", "linen": "warm", "silk": "ice", "wool": "cold", "velvet": "dry"}
FORM = (
    "Thank you for asking. A {fabric} shirt of ours should be given the {programme} programme of the machine, whatever "
    "its colour and cut. Turn it inside out before that, close its buttons, and do not put more than a handful of other "
    "things in beside it. Let it dry on a hanger in the shade, and iron it from the inside while it is a little damp; then "
    "it keeps its shape for years.")
WASHED = ("How should a {} shirt be washed", "Which programme is right for a {} shirt", "How do people wash a shirt of {}",
          "What is the right way to wash a {} shirt", "What programme does a {} shirt need in the machine",
          "How to clean a {} shirt in the machine", "Which setting of the machine is for a shirt of {}",
          "How is a shirt made of {} to be washed")

WAYS = ("How can I reset the password of the account", "How could one reset the password of the account",
        "What is the way to reset the password of the account", "How do people reset the password of the account",
        "How should I reset the password of the account", "Where can I reset the password of the account",
        "Which way is there to reset the password for the account")
WHERE = ("", "please", "thanks", "really", "as an adult", "on the web", "on a phone", "with a laptop", "as a customer",
         "as the owner", "at home", "abroad", "in the app", "by mail", "by hand", "for a friend", "at night", "on a tablet",
         "as a member", "in the shop", "from a browser", "in full", "with help", "as staff", "at work", "while in bed",
         "in a hurry", "before lunch", "at sea", "on trains", "in a car", "in peace", "for good", "as usual", "with care",
         "on paper", "as planned", "in theory", "in practice", "by phone", "with ease", "on a bus", "in the end",
         "once more", "as a student")
UNRELATED = (
    "What is the capital city of France called?", "Which wine goes well with grilled salmon?",
    "Is it safe to mix bleach and vinegar in the house?", "How tall is the highest mountain in the Alps?",
    "Who wrote the play about the prince of Denmark?", "What does the warranty of the washing machine cover?",
    "How many grams of sugar are in the cake recipe?", "Is a visa needed to travel to Vietnam from Spain?",
    "Which medicine helps against fever for a small child?", "When does the train to Berlin leave the station?")


def test_semantic_judge_prices_in_one_template_stay_apart(weights: Weights) -> None:
    """Five prices in a letter of seventy words, three hundred questions: every hit has the right price, and no two prices
    are one answer.
    """
    assert len(LETTER.split()) > N_SHORT_WORDS

    async def main() -> None:
        asker = LearningCache(weights[0], SemanticConfig("1%"))
        questions = [(asked.format(kilos=kilos) + end + "?", kilos) for asked, end, kilos in product(ASKED, ENDS, PRICES)]
        Random(3).shuffle(questions)
        wrong = []
        for question, kilos in questions:
            right = LETTER.format(kilos=kilos, price=PRICES[kilos])
            given = await asker.answer(question, right, "acme")
            wrong += [(question, given)] if given not in ("", right) else []
        its = asker.semantic.stats()
        asker.close()
        assert wrong == []
        assert len(PRICES) <= its.n_answers <= 2 * len(PRICES)
        assert its.n_labels > 100

    uvloop.run(main())


def test_semantic_judge_words_in_one_template_stay_apart(weights: Weights) -> None:
    """Five programmes for five fabrics in a letter of sixty-five words, four hundred questions: hits are right, and no two
    answers are one.
    """
    assert len(FORM.split()) > N_SHORT_WORDS

    async def main() -> None:
        asker = LearningCache(weights[0], SemanticConfig("1%"))
        rights = [FORM.format(fabric=fabric, programme=programme) for fabric, programme in FABRICS.items()]
        rows = await asker.embedding.background.embed(rights) if asker.embedding.background is not None else None
        assert rows is not None
        assert (rows @ rows.T)[0, 1:].max() > 0.9  # by the vectors alone they are one
        questions = [(form.format(fabric) + end + "?", right)
                     for form, end, (fabric, right) in product(WASHED, ENDS, zip(FABRICS, rights, strict=True))]
        Random(3).shuffle(questions)
        given = [(await asker.answer(question, right, "acme"), right) for question, right in questions]
        its = asker.semantic.stats()
        asker.close()
        hits = [said == right for said, right in given if said]
        assert hits.count(False) <= 0.01 * len(hits)
        assert len(FABRICS) <= its.n_answers <= 2 * len(FABRICS)
        assert its.n_labels > 100

    uvloop.run(main())


def test_semantic_judge_labels_of_one_topic_prove_no_other(weights: Weights) -> None:
    """Three hundred phrasings of one question prove nothing about other questions, of this tenant or of others."""

    async def main() -> None:
        asker = LearningCache(weights[0], SemanticConfig("1%"))
        for where, way in product(WHERE, WAYS):
            await asker.answer(f"{way} {where}".strip() + "?", "Click the link in the mail.", "acme")
        assert asker.semantic.stats().n_labels >= 300
        await asker.answer("How do I renew the contract of the office printer?", "Call the vendor at once.", "globex")
        for tenant in ("globex", "acme"):
            given = [await asker.answer(question, f"All about it: {question}", tenant) for question in UNRELATED]
            assert given == [""] * len(UNRELATED)
        asker.close()

    uvloop.run(main())


HELP = {
    ("renew", "passport"): "Bring two photographs to the town hall in the morning.",
    ("translate", "passport"): "Only a sworn interpreter may do so; the court has a list of them.",
    ("cancel", "passport"): "Call the police, who tell the border at once.",
    ("renew", "contract"): "It goes on by itself for a year unless somebody says no.",
    ("translate", "contract"): "Our lawyers have it in English, French and Dutch on request.",
    ("cancel", "contract"): "Write us a letter until the end of the month, signed by hand.",
    ("renew", "calendar"): "Pull down the page with your thumb until the wheel turns.",
    ("translate", "calendar"): "Days are shown in the language of your telephone.",
    ("cancel", "calendar"): "Under sharing, take away the tick beside the group.",
    ("renew", "prescription"): "The practice writes one each quarter, ask at the desk.",
    ("translate", "prescription"): "Pharmacies abroad know the Latin names on it anyhow.",
    ("cancel", "prescription"): "Bring the packet back unopened and get the money."}
FORMS = ("how can a customer {} the {}", "where does one {} the {}", "please explain how to {} the {}",
         "which steps are there to {} the {}", "is there a way to {} the {}", "what must somebody do to {} the {}")
TAILS = ("", " at once", " by phone", " in the app", " on site", " for a friend", " at the desk", " as a guest", " by mail",
         " in the evening")


def test_semantic_judge_gives_right_hits_after_calibration(weights: Weights) -> None:
    """A dozen things that are easily confused, at 5 %: many of the last third are hits, and right."""
    ways = [(form.format(*of) + tail + "?", said) for form, tail in product(FORMS, TAILS) for of, said in HELP.items()]
    Random(5).shuffle(ways)

    async def main() -> None:
        asker = LearningCache(weights[0], SemanticConfig("5%"))
        given = [(await asker.answer(question, right, "acme"), right) for question, right in ways]
        its = asker.semantic.stats()
        asker.close()
        hits = [said == right for said, right in given if said]
        assert sum(bool(said) for said, _ in given[-len(given) // 3:]) > 40, its
        assert hits.count(False) <= 0.05 * len(hits)
        assert its.estimate is not None
        assert its.estimate.high <= 0.05

    uvloop.run(main())


@pytest.mark.parametrize(("one", "other", "expected"), [
    ("It costs 12 euros in total.", "It costs 120 euros in total.", False),
    ("Yes, you can.", "No, you can not.", False),
    ("Press the red button at the back for five seconds.", "Press the green button at the back for five seconds.", False),
    ("The capital of France is Paris.", "Paris is the capital city of France.", True),
    ("Open the settings and choose your language.", "Our shops are open until eight in the evening.", False)])
def test_semantic_judge_compares_answers(one: str, other: str, expected: bool, weights: Weights) -> None:
    async def main() -> None:
        asker = LearningCache(weights[0], SemanticConfig("1%"))
        assert await asker.semantic.sameness.is_same(one, other) is expected
        asker.close()

    uvloop.run(main())
