"""The model of a shop's help desk: it words the answers of articles anew in each call, and compares two answers.

An answer has a lead-in, the article's number and five pieces of advice, in random order and each in one of several wordings.
So answers of one article differ in their words, and an answer's number shows for which question it was made.

A request with the instructions of the gateway's judge has two answers. The reply is yes if their articles are the same,
wrong with the probability JUDGE_ERROR.
"""

import re
from collections.abc import Mapping
from random import Random
from typing import Final

import msgspec

from stayfast.pipeline.stages.cache.llm_judge import DECIDING_PROMPT, JUDGE_PROMPT

SEPARATOR: Final = "\n\n"  # between a question and the pasted text
JUDGE_ERROR: Final = 0.02
_JUDGE_PROMPTS: Final = frozenset((JUDGE_PROMPT, DECIDING_PROMPT))
_LEADS: Final = ("Thanks for your message.", "Happy to help.", "Good question.", "Sure!", "That is easily explained.",
                 "I understand what you need.", "")
_PLACES: Final = (
    "Article {article} of our pages tells you, step by step, what to do.",
    "What to do is described step by step in article {article} of our pages.",
    "All the steps are listed on our pages, under article {article}.",
    "Our pages have the steps in order; see article {article}.",
    "You will find every step explained in article {article} on our pages.",
    "Please read article {article} on our pages, where each step is described.")
_ADVICE: Final = (
    ("Open it first, and follow it from the top to the end before you call us about it.",
     "Begin with its first line, work down to the last one, and call us only after that.",
     "Start at the top of the page and go through it to the end, and then give us a call."),
    ("Have the number of your order at hand, because the form on that page starts with it.",
     "The form on that page starts with the number of your order, so please look it up before.",
     "You need the number of your order, which is the first entry in the form on that page."),
    ("Come back to us if anything in it looks different from what you see on your screen.",
     "Should your screen show anything else than the page describes, please write to us again.",
     "If what you see on your screen differs from the page, our team is happy to hear from you."),
    ("A message confirms each step, and it arrives in your inbox within a few minutes.",
     "Each step is confirmed by a message, which you get in your inbox after a few minutes.",
     "Within a few minutes of each step you receive a message in your inbox that confirms it."),
    ("Our staff in the shop can go through the same steps together with you at the counter.",
     "At the counter in the shop our staff will gladly take the same steps together with you.",
     "You can also visit the shop, where our staff at the counter take these steps with you."))
_CLOSINGS: Final = ("I hope this helps.", "Have a nice day!", "Kind regards from the whole team.", "Good luck with it!", "",
                    "Is there anything else that we can do for you?")
_ARTICLE: Final = re.compile(r"\barticle (\d+)\b", re.IGNORECASE)
_FIRST: Final = re.compile(r"<first>(.*?)</first>", re.DOTALL)
_SECOND: Final = re.compile(r"<second>(.*?)</second>", re.DOTALL)
_TEXT: Final = re.compile(rb'"text":"([^"]*)"')  # the wordings have no character that JSON escapes


def word_answer(article: int, rng: Random) -> str:
    """About 100 words."""
    middle = [rng.choice(_PLACES).format(article=article), *(rng.choice(wordings) for wordings in _ADVICE)]
    rng.shuffle(middle)
    return " ".join(part for part in (rng.choice(_LEADS), *middle, rng.choice(_CLOSINGS)) if part)


def find_article(answer: str) -> int | None:
    """The number of an answer's article."""
    found = _ARTICLE.search(answer)
    return int(found[1]) if found is not None else None


def read_article(body: bytes) -> int | None:
    """The same, of an answer in Anthropic's dialect, whole or as a stream."""
    return find_article(b"".join(_TEXT.findall(body)).decode())


class _TextBlock(msgspec.Struct):
    text: str = ""


class _DeskMessage(msgspec.Struct):
    role: str
    content: str | list[_TextBlock]


class _DeskBody(msgspec.Struct):
    messages: list[_DeskMessage]
    system: str | list[_TextBlock] = ""


_decode_body = msgspec.json.Decoder(_DeskBody).decode


def parse_call(body: bytes) -> tuple[str, str]:
    """The instructions and the last message of a request in the dialect of Anthropic or OpenAI. A text with a cache mark is
    in blocks.
    """
    decoded = _decode_body(body)
    system = next((each.content for each in decoded.messages if each.role == "system"), decoded.system)
    return _first_text(system), _first_text(decoded.messages[-1].content)


def _first_text(content: str | list[_TextBlock]) -> str:
    return content if isinstance(content, str) else content[0].text


class DeskModel:
    """articles: of all questions. n_verdicts: replies to a judge."""

    def __init__(self, articles: Mapping[str, int], seed: int, judge_error: float = JUDGE_ERROR) -> None:
        self.n_verdicts = 0
        self._articles = articles
        self._rng = Random(seed)
        self._judge_error = judge_error

    def reply_to(self, body: bytes) -> str:
        instructions, text = parse_call(body)
        if instructions in _JUDGE_PROMPTS:
            self.n_verdicts += 1
            return "yes" if self._compare(text) else "no"
        return word_answer(self._articles[text.partition(SEPARATOR)[0]], self._rng)

    def _compare(self, prompt: str) -> bool:
        """The verdict on two answers, with its errors."""
        first, second = (find_article(found[1]) for tag in (_FIRST, _SECOND) if (found := tag.search(prompt)) is not None)
        return (first == second) != (self._rng.random() < self._judge_error)
