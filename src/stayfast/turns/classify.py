"""Classify, guard and extract as steps of a turn, in this process.

    intent = load_classifier("intents.npz")                          # once

    async with budget(total=2.5) as b:
        found = await b.run(intent.classify, question, name="intent", cap=0.02, fallback=None)
        check = await b.run(guard, question, cap=0.02)
        values = await b.run(extract, mail, SCHEMA, ChatModel(client, "small", response_format=extraction_format(SCHEMA)))

The steps are async functions that do not wait, except for a model of `extract`: 0.1 ms each, up to some milliseconds for
long texts. Needs the packages of the extra `classify`; `guard` and `extract` need none.
"""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stayfast.policy.classify.extraction import ExtractedValues, extract_by_rules
from stayfast.policy.classify.guard import INJECTIONS, SECRETS, GuardScan, compile_rules, scan_texts
from stayfast.policy.classify.head import Classification
from stayfast.turns.model import Model

if TYPE_CHECKING:
    from stayfast.stores.classifier_file import StoredClassifier
    from stayfast.stores.static_embedder import StaticEmbedder

MAX_CHARS: Final = 20_000
CAP_S: Final = 0.003
_ORDER: Final = ("Extract the values of these fields from the text of the user. Answer with one JSON object and nothing "
                 "else. Use null for a field that the text does not have. Fields, as JSON Schema: ")


class LocalClassifier:
    """A classifier of a file, by its first head. Thread-safe."""

    def __init__(self, stored: "StoredClassifier", embedder: "StaticEmbedder") -> None:
        self._stored = stored
        self._embedder = embedder

    @property
    def labels(self) -> tuple[str, ...]:
        return self._stored.rule.labels

    async def classify(self, text: str) -> Classification:
        """Its label, or `unknown`."""
        return self.classify_now(text)

    def classify_now(self, text: str) -> Classification:
        """The same without a turn."""
        return self._stored.rule.judge(self._stored.heads[0].probabilities(self._embedder.embed([text])[0]))

    def __repr__(self) -> str:
        return f"<LocalClassifier: {len(self.labels)} labels>"


def load_classifier(file: str | Path) -> LocalClassifier:
    """Read a file of `stayfast classify train`. Blocks for 0.1 s. Raises ValueError for a file that cannot be used, and
    RuntimeError where the packages are missing.
    """
    try:
        files, static = (import_module(f"stayfast.stores.{name}") for name in ("classifier_file", "static_embedder"))
    except ImportError as error:
        raise RuntimeError(f"classifiers need the package {error.name}: pip install '.[classify]' in Stayfast's checkout"
                           ) from None
    stored = files.read_classifier(Path(file))
    try:
        embedder = static.load_static_embedder()
    except static.NoEmbedder as error:
        raise RuntimeError(str(error)) from None
    if stored.embedders[0] != embedder.id:
        raise ValueError(f"{file} was trained with the vectors {stored.embedders[0]}, and a turn has those of "
                         f"{embedder.id}: train it with --embedder static or both")
    return LocalClassifier(stored, embedder)


async def guard(text: str, *, secrets: bool = True, injections: bool = True, max_chars: int = MAX_CHARS,
                cap_s: float = CAP_S) -> GuardScan:
    """Known phrasings of prompt injections, and keys, in a text: `matches` have rule and place, and `is_complete` is False
    if it was longer than `max_chars` or took longer than `cap_s`. It finds known phrasings only, and makes nothing safe.
    The first call in a process takes some 5 ms more.
    """
    rules = (*(SECRETS if secrets else ()), *(INJECTIONS if injections else ()))
    compile_rules(rules)
    clock = asyncio.get_running_loop().time
    ends_at = clock() + cap_s
    return scan_texts([text], rules, max_chars=max_chars, is_late=lambda: clock() >= ends_at)


async def extract(text: str, schema: Mapping[str, Any], model: Model | None = None, *, max_tokens: int = 512
                  ) -> ExtractedValues:
    """The values of a JSON Schema's properties in a text: by rules, then by `model` for those that rules do not find. Give
    the model `extraction_format(schema)`, so that its answer has that form; an answer of another form adds no values. Raises
    ValueError for a schema without properties, and what the model raises.
    """
    found = extract_by_rules(text, schema)
    if model is None or not found.missing:
        return found
    properties = {name: schema["properties"][name] for name in found.missing}
    reply = await model.generate([{"role": "system", "content": _ORDER + msgspec.json.encode(properties).decode()},
                                  {"role": "user", "content": text}], [], lambda piece: None, may_call=False,
                                 max_tokens=max_tokens)
    try:
        answer = msgspec.json.decode(reply.text, type=dict[str, Any])
    except msgspec.DecodeError:
        return found
    values = found.values | {name: answer[name] for name in found.missing if _fits(answer.get(name), properties[name])}
    return ExtractedValues(values, found.spans, tuple(name for name in found.missing if name not in values))


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {"string": (str,), "integer": (int,), "number": (int, float),
                                                 "boolean": (bool,), "array": (list,), "object": (dict,)}


def _fits(value: Any, schema: Any) -> bool:
    """Whether a value has the type and is one of the words that its schema names."""
    if value is None or not isinstance(schema, Mapping):
        return value is not None
    kinds, words = _KINDS.get(str(schema.get("type"))), schema.get("enum")
    if kinds is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        return False
    return not isinstance(words, list) or value in words


def extraction_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`response_format` of OpenAI's chat API for `extract`: every property may be null, others are not allowed."""
    properties = {name: {"anyOf": [each, {"type": "null"}]} for name, each in schema.get("properties", {}).items()}
    return {"type": "json_schema", "json_schema": {"name": "values", "strict": True, "schema": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}
