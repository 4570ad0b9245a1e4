"""What single settings cannot see: names that lead nowhere, settings that exclude each other, what this machine has not."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path as FilePath

from stayfast.engine.config import EngineConfig, check_runnable
from stayfast.http.client.client import split_base_url
from stayfast.observe.tracing.config import why_not_otlp
from stayfast.policy.admission.overload import ANY_TENANT
from stayfast.server.config import ServerConfig, check_exposure, is_loopback
from stayfast.settings.model import Settings
from stayfast.settings.problems import Path, Problem, did_you_mean, dotted, quoted
from stayfast.settings.upstreams import (
    EmbeddedUpstream,
    HttpUpstream,
    RedisStoreSettings,
    SqliteStoreSettings,
    TurnUpstreamSettings,
)
from stayfast.settings.yaml_nodes import Mapping as Tree
from stayfast.settings.yaml_nodes import Node, Scalar, YamlList, below, entries_of, expand, place_of
from stayfast.stores.sqlite import why_not_a_store

Complain = Callable[[Path, str], None]
_INSTEAD_OF_THRESHOLD = ("max_error", "min_labels")  # of the calibrated mode only
_MODELS = ("model.onnx", "onnx/model.onnx", "model.safetensors")


def find_unknown_upstreams(tree: Tree, variables: Mapping[str, str]) -> list[Problem]:
    """Names in routes that no upstream has; read from the tree, so that they are found beside whatever else is wrong."""
    known = entries_of(tree, "upstreams")
    problems: list[Problem] = []
    owners: dict[Path, Node] = {("routes", route): node for route, node in entries_of(tree, "routes").items()}
    fallbacks = {(*path, "on_overrun", "fallback"): below(node, "on_overrun", "fallback") for path, node in owners.items()}
    fallbacks["defaults", "on_overrun", "fallback"] = below(tree, "defaults", "on_overrun", "fallback")
    for path, node in list(fallbacks.items()):
        then = below(node, "then")
        if isinstance(then, YamlList):
            fallbacks.update({(*path, "then", n): tier for n, tier in enumerate(then.items)})
    for path, node in {**owners, **fallbacks}.items():
        listing = below(node, "upstreams") or node
        for n, item in enumerate(listing.items if isinstance(listing, YamlList) else ()):
            if isinstance(item, Scalar) and _expanded(item.text, variables) not in known:
                message = f"there is no upstream {quoted(item.text)}{did_you_mean(item.text, known)}"
                problems.append(Problem(item.place, (*path, "upstreams", n), message))
    return problems


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    try:
        return expand(text, variables)
    except ValueError:  # the decoder says so
        return text


def find_contradictions(settings: Settings, tree: Tree, check_engine: Callable[[EngineConfig], None],
                        check_turn: Callable[[str], object]) -> list[Problem]:
    """What cannot be, and what would do nothing. `check_engine`, `check_turn`: as of `load`."""
    problems: list[Problem] = []

    def complain(path: Path, message: str) -> None:
        problems.append(Problem(place_of(tree, path), path, message))

    if not settings.upstreams:
        complain(("upstreams",), "there must be at least one upstream")
    if not settings.routes:
        complain(("routes",), "there must be at least one route: what clients may send as `model`")
    _check_upstreams(settings, check_engine, check_turn, complain)
    _check_tenants(settings, complain)
    _check_routes(settings, complain)
    _check_caches(settings, tree, complain)
    if settings.tracing.exporter == "otlp" and (missing := why_not_otlp()) is not None:
        complain(("tracing", "exporter"), missing)
    try:
        check_exposure(settings.server)
    except ValueError as error:
        complain(("server", "host"), str(error).removeprefix("host "))
    return problems


def why_not_embedded(check: Callable[[EngineConfig], None] = check_runnable,
                     config: EngineConfig | None = None) -> str | None:
    """Why the embedded engine cannot run here, None when it can."""
    try:
        check(config or EngineConfig())
    except ValueError as error:
        return str(error)
    return None


def _check_upstreams(settings: Settings, check_engine: Callable[[EngineConfig], None], check_turn: Callable[[str], object],
                     complain: Complain) -> None:
    for name, upstream in settings.upstreams.items():
        if isinstance(upstream, EmbeddedUpstream) and (reason := why_not_embedded(check_engine,
                                                                                  upstream.engine)) is not None:
            complain(("upstreams", name, "model"), reason.removeprefix("model "))
        elif isinstance(upstream, HttpUpstream) and _is_itself(upstream.base_url, settings.server):
            complain(("upstreams", name, "base_url"), "is where this gateway itself listens (server.host, server.port): "
                     "a request to it would go round in a circle")
        elif (isinstance(upstream, HttpUpstream) and upstream.ca_file is not None
                and not FilePath(upstream.ca_file).is_file()):
            complain(("upstreams", name, "ca_file"), "there is no such file")
        elif isinstance(upstream, TurnUpstreamSettings):
            try:
                check_turn(upstream.turn)
            except ValueError as error:
                complain(("upstreams", name, "turn"), str(error))


def _is_itself(base_url: str, server: ServerConfig) -> bool:
    """Whether an upstream is this gateway's own listener, as far as addresses tell without asking the network."""
    base = split_base_url(base_url)
    if not server.port or base.port != server.port:
        return False
    host, own = base.host, server.host
    is_here = is_loopback(host) or _is_every_address(host)
    return host == own or (is_here and (is_loopback(own) or _is_every_address(own)))


def _is_every_address(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _check_tenants(settings: Settings, complain: Complain) -> None:
    upstreams = settings.upstreams.items()
    has_costs = any(isinstance(known, TurnUpstreamSettings) or settings.prices_at(name) for name, known in upstreams)
    for name, tenant in settings.tenants.items():
        if name not in settings.server.keys and name != ANY_TENANT:
            hint = did_you_mean(name, settings.server.keys)
            complain(("tenants", name), f"there is no key of this name in server.keys{hint}")
        for window in ("cost_per_minute", "cost_per_day"):
            if getattr(tenant.quota, window) is not None and not has_costs:
                complain(("tenants", name, "quota", window), "nothing has a cost: no upstream has `prices`")


def _check_routes(settings: Settings, complain: Complain) -> None:
    """Routes whose answers nobody can go on with, and those that send long prompts to a route that is not there."""
    able = {name for name, upstream_settings in settings.upstreams.items() if isinstance(upstream_settings, HttpUpstream)
            and upstream_settings.supports_continuation}
    for name, route in settings.routes.items():
        fallback = route.on_overrun.fallback
        spare = [up for tier in fallback.tiers for up in tier.upstreams] if fallback is not None else []
        if route.on_stall == "rescue" and able.isdisjoint((*route.upstreams, *spare)):
            complain(("routes", name, "on_stall"), "rescue needs an upstream that says supports_continuation: true")
        offline, others = route.size.oversize_route, settings.routes.keys() - {name}
        if offline and offline not in others:
            message = f"there is no other route {quoted(offline)}{did_you_mean(offline, others)}"
            complain(("routes", name, "oversize_route"), message)
        if "*" in name and name != "*":
            complain(("routes", name), 'is no pattern: no model has this very name. Name each model, or let the route "*" '
                                       'take every name that no other route has')


def _check_caches(settings: Settings, tree: Tree, complain: Complain) -> None:
    for name, route in settings.routes.items():
        _check_others(name, settings, complain)
        _check_what_does_nothing(("routes", name, "cache"), below(tree, "routes", name, "cache"), complain)
        if route.cache.store and route.cache.store not in settings.stores:
            hint = did_you_mean(route.cache.store, settings.stores)
            complain(("routes", name, "cache", "store"), f"there is no store {quoted(route.cache.store)}{hint}")
    for name, store_settings in settings.stores.items():
        if isinstance(store_settings, SqliteStoreSettings) and not FilePath(store_settings.path).absolute().parent.is_dir():
            complain(("stores", name, "path"), "there is no such folder")
        if isinstance(store_settings, RedisStoreSettings) and find_spec("redis") is None:
            complain(("stores", name, "kind"),
                     "redis needs a package that is not installed: pip install '.[redis]' in Stayfast's checkout")


def advice(settings: Settings) -> list[str]:
    """What can be used and is probably not meant, a line each."""
    reached = {name for route in settings.routes.values() for name in route.upstreams}
    for route in settings.routes.values():
        fallback = route.on_overrun.fallback
        reached.update(name for tier in (fallback.tiers if fallback is not None else ()) for name in tier.upstreams)
    return [f"{dotted(('upstreams', name))}: no route leads to it: add it to the `upstreams` of one, or leave it out"
            for name in settings.upstreams if name not in reached]


def unusable(settings: Settings) -> list[str]:
    """What is named and cannot be used as the disk is now, a line each. A gateway starts without: it says so in its log, and
    such a cache is an exact one, such a store gives nothing.
    """
    found = []
    for name, store_settings in settings.stores.items():
        if isinstance(store_settings, SqliteStoreSettings) and (why := _why_no_file(FilePath(store_settings.path))):
            found.append(f"{dotted(('stores', name, 'path'))}: {quoted(store_settings.path)}: {why}")
    model = settings.embedder.model
    if model and (why := _why_no_model(FilePath(model).expanduser())):
        found.append(f"embedder.model: {quoted(model)}: {why}")
    return found


def _check_others(name: str, settings: Settings, complain: Complain) -> None:
    """The routes that a route's semantic cache asks."""
    cache, others = settings.routes[name].cache, settings.routes.keys() - {name}
    for field, other_route in (("judge", cache.semantic.judge), ("verify", cache.semantic.verify)):
        if other_route and other_route not in others:
            message = f"there is no other route {quoted(other_route)}{did_you_mean(other_route, others)}"
            complain(("routes", name, "cache", field), message)
        elif other_route and settings.routes[other_route].cache.mode == "semantic":
            message = f"route {quoted(other_route)} has a semantic cache, and would say what it said of other answers"
            complain(("routes", name, "cache", field), message)


def _check_what_does_nothing(path: Path, cache: Node | None, complain: Complain) -> None:
    """What a route says of its cache and nobody would ever look at."""
    entries = cache.entries if isinstance(cache, Tree) else {}
    if entries and "mode" not in entries:
        complain((*path, next(iter(entries))), "does nothing without a mode: add mode: exact or mode: semantic (or mode: "
                                               "off, "
                                            "to keep for later what is said here)")
    threshold = entries["threshold"].value if "threshold" in entries else None
    if threshold is None or (isinstance(threshold, Scalar) and threshold.is_null):
        return
    for name in _INSTEAD_OF_THRESHOLD:
        if name in entries:
            complain((*path, name), "does nothing beside threshold, a fixed cosine that bounds no error: leave out one of "
                                    "the two, threshold where the error is to be bounded")


def _why_no_file(path: FilePath) -> str:
    if path.is_dir():
        return "this is a folder, and no file"
    return why_not_a_store(path) if path.exists() else ""


def _why_no_model(path: FilePath) -> str:
    """As `stores.onnx_embedder` will look for it."""
    if path.is_file():
        has_tokens = any((folder / "tokenizer.json").exists() for folder in (path.parent, path.parent.parent))
        return "" if has_tokens else "this file has no tokenizer.json beside it"
    if not path.is_dir():
        return "there is no such file or folder"
    if not any((path / model).exists() for model in _MODELS):
        return "this folder has no model.onnx and no model.safetensors"
    return "" if (path / "tokenizer.json").exists() else "this folder has no tokenizer.json"
