"""The answers of a simulated model to a bank's customers: each topic has facts, and each answer words them anew.

A topic's facts follow from its name: where to find it in the app, how long it takes, what it costs, which document is needed
and which team helps. An answer has the facts in random order, each in one of several sentences (active or passive, other
words), between a lead-in and a closing. No two answers of a topic have the same words.

Nothing in an answer names its topic to a judge: only `AnswerBook`, which has seen all answers, knows the topic of each.
"""

from random import Random
from typing import Final, NamedTuple

_MENUS: Final = ("Cards", "Payments", "Profile", "Transfers", "Top up", "Security", "Documents", "Support", "Limits",
                 "Statements", "Devices", "Exchange")
_ITEMS: Final = ("Overview", "History", "Settings", "Requests", "Details", "Activity", "Schedule", "Partners", "Approvals",
                 "Preferences", "Orders", "Checks")
_DOCUMENTS: Final = (
    "a photo of your passport", "a recent utility bill", "your driving licence", "a selfie taken in daylight",
    "the receipt of the shop", "a statement of your other bank", "your tax number", "the contract with your employer",
    "the reference of the payment", "the serial number of your phone", "a signed form", "the letter from the branch")
_TEAMS: Final = ("the card team", "the payments team", "the fraud team", "the branch office", "the transfer desk",
                 "the chat agents", "the complaints office", "the verification team", "the currency desk",
                 "the account managers")
_LEADS: Final = (
    "Thanks for getting in touch about {subject}.", "Happy to help with {subject}.", "Here is how it works: {subject}.",
    "You asked about {subject}, and that is easily explained.", "About {subject}:",
    "Good question. On {subject} our rules are simple.", "Let me walk you through {subject}.",
    "I understand that this is about {subject}.", "Sure! Regarding {subject}, please read on.")
_PLACES: Final = (
    "Open the app and go to {menu}, then choose {item}.", "In the app you find this in {menu}, section {item}.",
    "The place to look is {item}, which the app lists in the menu {menu}.", "Tap {menu}, and there select {item}.",
    "Everything needed was put by us into {item}; it belongs to {menu}.", "First visit {menu}. The entry {item} opens it.")
_TIMES: Final = (
    "It takes {days} working days.", "We finish such a case within {days} working days.",
    "Please allow {days} working days for it.", "You should see the outcome after {days} working days at the latest.",
    "Such cases are completed by our staff in {days} working days.", "Expect a result in {days} working days.")
_FEES: Final = (
    "The charge for this is {fee} pounds.", "We charge {fee} pounds.", "A fee of {fee} pounds applies.",
    "Your account is debited with {fee} pounds for the service.", "It costs {fee} pounds.",
    "{fee} pounds are due, and they are collected automatically.")
_PAPERS: Final = (
    "You will need {document}.", "Please have {document} ready.", "We ask for {document}.", "{document} is required.",
    "For this step {document} must be provided.", "Send us {document} so that we can proceed.")
_HELPERS: Final = (
    "If you get stuck, {team} can help.", "Should anything be unclear, contact {team}.",
    "Further questions are answered by {team}.", "{team} will gladly assist you.", "Assistance is available from {team}.",
    "Feel free to write to {team}.")
_CLOSINGS: Final = (
    "Have a nice day!", "I hope this helps.", "Is there anything else I can do for you?", "Thank you for banking with us.",
    "Let me know how it went.", "", "Best wishes from all of us.", "Please do not hesitate to write again.",
    "Stay safe and take care.")
ONE_WORD: Final = "one word"
MAX_TRIES: Final = 1000


class Topic(NamedTuple):
    """What an answer is about: the subject of a question, and the system prompt under which it was asked. demand: what the
    question demands of the answer's form: nothing, ONE_WORD, or a sentence at its end.
    """

    subject: str
    system: str
    demand: str = ""


class TopicFacts(NamedTuple):
    subject: str
    menu: str
    item: str
    days: int
    fee: str
    document: str
    team: str


def draw_facts(topic: Topic) -> TopicFacts:
    """The facts of a topic: always the same ones."""
    rng = Random(f"{topic.subject}\n{topic.system}")
    return TopicFacts(topic.subject.replace("_", " ").rstrip("?"), rng.choice(_MENUS), rng.choice(_ITEMS),
                      rng.randint(2, 30), f"{rng.randint(1, 40)}.{rng.randint(0, 99):02d}", rng.choice(_DOCUMENTS),
                      rng.choice(_TEAMS))


def word_answer(facts: TopicFacts, rng: Random) -> str:
    """About 60 words."""
    middle = [rng.choice(sentences) for sentences in (_PLACES, _TIMES, _FEES, _PAPERS, _HELPERS)]
    rng.shuffle(middle)
    sentences = [each.format(**facts._asdict()) for each in (rng.choice(_LEADS), *middle, rng.choice(_CLOSINGS))]
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences if sentence)


class AnswerBook:
    """All answers that were given, with their topics."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._facts: dict[Topic, TopicFacts] = {}
        self._topics: dict[str, Topic] = {}

    def write_answer(self, topic: Topic) -> str:
        """A new answer, in words that no answer had before, except for an answer of one word."""
        if topic.demand == ONE_WORD:
            return self._enter(f"{topic.subject.title().replace('_', '')}.", topic)
        facts = self._facts.get(topic)
        if facts is None:
            facts = self._facts[topic] = draw_facts(topic)
        for _ in range(MAX_TRIES):
            text = f"{word_answer(facts, self._rng)} {topic.demand}".strip()
            if text not in self._topics:
                return self._enter(text, topic)
        raise AssertionError(f"no new words for {topic.subject}")

    def _enter(self, text: str, topic: Topic) -> str:
        self._topics[text] = topic
        return text

    def topic_of(self, text: str) -> Topic | None:
        """None: no such answer was given."""
        return self._topics.get(text)
