"""A simulated small model that summarizes by copying, and conversations of any length for it.

The model reads the prompt that the gateway sends it. As a fact it copies each sentence with a number, a name or a path that
no earlier copied sentence has, within a fifth of the conversation; as a failed step each call whose last result was an
error. It also copies what the prompt requires, and what was missing. So it invents nothing. When wrong: real
models write other words, and refuse or fail more often.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from stayfast.core.context import TurnText
from stayfast.lab.context.conversations import make_conversation

_LINE: Final = re.compile(r"^\[t(\d+) (user|assistant|tool)( error)?\] ", re.MULTILINE)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_ATOM: Final = re.compile(r"\S*[\d/_@`]\S*|\b[a-z]+[A-Z]\w*|(?<=[a-z,] )[A-Z]\w+(?: [A-Z]\w+)*")
_MAX_CHARS: Final = 200  # of a copied sentence
_SHARE: Final = 0.2  # of the conversation's characters


def write_extract(prompt: str) -> str:
    """The model's answer to a summary prompt."""
    rest = prompt.partition("<conversation>\n")[2]
    talk, _, rejected = rest.partition("\n</conversation>")
    required, _, rejected = rejected.partition("Your last summary was rejected.")
    wanted = [line[2:] for line in required.splitlines() if line.startswith("- ")]
    wanted += [line.partition(": ")[2] for line in rejected.splitlines() if line.startswith("- ")]
    lines = list(_read_lines(talk))
    room = int(len(talk) * _SHARE / (2 if "- length: " in rejected else 1))
    known, facts = set[str](), list[str]()
    steps = list(_list_failures(lines))
    for turn, _, is_error, text in lines:
        for sentence in _SENTENCE.split("" if is_error else text):
            atoms = {atom.strip(".,;:!?()\"'") for atom in _ATOM.findall(sentence)}
            is_wanted = any(item in sentence and item not in " ".join(facts) for item in wanted)
            if is_wanted or (atoms - known and len(sentence) <= min(_MAX_CHARS, room)):
                known |= atoms
                room -= len(sentence) + 10
                facts.append(f"- {sentence.strip()} [t{turn}]")
    first = next((text for _, role, _, text in lines if role == "user"), "")
    sections = [("FACTS:", facts), ("STATUS:", steps), ("NARRATIVE:", [_SENTENCE.split(first)[0]])]
    return "\n".join(line for title, found in sections if found for line in (title, *found))


def _list_failures(lines: Sequence[tuple[int, str, bool, str]]) -> Iterator[str]:
    """A line for each call whose last result was an error."""
    last: dict[str, tuple[int, bool]] = {}
    call = ""
    for turn, role, is_error, text in lines:
        if role == "assistant":
            call = text
        elif role == "tool":
            last[call] = turn, is_error
    for call, (turn, is_error) in sorted(last.items(), key=lambda item: item[1][0]):
        if is_error:
            yield f"- failed: {call} [t{turn}]"


def make_long_conversation(seed: int, n_turns: int) -> list[list[TurnText]]:
    """The texts of at least n_turns turns, by turn: several conversations of the laboratory, one after another."""
    turns: list[list[TurnText]] = []
    number = 0
    while len(turns) < n_turns:
        conversation = make_conversation(seed * 1000 + number)
        number += 1
        for turn in range(1, conversation.n_turns + 1):
            n = len(turns) + 1
            turns.append([replace(text, turn=n) for text in conversation.source if text.turn == turn])
    return turns[:n_turns]


def _read_lines(talk: str) -> Iterator[tuple[int, str, bool, str]]:
    """Turn, role, whether it is an error, and text."""
    heads = list(_LINE.finditer(talk))
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(talk)
        yield int(head[1]), head[2], head[3] is not None, talk[head.end():end].strip()
