"""Requests of one route, as five kinds of applications send them: texts of this repository, and sentences in other scripts.

    chat    a conversation about the documentation, one turn longer with each request
    code    a question about a part of a source file
    tools   an agent's functions with JSON Schemas, its calls and their JSON results
    rag     instructions, three to eight passages, a question
    other   short chats in Chinese, Japanese, Korean, Russian, Arabic, Hindi and French

Their tokens are counted by a vocabulary: each text, the tools as JSON, and what a chat template adds to a message.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[4]
LANGUAGES: Final = {"zh": 4, "ja": 3, "ko": 2, "ru": 2, "ar": 1, "hi": 1, "fr": 2}  # how often
TEMPLATE_TOKENS: Final = 4  # of a message: its role and separators
KINDS: Final = ("chat", "code", "tools", "rag", "other")
_QUESTIONS: Final = ("What does this do?", "Explain it in two sentences.", "Where is the bug?", "How do I set this?",
                     "Summarise the main points, and keep every number.", "Why would that be slower than before?",
                     "Write a test for it.", "Which of these is wrong, and what would you change first?")


class CountedRequest(NamedTuple):
    """A chat request, and the tokens that its upstream reports."""

    kind: str
    body: bytes
    n_tokens: int


class MixedTraffic:
    """Endless requests of one route, the same for the same seed. count: of a text."""

    def __init__(self, count: Callable[[str], int], seed: int, kinds: tuple[str, ...] = KINDS, *,
                 is_ascii: bool = False) -> None:
        """is_ascii: bodies of a client that writes other scripts as escapes."""
        self._count = count
        self._rng = Random(seed)
        self._kinds = kinds
        self._is_ascii = is_ascii
        self._passages = [part for path in sorted((ROOT / "docs").rglob("*.md")) for part in _passages(path)]
        self._code = [path.read_text(encoding="utf-8").splitlines() for path in sorted((ROOT / "src").rglob("*.py"))
                      if path.stat().st_size > 2000]
        schema = json.loads((ROOT / "docs/reference/settings.schema.json").read_text(encoding="utf-8"))
        self._schemas = [(name, part) for name, part in sorted(schema["$defs"].items()) if "properties" in part]
        self._sentences: dict[str, list[str]] = {language: [] for language in LANGUAGES}
        for line in Path(__file__).with_name("sentences.txt").read_text(encoding="utf-8").splitlines():
            language, _, sentence = line.partition(" ")
            self._sentences[language].append(sentence)
        self._chats: list[list[dict[str, Any]]] = []

    def take(self, n: int) -> list[CountedRequest]:
        """The next `n` requests."""
        return [self._next() for _ in range(n)]

    def _next(self) -> CountedRequest:
        kind = self._rng.choice(self._kinds)
        make: dict[str, Callable[[], dict[str, Any]]] = {
            "chat": self._chat, "code": self._ask_about_code, "tools": self._agent, "rag": self._retrieve,
            "other": self._other}
        body = {"model": "m", **make[kind]()}
        n_tokens = sum(self._count(text) for text in texts_of(body["messages"]))
        n_tokens += TEMPLATE_TOKENS * len(body["messages"]) + 3
        if "tools" in body:
            n_tokens += self._count(json.dumps(body["tools"], separators=(",", ":"))) + 12
        encoded = json.dumps(body, ensure_ascii=self._is_ascii, separators=(",", ":")).encode()
        return CountedRequest(kind, encoded, n_tokens)

    def _chat(self) -> dict[str, Any]:
        rng = self._rng
        if len(self._chats) < 8 or rng.random() < 0.04:
            self._chats.append([_message("system", rng.choice(self._passages))])
        chat = rng.choice(self._chats)
        if len(chat) > 40:
            self._chats.remove(chat)
        chat.append(_message("user", rng.choice(_QUESTIONS) + " " + rng.choice(self._passages)[:rng.randrange(20, 400)]))
        body: dict[str, Any] = {"messages": list(chat), "temperature": 0.2, "max_tokens": 500, "stream": True}
        chat.append(_message("assistant", rng.choice(self._passages)))
        return body

    def _ask_about_code(self) -> dict[str, Any]:
        rng = self._rng
        lines = rng.choice(self._code)
        first = rng.randrange(max(1, len(lines) - 120))
        part = "\n".join(lines[first:first + rng.randrange(20, 200)])
        return {"messages": [_message("system", "You are a careful programmer."),
                             _message("user", f"{rng.choice(_QUESTIONS)}\n```python\n{part}\n```")], "stream": True}

    def _agent(self) -> dict[str, Any]:
        rng = self._rng
        tools = [{"type": "function", "function": {"name": f"set_{name.lower()}", "description": f"Set {name}.",
                                                   "parameters": schema}}
                 for name, schema in rng.sample(self._schemas, rng.randrange(2, 8))]
        messages = [_message("system", rng.choice(self._passages)), _message("user", rng.choice(_QUESTIONS))]
        for n in range(rng.randrange(6)):
            rows = [{"id": rng.getrandbits(40), "name": rng.choice(self._schemas)[0], "seconds": round(rng.random() * 9, 3),
                     "at": f"2026-11-{rng.randrange(1, 29):02}T{rng.randrange(24):02}:{rng.randrange(60):02}:00Z",
                     "is_ok": rng.random() < 0.9} for _ in range(rng.randrange(1, 12))]
            call = {"name": f"set_{rng.choice(self._schemas)[0].lower()}",
                    "arguments": json.dumps({"n": n, "rows": rng.randrange(99)})}
            messages.append({"role": "assistant", "content": None, "tool_calls": [
                {"id": f"call_{rng.getrandbits(64):016x}", "type": "function", "function": call}]})
            messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": json.dumps(rows)})
        return {"messages": messages, "tools": tools}

    def _retrieve(self) -> dict[str, Any]:
        rng = self._rng
        found = "\n\n".join(f"[{n}] {passage}" for n, passage in enumerate(rng.sample(self._passages, rng.randrange(3, 9))))
        return {"messages": [_message("system", "Answer from the passages only. Name the passage."),
                             _message("user", f"{found}\n\nQuestion: {rng.choice(_QUESTIONS)}")], "max_tokens": 300}

    def _other(self) -> dict[str, Any]:
        rng = self._rng
        language = rng.choices(list(LANGUAGES), list(LANGUAGES.values()))[0]
        sentences = self._sentences[language]
        messages = []
        for n in range(rng.choice((1, 3, 5))):
            between = "" if language in ("zh", "ja") else " "
            text = between.join(rng.choice(sentences) for _ in range(rng.randrange(2, 30)))
            messages.append(_message("assistant" if n % 2 else "user", text))
        return {"messages": messages}


def texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    """The texts that a chat template takes from messages: contents, and the names and arguments of tool calls."""
    for message in messages:
        if message["content"] is not None:
            yield message["content"]
        for call in message.get("tool_calls", ()):
            yield f'{call["function"]["name"]} {call["function"]["arguments"]}'


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _passages(path: Path) -> list[str]:
    return [part for part in path.read_text(encoding="utf-8").split("\n\n") if 120 < len(part) < 2500]
