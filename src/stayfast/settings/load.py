"""From a file, the environment and the command line to Settings that hold together, or to every reason why they do not.

The stronger wins: a flag, then an environment variable, then the file, then the default.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath

from stayfast.core.clock import Timeouts
from stayfast.engine.config import TINY_ALIAS, EngineConfig, check_runnable
from stayfast.observe.tracing.config import why_not_otlp
from stayfast.policy.admission.overload import ANY_TENANT
from stayfast.policy.budget import BudgetConfig
from stayfast.policy.resilience.breaker import BreakerConfig
from stayfast.policy.resilience.hedge import HedgeConfig
from stayfast.policy.resilience.limits import LimitConfig
from stayfast.policy.resilience.retry import RetryConfig
from stayfast.policy.slo import Slo
from stayfast.server.config import check_exposure
from stayfast.settings.caching import check_caches
from stayfast.settings.model import Defaults, OnOverrun, Settings
from stayfast.settings.problems import Path, Place, Problem, SettingsError, did_you_mean, quoted
from stayfast.settings.upstreams import AddedUpstream, EmbeddedUpstream, HttpUpstream, TurnUpstream
from stayfast.settings.validate import BAD, Decoder, Record, kinds_of
from stayfast.settings.yaml_nodes import Listing, Node, Override, Scalar, below, expand, parse, place_of
from stayfast.settings.yaml_nodes import Mapping as Tree
from stayfast.turns.function import find as find_turn

USUAL_FILE = "stayfast.yaml"
BUILT_IN = "built-in settings"
EMBEDDED = "upstreams: {{tiny: {{kind: embedded}}}}\nroutes: {{{route}: [tiny]}}\n"
ADDED = "upstreams: {{{kind}: {{kind: {kind}}}}}\nroutes: {{{kind}: [{kind}]}}\n"


@dataclass(frozen=True, slots=True)
class Source:
    """A text of settings and where it came from."""

    name: str
    text: str


def find(path: str | None, variables: Mapping[str, str]) -> Source:
    """The file named by the caller, by STAYFAST_CONFIG, or ./stayfast.yaml; without any, the built-in settings.

    Raises SettingsError when a named file cannot be read.
    """
    named = path or variables.get("STAYFAST_CONFIG") or None
    if named is None and not FilePath(USUAL_FILE).is_file():
        return Source(BUILT_IN, "")
    name = named or USUAL_FILE
    try:
        return Source(name, FilePath(name).read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise SettingsError([Problem(Place(name), (), f"cannot be read: {reason}")]) from None
    except UnicodeDecodeError as error:
        raise SettingsError([Problem(Place(name), (), f"not UTF-8 at byte {error.start}")]) from None


def load(source: Source, variables: Mapping[str, str], overrides: Iterable[Override] = (), *,
         kinds: Sequence[type[AddedUpstream]] = (), model: str | None = None,
         check_engine: Callable[[EngineConfig], None] = check_runnable,
         check_turn: Callable[[str], object] = find_turn) -> Settings:
    """Settings from a text. Raises SettingsError with all problems.

    `variables` serve references; `model` replaces the model of every embedded upstream; `check_engine` and `check_turn`
    raise ValueError for an engine that cannot run here, and a function that cannot be served; `kinds` are those of
    upstreams that a text may have and that are not built in. A text with neither upstreams nor routes gets the embedded one,
    where it can run, and one of each of `kinds`.
    """
    tree, problems = parse(source.text, source.name)
    if "upstreams" not in tree.entries and "routes" not in tree.entries:
        is_embedding = model is not None or why_not_embedded(check_engine) is None
        embedded = EMBEDDED.format(route=json.dumps(FilePath(model).stem if model is not None else TINY_ALIAS))
        added = [ADDED.format(kind=kinds_of(cls)[0]) for cls in kinds]
        for text in [embedded, *added] if is_embedding else added:
            _add(tree, parse(text, BUILT_IN)[0])
    for override in overrides:
        tree.put(override.path, override.text, override.source)
    if model is not None:
        _use_model(tree, model)
    decoder = Decoder(variables, _bases(tree, variables), kinds)
    settings = decoder.value(Record(Settings), tree, ())
    problems += decoder.problems
    problems += _unknown_upstreams(tree, variables)
    if settings is not BAD:
        problems += _contradictions(settings, tree, check_engine, check_turn) + _no_such_routes(settings, tree)
    if problems:
        raise SettingsError(sorted(problems, key=lambda problem: (problem.place.line or 0, problem.place.column or 0)))
    assert isinstance(settings, Settings)
    return settings


def why_not_embedded(check: Callable[[EngineConfig], None] = check_runnable,
                     config: EngineConfig | None = None) -> str | None:
    """Why the embedded engine cannot run here, None when it can."""
    try:
        check(config or EngineConfig())
    except ValueError as error:
        return str(error)
    return None


def _add(tree: Tree, more: Tree) -> None:
    for name, entry in more.entries.items():
        mine = tree.entries.setdefault(name, entry).value
        if isinstance(mine, Tree) and isinstance(entry.value, Tree):
            mine.entries.update(entry.value.entries)


def _use_model(tree: Tree, model: str) -> None:
    found = False
    for name, node in _entries(tree, "upstreams").items():
        kind = node.entries.get("kind") if isinstance(node, Tree) else None
        if kind is not None and isinstance(kind.value, Scalar) and kind.value.text == "embedded":
            found = True
            tree.put(("upstreams", name, "model"), model, "--model")
    if not found:
        raise SettingsError([Problem(Place("--model"), (), "there is no upstream of kind embedded that could run it")])


def _bases(tree: Tree, variables: Mapping[str, str]) -> dict[type, object]:
    """What routes and upstreams inherit; their own defaults when `defaults` is wrong (its problems are found later)."""
    defaults = Defaults()
    if "defaults" in tree.entries:
        decoded = Decoder(variables).value(Record(Defaults), tree.entries["defaults"].value, ("defaults",))
        defaults = defaults if decoded is BAD else decoded
    return {Timeouts: defaults.timeouts, BudgetConfig: defaults.budget, OnOverrun: defaults.on_overrun,
            RetryConfig: defaults.retry, HedgeConfig: defaults.hedge, Slo: defaults.slo, LimitConfig: defaults.limit,
            BreakerConfig: defaults.breaker}


def _unknown_upstreams(tree: Tree, variables: Mapping[str, str]) -> list[Problem]:
    """Names in routes that no upstream has; read from the tree, so that they are found beside whatever else is wrong."""
    known = _entries(tree, "upstreams")
    problems: list[Problem] = []
    owners: dict[Path, Node] = {("routes", route): node for route, node in _entries(tree, "routes").items()}
    fallbacks = {(*path, "on_overrun", "fallback"): below(node, "on_overrun", "fallback") for path, node in owners.items()}
    fallbacks["defaults", "on_overrun", "fallback"] = below(tree, "defaults", "on_overrun", "fallback")
    for path, node in list(fallbacks.items()):
        then = below(node, "then")
        if isinstance(then, Listing):
            fallbacks.update({(*path, "then", n): tier for n, tier in enumerate(then.items)})
    for path, node in {**owners, **fallbacks}.items():
        listing = below(node, "upstreams") or node
        for n, item in enumerate(listing.items if isinstance(listing, Listing) else ()):
            if isinstance(item, Scalar) and _expanded(item.text, variables) not in known:
                message = f"there is no upstream {quoted(item.text)}{did_you_mean(item.text, known)}"
                problems.append(Problem(item.place, (*path, "upstreams", n), message))
    return problems


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    try:
        return expand(text, variables)
    except ValueError:  # the decoder says so
        return text


def _entries(tree: Tree, name: str) -> dict[str, Node]:
    value = tree.entries[name].value if name in tree.entries else None
    return {key: entry.value for key, entry in value.entries.items()} if isinstance(value, Tree) else {}


def _check_rescues(settings: Settings, complain: Callable[[Path, str], None]) -> None:
    """Complain of routes with whose answers somebody should go on, and nobody can."""
    able = {name for name, its in settings.upstreams.items() if isinstance(its, HttpUpstream) and its.continues}
    for name, route in settings.routes.items():
        fallback = route.on_overrun.fallback
        spare = [up for tier in fallback.tiers for up in tier.upstreams] if fallback is not None else []
        if route.on_stall == "rescue" and able.isdisjoint((*route.upstreams, *spare)):
            complain(("routes", name, "on_stall"), "rescue needs an upstream that says continues: true")


def _check_turns(settings: Settings, check: Callable[[str], object], complain: Callable[[Path, str], None]) -> None:
    """Complain of functions that cannot be served."""
    for name, its in settings.upstreams.items():
        try:
            if isinstance(its, TurnUpstream):
                check(its.turn)
        except ValueError as error:
            complain(("upstreams", name, "turn"), str(error))


def _no_such_routes(settings: Settings, tree: Tree) -> list[Problem]:
    """Routes that send long prompts to one that does not exist."""
    problems = []
    for name, route in settings.routes.items():
        offline, others, path = route.size.offline, settings.routes.keys() - {name}, ("routes", name, "offline")
        if offline and offline not in others:
            message = f"there is no other route {quoted(offline)}{did_you_mean(offline, others)}"
            problems.append(Problem(place_of(tree, path), path, message))
    return problems


def _contradictions(settings: Settings, tree: Tree, check_engine: Callable[[EngineConfig], None],
                    check_turn: Callable[[str], object]) -> list[Problem]:
    """What single settings cannot see."""
    problems: list[Problem] = []

    def complain(path: Path, message: str) -> None:
        problems.append(Problem(place_of(tree, path), path, message))

    if not settings.upstreams:
        complain(("upstreams",), "there must be at least one upstream")
    if not settings.routes:
        complain(("routes",), "there must be at least one route: what clients may send as `model`")
    for name, known in settings.upstreams.items():
        reason = why_not_embedded(check_engine, known.engine) if isinstance(known, EmbeddedUpstream) else None
        if reason is not None:
            complain(("upstreams", name, "model"), reason.removeprefix("model "))
        if isinstance(known, HttpUpstream) and known.ca_file is not None and not FilePath(known.ca_file).is_file():
            complain(("upstreams", name, "ca_file"), "there is no such file")
    _check_tenants(settings, complain)
    _check_turns(settings, check_turn, complain)
    _check_rescues(settings, complain)
    check_caches(settings, tree, complain)
    if settings.tracing.exporter == "otlp" and (missing := why_not_otlp()) is not None:
        complain(("tracing", "exporter"), missing)
    try:
        check_exposure(settings.server)
    except ValueError as error:
        complain(("server", "host"), str(error).removeprefix("host "))
    return problems


def _check_tenants(settings: Settings, complain: Callable[[Path, str], None]) -> None:
    upstreams = settings.upstreams.items()
    has_costs = any(isinstance(known, TurnUpstream) or settings.prices_at(name) for name, known in upstreams)
    for name, tenant in settings.tenants.items():
        if name not in settings.server.keys and name != ANY_TENANT:
            hint = did_you_mean(name, settings.server.keys)
            complain(("tenants", name), f"there is no key of this name in server.keys{hint}")
        for window in ("cost_per_minute", "cost_per_day"):
            if getattr(tenant.quota, window) is not None and not has_costs:
                complain(("tenants", name, "quota", window), "nothing has a cost: no upstream has `prices`")
