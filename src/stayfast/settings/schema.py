"""The settings as a JSON Schema (draft 2020-12) and as a page for people, both derived from the declarations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, is_dataclass
from enum import StrEnum
from textwrap import dedent
from typing import Any

from stayfast.core.setting import Secret, SettingDoc
from stayfast.settings.environment import OVERRIDES
from stayfast.settings.model import Settings
from stayfast.settings.upstreams import AddedUpstream
from stayfast.settings.validate import (
    ListField,
    OptionalField,
    PlainField,
    RecordField,
    Setting,
    Shape,
    TableField,
    VariantField,
    WordField,
    WordOrNumber,
    settings_of,
)

IDENTIFIER = "urn:stayfast:settings"
_REFERENCE = {"$ref": "#/$defs/reference"}


def json_schema(kinds: Sequence[type[AddedUpstream]] = ()) -> dict[str, Any]:
    """The schema of a settings file, for editors and checkers. JSON-ready. kinds: of upstreams, beside the built-in ones."""
    definitions: dict[str, Any] = {
        "reference": {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
                      "description": "A value from the environment: ${NAME} or ${NAME:-default}."},
    }
    top = _record(RecordField(Settings), _Definitions(definitions, tuple(kinds)))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": IDENTIFIER, "title": "Stayfast settings",
            **top, "$defs": dict(sorted(definitions.items()))}


@dataclass(frozen=True, slots=True)
class _Definitions:
    """The definitions made so far, and what may be added to variants."""

    made: dict[str, Any]
    kinds: tuple[type[Any], ...]


def _record(record: RecordField, definitions: _Definitions, kind: str | None = None) -> dict[str, Any]:
    settings = settings_of(record)
    properties = {setting.name: _property(setting, definitions) for setting in settings}
    if kind is not None:
        properties["kind"] = {**properties["kind"], "enum": [kind]}
    required = [setting.name for setting in settings if setting.default is MISSING or (kind and setting.name == "kind")]
    made: dict[str, Any] = {
        "type": "object" if required else ["object", "null"],
        "description": dedent(record.cls.__doc__ or "").split("\n\n")[0],
        "properties": properties, "additionalProperties": False,
    }
    return {**made, "required": required} if required else made


def _property(setting: Setting, definitions: _Definitions) -> dict[str, Any]:
    made = {**_shape(setting.shape, setting.about, definitions), "description": setting.about.doc}
    default = _default(setting.default)
    return made if default is MISSING else {**made, "default": default}


def _default(value: Any) -> Any:
    """A default as JSON; MISSING for those that are told elsewhere (records) or that are nothing."""
    if value is MISSING or value is None or is_dataclass(value) or isinstance(value, Secret | Mapping):
        return MISSING
    if isinstance(value, StrEnum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def _shape(shape: Shape, about: SettingDoc, definitions: _Definitions) -> dict[str, Any]:
    match shape:
        case PlainField():
            return _plain(shape, about)
        case WordField(words):
            return {"enum": [*words, *(other for word in words for other in _as_others_read(word))]}
        case OptionalField(inner):
            return {"anyOf": [_shape(inner, about, definitions), {"type": "null"}]}
        case WordOrNumber(word, number):
            return {"anyOf": [_shape(word, about, definitions), *_plain(number, about)["anyOf"]]}
        case ListField(item):
            return {"type": "array", "items": _shape(item, about, definitions)}
        case TableField(item):
            return {"type": ["object", "null"], "additionalProperties": _shape(item, about, definitions)}
        case RecordField():
            return _referred(shape, definitions)
        case VariantField():
            variants = shape.with_kinds(definitions.kinds)
            return {"oneOf": [_referred(RecordField(cls), definitions, kind) for kind, cls in variants.by_kind]}


def _referred(record: RecordField, definitions: _Definitions, kind: str | None = None) -> dict[str, Any]:
    name = record.cls.__name__ if kind is None else f"{record.cls.__name__}.{kind}"
    if name not in definitions.made:
        definitions.made[name] = {}
        definitions.made[name] = _record(record, definitions, kind)
    reference = {"$ref": f"#/$defs/{name}"}
    shorthand = getattr(record.cls, "SHORTHAND", None)
    if shorthand is None:
        return reference
    short = next(setting for setting in settings_of(record) if setting.name == shorthand)
    return {"anyOf": [reference, _shape(short.shape, short.about, definitions)]}


def _plain(shape: PlainField, about: SettingDoc) -> dict[str, Any]:
    if shape.kind in ("string", "secret"):
        if about.pattern is None:
            return {"type": ["string", "number"]}  # a name like 4.10 needs no quotes here
        number = [{"type": "number", "minimum": 0}] if about.or_number else []
        return {"anyOf": [{"type": "string", "pattern": f"^({about.pattern})$"}, *number, _REFERENCE]}
    bounds = {"minimum": about.minimum, "maximum": about.maximum, "exclusiveMinimum": about.more_than}
    own = {"type": shape.kind, **{name: bound for name, bound in bounds.items() if bound is not None}}
    return {"anyOf": [own, _REFERENCE]}


def _as_others_read(word: str) -> list[float | bool]:
    """What YAML 1.1 makes of a word that needs no quotes here: `http: 1.1` is a number there, `auth: off` a boolean."""
    if word == "off":
        return [False]
    return [float(word)] if word.replace(".", "", 1).isdigit() else []


def markdown(kinds: Sequence[type[AddedUpstream]] = ()) -> str:
    """The reference page: a table a section."""
    lines = ["# Settings", "",
             "Generated by `make docs` from the declarations in the code, as is [the schema](settings.schema.json).", "",
             "Every value may take from the environment: `${NAME}`, or `${NAME:-default}`; `$${` is a literal `${`.",
             "Unknown keys are errors. Durations are in seconds (`_s`), sizes in bytes.", ""]
    lines += ["The stronger wins: a flag, then one of these variables, then the file, then the default.", "",
              "| variable | setting |", "|---|---|",
              "| `STAYFAST_CONFIG` | the file (else `./stayfast.yaml`, if there is one) |",
              *(f"| `{name}` | `{'.'.join(path)}` |" for name, path in OVERRIDES), ""]
    for title, record in _sections(kinds):
        lines += [f"## {title}", "", dedent(record.cls.__doc__ or "").split("\n\n")[0].replace("\n", " "), "",
                  "| setting | is | default | meaning |", "|---|---|---|---|"]
        lines += [_row(setting) for setting in settings_of(record)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _sections(added: Sequence[type[Any]]) -> Iterator[tuple[str, RecordField]]:
    """Each section of a file once, as its path and its record, in the order of the file."""
    seen: set[type[Any]] = set()
    waiting: list[tuple[str, Shape]] = [("The file", RecordField(Settings))]
    while waiting:
        title, shape = waiting.pop(0)
        if isinstance(shape, TableField):
            waiting.insert(0, (f"{title}.NAME", shape.item))
        elif isinstance(shape, ListField):
            waiting.insert(0, (f"{title}[N]", shape.item))
        elif isinstance(shape, OptionalField):
            waiting.insert(0, (title, shape.inner))
        elif isinstance(shape, VariantField):
            kinds: dict[type[Any], list[str]] = {}
            for kind, cls in shape.with_kinds(added).by_kind:
                kinds.setdefault(cls, []).append(kind)
            waiting[:0] = [(f"{title}, kind: {' or '.join(words)}", RecordField(cls)) for cls, words in kinds.items()]
        elif isinstance(shape, RecordField) and shape.cls not in seen:
            seen.add(shape.cls)
            yield title, shape
            prefix = "" if shape.cls is Settings else f"{title}."
            waiting[:0] = [(f"{prefix}{inner.name}", inner.shape) for inner in settings_of(shape)]


def _row(setting: Setting) -> str:
    default = _default(setting.default)
    text = str(default).lower() if isinstance(default, bool) else str(default)  # as YAML has it
    shown = "required" if setting.default is MISSING else "" if default in (MISSING, "", []) else f"`{text}`"
    return f"| `{setting.name}` | {_words(setting.shape, setting.about)} | {shown} | {setting.about.doc} |"


def _words(shape: Shape, about: SettingDoc) -> str:
    match shape:
        case PlainField("integer" | "number" as kind):
            return f"{kind} {about.bounds()}".rstrip()
        case PlainField(kind):
            return {"string": "text", "secret": "secret text", "boolean": "true or false"}[kind]
        case WordField(words):
            return ", ".join(f"`{word}`" for word in words)
        case OptionalField(inner):
            return _words(inner, about)
        case WordOrNumber(word, number):
            return f"{_words(word, about)} or {_words(number, about)}"
        case ListField(item):
            return f"list of {_words(item, about)}"
        case TableField(item):
            return f"mapping of names to {_words(item, about)}"
        case RecordField() | VariantField():
            return "section"
