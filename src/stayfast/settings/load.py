"""Loads settings from a file, the environment and the command line, or reports every problem.

Precedence: command-line flag, environment variable, file, default.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from stayfast.core.deadline import Timeouts
from stayfast.engine.config import TINY_ALIAS, EngineConfig
from stayfast.engine.fit import check_runnable
from stayfast.pipeline.hooks.config import HooksConfig
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.slo import Slo
from stayfast.settings.added_kinds import AddedUpstream, load_added_kinds
from stayfast.settings.consistency import embedded_engine_problem, find_contradictions, find_unknown_upstreams
from stayfast.settings.decoder import BAD, Decoder, RecordField, kind_words
from stayfast.settings.effective import setting_sources
from stayfast.settings.engine_routes import apply_engine_defaults
from stayfast.settings.fallbacks import expand_fallbacks
from stayfast.settings.hooks import expand_hooks, load_hook
from stayfast.settings.migration_hints import KEY_HINTS, foreign_file_hint
from stayfast.settings.model import Defaults, OnOverrun, Settings
from stayfast.settings.presets import apply_presets
from stayfast.settings.problems import Problem, SettingsError, SourceLocation
from stayfast.settings.providers import all_providers, apply_providers
from stayfast.settings.upstreams import EmbeddedUpstream, EncoderUpstreamSettings, HttpUpstream, TurnUpstreamSettings
from stayfast.settings.yaml_nodes import Override, YamlScalar, entries_at, parse
from stayfast.settings.yaml_nodes import YamlMapping as Tree
from stayfast.turns.function import import_turn_function as find_turn

DEFAULT_FILE = "stayfast.yaml"
BUILT_IN = "built-in settings"
EMBEDDED = "upstreams: {{tiny: {{kind: embedded}}}}\nroutes: {{{route}: [tiny]}}\n"
NOTHING_TO_SERVE = ("upstreams and routes are missing (the demo model is served only without a settings file); "
                    "`stayfast init` writes a file to start from")
_BUILT_IN_KINDS = {"upstreams": frozenset(word for cls in (
    HttpUpstream, EmbeddedUpstream, TurnUpstreamSettings, EncoderUpstreamSettings)
                                           for word in kind_words(cls)) | all_providers().keys(),
                   "stores": frozenset(("memory", "sqlite", "redis"))}
ADDED = "upstreams: {{{kind}: {{kind: {kind}}}}}\nroutes: {{{kind}: [{kind}]}}\n"


@dataclass(frozen=True, slots=True)
class SettingsText:
    """The text of a settings file, and its name."""

    name: str
    text: str


def read_settings_file(path: str | None, variables: Mapping[str, str]) -> SettingsText:
    """The file at `path`, else STAYFAST_CONFIG, else ./stayfast.yaml, else the built-in settings. Raises SettingsError."""
    named = path or variables.get("STAYFAST_CONFIG") or None
    if named is None and not FilePath(DEFAULT_FILE).is_file():
        return SettingsText(BUILT_IN, "")
    name = named or DEFAULT_FILE
    try:
        return SettingsText(name, FilePath(name).read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise SettingsError([Problem(SourceLocation(name), (), f"cannot be read: {reason}")]) from None
    except UnicodeDecodeError as error:
        raise SettingsError([Problem(SourceLocation(name), (), f"not UTF-8 at byte {error.start}")]) from None


def _reject_foreign_file(source: SettingsText, tree: Tree) -> None:
    """Raises SettingsError for another gateway's file. Its further problems would hide what to do."""
    if (hint := foreign_file_hint(source.name, tree.entries)) is not None:
        raise SettingsError([Problem(tree.location, (), hint)])


def load_settings(source: SettingsText, variables: Mapping[str, str], overrides: Iterable[Override] = (), *,
         kinds: Sequence[type[AddedUpstream]] = (), model: str | None = None,
         check_engine: Callable[[EngineConfig], None] = check_runnable,
         check_turn: Callable[[str], object] = find_turn, check_hook: Callable[[str], object] = load_hook) -> Settings:
    """Decode and check settings. Raises SettingsError with all problems.

    `variables`: values for `${NAME}` references. `kinds`: kinds of upstreams that are not built in. `model`: replaces the
    model of every embedded upstream. `check_engine`, `check_turn`, `check_hook`: raise ValueError for an engine that
    cannot run on this machine, for a function that cannot be served, and for one that is no hook. The built-in
    settings, or a text without upstreams and routes if a
    `model` is given, get an embedded upstream (if it can run) and one of each of `kinds`.
    """
    tree, problems = parse(source.text, source.name)
    is_empty = all(_is_missing(tree, name) for name in ("upstreams", "routes"))
    if is_empty and source.name != BUILT_IN and model is None:
        _reject_foreign_file(source, tree)
        problems.append(Problem(tree.location, (), NOTHING_TO_SERVE))
    elif is_empty:
        is_embedding = model is not None or embedded_engine_problem(check_engine) is None
        embedded = EMBEDDED.format(route=json.dumps(FilePath(model).stem if model is not None else TINY_ALIAS))
        added = [ADDED.format(kind=kind_words(cls)[0]) for cls in kinds]
        for text in [embedded, *added] if is_embedding else added:
            for name, entry in parse(text, BUILT_IN)[0].entries.items():
                mine = tree.entries.setdefault(name, entry).value
                if isinstance(mine, Tree) and isinstance(entry.value, Tree):
                    mine.entries.update(entry.value.entries)
    for override in overrides:
        tree.set_scalar(override.path, override.text, override.source)
    if model is not None:
        _use_model(tree, model)
    apply_presets(tree)
    apply_providers(tree, variables)
    apply_engine_defaults(tree)
    problems += expand_fallbacks(tree)
    expand_hooks(tree)
    added_kinds, found = load_added_kinds(tree, _BUILT_IN_KINDS)
    problems += found
    decoder = Decoder(variables, _bases(tree, variables), [*kinds, *added_kinds], KEY_HINTS)
    settings = decoder.decode(RecordField(Settings), tree, ())
    problems += decoder.problems
    problems += find_unknown_upstreams(tree, variables)
    if settings is not BAD:
        problems += find_contradictions(settings, tree, check_engine, check_turn, check_hook)
    if problems:
        raise SettingsError(sorted(problems, key=lambda problem: (problem.location.line or 0, problem.location.column or 0)))
    assert isinstance(settings, Settings)
    return replace(settings, sources=setting_sources(settings, tree))


def _is_missing(tree: Tree, name: str) -> bool:
    entry = tree.entries.get(name)
    return entry is None or (isinstance(entry.value, YamlScalar) and entry.value.is_null)


def _use_model(tree: Tree, model: str) -> None:
    found = False
    for name, node in entries_at(tree, "upstreams").items():
        kind = node.entries.get("kind") if isinstance(node, Tree) else None
        if kind is not None and isinstance(kind.value, YamlScalar) and kind.value.text == "embedded":
            found = True
            tree.set_scalar(("upstreams", name, "model"), model, "--model")
    if not found:
        raise SettingsError([Problem(SourceLocation("--model"), (), "no upstream of kind embedded")])


def _bases(tree: Tree, variables: Mapping[str, str]) -> dict[type, object]:
    """The values that routes and upstreams inherit. If `defaults` is invalid: the built-in ones (reported later)."""
    defaults = Defaults()
    if "defaults" in tree.entries:
        decoded = Decoder(variables).decode(RecordField(Defaults), tree.entries["defaults"].value, ("defaults",))
        defaults = defaults if decoded is BAD else decoded
    return {Timeouts: defaults.timeouts, BudgetConfig: defaults.budget, OnOverrun: defaults.on_overrun,
            RetryConfig: defaults.retry, HedgeConfig: defaults.hedge, Slo: defaults.slo, HooksConfig: defaults.hooks,
            LimitConfig: defaults.limit,
            BreakerConfig: defaults.breaker}
