"""Decodes the tree of a settings file into dataclasses, and reports every problem, not only the first.

Checker, JSON Schema and reference page all derive from the same declarations: the dataclasses' fields (`core.setting`),
mapped to the shapes below.
"""

from collections.abc import Iterable
from collections.abc import Mapping as AnyMapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from math import isfinite
from re import ASCII, fullmatch
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from stayfast.core.setting import Secret, SettingDoc, read_declarations
from stayfast.settings.added_kinds import implements
from stayfast.settings.migration_hints import foreign_reference, key_hint, kind_hint, match_path, number_hint
from stayfast.settings.problems import Path, Problem, SourceLocation, quote, suggest
from stayfast.settings.yaml_nodes import (
    Node,
    YamlEntry,
    YamlList,
    YamlMapping,
    YamlScalar,
    expand_references,
    has_reference,
    location_of,
)


@dataclass(frozen=True, slots=True)
class PlainField:
    kind: Literal["string", "secret", "integer", "number", "boolean"]


@dataclass(frozen=True, slots=True)
class WordField:
    words: tuple[str, ...]
    enum: type[StrEnum] | None = None


@dataclass(frozen=True, slots=True)
class OptionalField:
    inner: "Shape"


@dataclass(frozen=True, slots=True)
class WordOrNumber:
    word: WordField
    number: PlainField


@dataclass(frozen=True, slots=True)
class ListField:
    item: "Shape"


@dataclass(frozen=True, slots=True)
class TableField:
    """A mapping with names chosen by the user."""

    item: "Shape"


@dataclass(frozen=True, slots=True)
class RecordField:
    """A dataclass, written as a mapping with known keys."""

    cls: type[Any]


@dataclass(frozen=True, slots=True)
class VariantField:
    """One of several dataclasses, selected by the word in `kind`. `base_of_added`: the protocol of additional variants."""

    by_kind: tuple[tuple[str, type[Any]], ...]
    base_of_added: type[Any] | None = None

    def with_kinds(self, kinds: Iterable[type[Any]]) -> "VariantField":
        """The same with the additional variants among `kinds`: those with the members of `base_of_added`."""
        if self.base_of_added is None:
            return self
        added = [cls for cls in kinds if implements(cls, self.base_of_added)]
        return VariantField(self.by_kind + tuple((word, cls) for cls in added for word in kind_words(cls)))


Shape = PlainField | WordField | OptionalField | WordOrNumber | ListField | TableField | RecordField | VariantField

_PLAIN: AnyMapping[Any, PlainField] = {
    str: PlainField("string"), Secret: PlainField("secret"), int: PlainField("integer"), float: PlainField("number"),
    bool: PlainField("boolean"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a settings file. `inlined_in`: for an inlined record, its field in the parent and its class."""

    name: str
    shape: Shape
    default: Any  # dataclasses.MISSING: required
    doc: SettingDoc
    inlined_in: tuple[str, type[Any]] | None = None


def shape_of_type(hint: Any) -> Shape:
    """Raises TypeError for a type that settings cannot hold."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return shape_of_type(args[0])
    if origin is Literal:
        return WordField(tuple(args))
    if origin is tuple and args[1:] == (...,):
        return ListField(shape_of_type(args[0]))
    if origin is not None and isinstance(origin, type) and issubclass(origin, AnyMapping) and args[0] is str:
        return TableField(shape_of_type(args[1]))
    if origin in (Union, UnionType):
        shape = _shape_of_union([arg for arg in args if arg is not NoneType])
        return OptionalField(shape) if isinstance(shape, VariantField) and NoneType in args else shape
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return WordField(tuple(word.value for word in hint), hint)
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return RecordField(hint)
    raise TypeError(f"settings cannot hold a {hint!r}")


def _shape_of_union(hints: list[Any]) -> Shape:
    if len(hints) == 1:
        return OptionalField(shape_of_type(hints[0]))
    match sorted((shape_of_type(hint) for hint in hints if hint in (int, float) or get_origin(hint) is Literal),
                 key=lambda shape: isinstance(shape, PlainField)):
        case [WordField() as word, PlainField() as number]:
            return WordOrNumber(word, number)
    by_kind = tuple((word, cls) for cls in hints for word in kind_words(cls))
    return VariantField(by_kind, next((cls for cls in hints if not kind_words(cls)), None))


def kind_words(cls: type[Any]) -> tuple[str, ...]:
    """The words that `kind` may have; empty for any text, and for a protocol."""
    return get_args(get_type_hints(cls).get("kind"))


@cache
def record_settings(record: RecordField) -> tuple[Setting, ...]:
    """The keys of a record, in the order of its fields; the keys of inlined records replace their field."""
    cls: Any = record.cls
    declared = read_declarations(cls)
    found: list[Setting] = []
    for field in fields(cls):
        if field.name not in declared:
            continue
        hint, about = declared[field.name]
        shape = WordField(about.words) if about.words else shape_of_type(hint)
        if about.is_inline and isinstance(shape, RecordField):
            found += [Setting(inner.name, inner.shape, inner.default, inner.doc, (field.name, shape.cls))
                      for inner in record_settings(shape)]
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found.append(Setting(field.name, shape, default, about))
    return tuple(found)


# Renamed keys: the section (`*`: any name or position), then OLD>NEW.
_RENAMED: Final = """\
server max_silent_connections>max_pending_connections max_silent_per_address>max_pending_per_address
server max_held_bytes>max_buffered_bytes write_stall_s>write_timeout_s keepalive_s>sse_keepalive_s
admission ages_within_s>aging_s hold_back>reserved_share lag_s>overload_loop_lag_s busy>overload_cpu_share
admission points>priority_points
admission.lanes long_input>long_input_tokens long_output>long_output_tokens apart>isolate_short
idempotency keep_s>ttl_s
embedder late_s>max_batch_wait_s learned_dir>state_dir
stores.* wait_s>coalesce_wait_s near_bytes>local_bytes near_s>local_ttl_s
upstreams.* asks_usage>request_usage continues>supports_continuation sends_deadline>send_deadline
upstreams.* luck_holds_s>tail_redraw_s notices_hangup>cancels_on_disconnect sag>slowdown
upstreams.*.output most>max
upstreams.*.cold_start is_cold_at_first>starts_cold
upstreams.*.prompt_cache floor_tokens>min_tokens keeps_s>ttl_s
upstreams.*.faults.* n_at_most>max_count
upstreams.*.limit least>min most>max good_s>p95_low_s bad_s>p95_high_s
defaults.limit least>min most>max good_s>p95_low_s bad_s>p95_high_s
upstreams.*.breaker failures_in_row>consecutive_failures
defaults.breaker failures_in_row>consecutive_failures
routes.*.retry base_s>backoff_base_s cap_s>backoff_cap_s max_wait_s>max_retry_after_s min_left_s>min_remaining_s
routes.*.retry stateful>allow_stateful
defaults.retry base_s>backoff_base_s cap_s>backoff_cap_s max_wait_s>max_retry_after_s min_left_s>min_remaining_s
defaults.retry stateful>allow_stateful
routes.*.hedge stateful>allow_stateful
defaults.hedge stateful>allow_stateful
routes.* max_input_by_tier>max_input_tokens_by_tier offline>oversize_route
routes.*.affinity known_s>ttl_s known_tokens>cache_tokens
routes.*.eject out_s>ejection_s
routes.*.cache audit>audit_share within_s>lookup_timeout_s max_phrasings>max_questions
routes.*.cache same_answer>same_answer_cosine new_word_from>new_word_cosine
routes.*.cache.eligible personal>allow_personal n_content_words>min_content_words
routes.*.prefix sorts_tools>sort_tools moves_volatile>move_volatile wait_s>leader_wait_s
routes.*.prefix warm_tokens_per_hour>refresh_tokens_per_hour
routes.*.prefix.models.* marks>breakpoints floor_tokens>min_tokens
"""
RENAMED_KEYS: Final[AnyMapping[tuple[str, ...], str]] = {
    (*section.split("."), old): new
    for section, *pairs in map(str.split, _RENAMED.splitlines()) for old, new in (pair.split(">") for pair in pairs)}

# Error texts for keys of earlier versions, by path (`*`: any name or position). Used for unknown keys only.
REMOVED_KEYS: Final[AnyMapping[tuple[str, ...], str]] = {
    **{path: f"renamed: write `{new}`" for path, new in RENAMED_KEYS.items()},
    ("server", "metrics_open"): "removed: use server.metrics_access. For true write `metrics_access: open`; for false add "
                                "the scraper's key to server.admins, or write `metrics_access: key`",
    ("server", "keep_warm_per_s"): "removed: the gateway no longer sends requests to itself. Delete this line",
    ("routes", "*", "affinity", "max_load"): "removed: an upstream with the prompt in its cache is left once another "
                                             "one is predicted to be quicker. Delete this line",
}


def explain_removed(path: Path, table: AnyMapping[tuple[str, ...], str] = REMOVED_KEYS) -> str | None:
    """The text for a removed or renamed key; None for any other key."""
    return match_path(path, table)


BAD: Any = object()  # in place of a value with a problem
_NO_BOUNDS = SettingDoc("")
_LONGEST_QUOTE = 60
_MOST_SUGGESTED = 3


class Decoder:
    """Decodes one tree. `bases`: by class, a record with the values of missing keys. `kinds`: additional variants
    (`VariantField`). `hints`: by path, what to write instead of an unknown key (`settings.migration_hints`).
    """

    def __init__(self, environment: AnyMapping[str, str], bases: AnyMapping[type, object] | None = None,
                 kinds: Iterable[type[Any]] = (), hints: AnyMapping[tuple[str, ...], str] = MappingProxyType({})) -> None:
        self._environment = environment
        self._kinds = tuple(kinds)
        self._bases = bases or {}
        self._hints = hints
        self.problems: list[Problem] = []

    def decode(self, shape: Shape, node: Node, path: Path, about: SettingDoc = _NO_BOUNDS) -> Any:
        """The value of one setting. On a problem, adds it to `problems` and returns BAD."""
        match shape:
            case OptionalField(inner):
                return None if isinstance(node, YamlScalar) and node.is_null else self.decode(inner, node, path, about)
            case PlainField() | WordField() | WordOrNumber():
                return self._scalar(shape, node, path, about)
            case ListField(item):
                if not isinstance(node, YamlList):
                    return self._add_problem(node.location, path, f"must be a list: [{describe_shape(item, about)}, ...]")
                values = [self.decode(item, child, (*path, n), about) for n, child in enumerate(node.items)]
                return BAD if BAD in values else tuple(values)
            case TableField(item):
                return self._table(item, node, path, about)
            case RecordField(cls):
                return self._record(cls, node, path)
            case VariantField():
                return self._variant(dict(shape.with_kinds(self._kinds).by_kind), node, path)

    def _add_problem(self, place: SourceLocation, path: Path, message: str) -> Any:
        self.problems.append(Problem(place, path, message))
        return BAD

    def _scalar(self, shape: PlainField | WordField | WordOrNumber, node: Node, path: Path, about: SettingDoc) -> Any:
        wanted = describe_shape(shape, about)
        if not isinstance(node, YamlScalar) or node.is_null:
            what = {YamlList: "a list", YamlMapping: "a mapping"}.get(type(node), "nothing")
            return self._add_problem(node.location, path, f"must be {wanted}, not {what}")
        try:
            text = expand_references(node.text, self._environment)
        except ValueError as error:
            return self._add_problem(node.location, path, str(error))
        if shape == PlainField("secret") and (foreign := foreign_reference(node.text)) is not None:
            return self._add_problem(node.location, path, foreign)
        is_bare = node.is_plain or has_reference(node.text)
        try:
            return _converted(shape, text, is_bare, about)
        except ValueError as error:
            is_hidden = about.is_secret or shape == PlainField("secret") or len(node.text) > _LONGEST_QUOTE
            shown = "" if is_hidden else f", not {_as_written(node)}"
            if has_reference(node.text):
                shown += " (its value comes from the environment)"
            return self._add_problem(node.location, path, f"must be {wanted}{shown}{error}{_hint(shape, text, path, about)}")

    def _table(self, item: Shape, node: Node, path: Path, about: SettingDoc) -> Any:
        if isinstance(node, YamlScalar) and node.is_null:
            return MappingProxyType({})
        if not isinstance(node, YamlMapping):
            return self._add_problem(node.location, path, "must be a mapping of names, like {NAME: ...}")
        values = {}
        for name, entry in node.entries.items():
            if not fullmatch(r"[!-~]{1,200}", name):
                self._add_problem(entry.location, (*path, name), "a name must be 1 to 200 visible ASCII characters")
            values[name] = self.decode(item, entry.value, (*path, name), about)
        return BAD if BAD in values.values() else MappingProxyType(values)

    def _variant(self, by_kind: AnyMapping[str, type[Any]], node: Node, path: Path) -> Any:
        kinds = WordField(tuple(by_kind))
        if not isinstance(node, YamlMapping):
            return self._add_problem(node.location, path, f"must be a mapping with `kind`: {describe_shape(kinds)}")
        if "kind" not in node.entries:
            return self._add_problem(node.location, path, f"`kind` is missing: {describe_shape(kinds)}")
        kind = self.decode(kinds, node.entries["kind"].value, (*path, "kind"))
        return BAD if kind is BAD else self._record(by_kind[kind], node, path)

    def _record(self, cls: type[Any], node: Node, path: Path) -> Any:
        shorthand = getattr(cls, "SHORTHAND", None)  # a list alone stands for this key
        if shorthand is not None and isinstance(node, YamlList):
            node = YamlMapping(node.location, {shorthand: YamlEntry(node.location, node)})
        if isinstance(node, YamlScalar) and node.is_null:
            node = YamlMapping(node.location)
        word = getattr(cls, "SCALAR_SHORTHAND", None)  # a text alone stands for this key
        if word is not None and isinstance(node, YamlScalar):
            node = YamlMapping(node.location, {word: YamlEntry(node.location, node)})
        known = {setting.name: setting for setting in record_settings(RecordField(cls))}
        if not isinstance(node, YamlMapping):
            names = ", ".join(list(known)[:3]) + ", ..." * (len(known) > 3)
            or_list = f"a list of {shorthand}, or " if shorthand is not None else ""
            return self._add_problem(node.location, path, f"must be {or_list}a mapping ({names})")
        for name in node.entries.keys() - known.keys():
            self._add_problem(node.entries[name].location, (*path, name), self._why_unknown((*path, name), known))
        values = {name: self._given(setting, node, path, self._bases.get(cls)) for name, setting in known.items()}
        return BAD if BAD in values.values() else self._built(cls, known, values, node, path)

    def _why_unknown(self, path: Path, known: AnyMapping[str, Setting]) -> str:
        if (removed := explain_removed(path)) is not None:
            return removed
        hint = key_hint(path, self._hints)
        return f"unknown setting: {hint}" if hint is not None else f"unknown setting{_what_was_meant(str(path[-1]), known)}"

    def _given(self, setting: Setting, node: YamlMapping, path: Path, base: object) -> Any:
        entry = node.entries.get(setting.name)
        if entry is not None:
            return self.decode(setting.shape, entry.value, (*path, setting.name), setting.doc)
        if base is not None:
            return getattr(base, setting.name)
        if isinstance(setting.shape, RecordField) and setting.shape.cls in self._bases:
            return self._bases[setting.shape.cls]
        if setting.default is MISSING:
            wanted = describe_shape(setting.shape, setting.doc)
            return self._add_problem(node.location, path, f"`{setting.name}` is missing: {wanted}")
        return setting.default

    def _built(self, cls: type[Any], known: AnyMapping[str, Setting], values: AnyMapping[str, Any], node: YamlMapping,
               path: Path) -> Any:
        arguments = {name: value for name, value in values.items() if known[name].inlined_in is None}
        inlined: dict[tuple[str, type[Any]], dict[str, Any]] = {}
        for name, setting in known.items():
            if setting.inlined_in is not None:
                inlined.setdefault(setting.inlined_in, {})[name] = values[name]
        try:
            for (field_name, inner), settings in inlined.items():
                arguments[field_name] = inner(**settings)
            return cls(**arguments)
        except ValueError as error:
            where, _, what = str(error).partition(" ")  # such messages begin with the name of the setting
            steps = tuple(where.rstrip(":").split(".", 1))
            if steps[0] not in known:
                return self._add_problem(node.location, path, str(error))
            return self._add_problem(location_of(node, steps), (*path, *steps), what)


def _what_was_meant(name: str, known: AnyMapping[str, Setting]) -> str:
    """A suggestion for an unknown key: the same name in a sub-section, or a similar one."""
    below = [f"{field.name}.{name}" for field in known.values()
             if isinstance(field.shape, RecordField) and any(inner.name == name for inner in record_settings(field.shape))]
    if 0 < len(below) <= _MOST_SUGGESTED:
        return f", did you mean {' or '.join(below)}?"
    return suggest(name, known)


def _hint(shape: PlainField | WordField | WordOrNumber, text: str, path: Path, about: SettingDoc) -> str:
    """A suggestion for a wrong scalar; may be empty."""
    if isinstance(shape, WordField):
        hint = kind_hint(path, text)
        return suggest(text, shape.words) if hint is None else f"; {hint}"
    is_number = isinstance(shape, WordOrNumber) or shape.kind in ("integer", "number")
    hint = number_hint(path, text, about.maximum) if is_number else None
    return "" if hint is None else f": {hint}"


def _as_written(node: YamlScalar) -> str:
    """The value as in the file: numbers without quotes unless quoted there."""
    return node.text if node.is_plain and fullmatch(r"[-+]?\.?\d[-+.\w]*", node.text, ASCII) else quote(node.text)


def describe_shape(shape: Shape, about: SettingDoc = _NO_BOUNDS) -> str:
    """The expected value in words."""
    match shape:
        case WordField(words):
            named = [word for word in words if word] or words  # the empty text stands for no choice
            return "one of " + ", ".join(named) if len(named) > 1 else named[0]
        case PlainField("integer" | "number" as kind):
            return " ".join(part for part in ("a whole number" if kind == "integer" else "a number", about.describe_bounds())
                            if part)
        case PlainField("boolean"):
            return "true or false"
        case PlainField():
            return about.form or "text"
        case OptionalField(inner):
            return describe_shape(inner, about)
        case WordOrNumber(word, number):
            return f"{describe_shape(word)} or {describe_shape(number, about)}"
        case ListField(item):
            return f"a list of {describe_shape(item, about)}"
        case _:
            return "a mapping"


def _converted(shape: PlainField | WordField | WordOrNumber, text: str, is_bare: bool, about: SettingDoc) -> Any:
    """Convert a scalar's text. Raises ValueError whose text is appended to `must be ...`."""
    if isinstance(shape, WordOrNumber):
        shape = shape.word if text in shape.word.words else shape.number
    if isinstance(shape, WordField):
        if text not in shape.words:
            raise ValueError
        return shape.enum(text) if shape.enum is not None else text
    if shape.kind == "secret":
        return Secret(text)
    if shape.kind == "string":
        if about.pattern is not None and not fullmatch(about.pattern, text):
            raise ValueError
        return text
    if not is_bare:
        raise ValueError(": write it without quotes")
    return _number_or_flag(shape.kind, text, about)


def _number_or_flag(kind: str, text: str, about: SettingDoc) -> int | float | bool:
    if kind == "boolean":
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    if fullmatch(r"[-+]?0[0-7_]+", text):
        raise ValueError(": a leading zero means octal to some readers of YAML")
    if not fullmatch(r"[-+]?\d{1,15}" if kind == "integer" else r"[-+]?(\d{1,15}(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", text):
        raise ValueError
    value = int(text) if kind == "integer" else float(text)
    if not isfinite(value) or about.find_violation(value) is not None:
        raise ValueError
    return value
