"""Checks across settings: unknown names, contradictions, and missing files or packages."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path as FilePath
from re import fullmatch

from stayfast.core.types import Api
from stayfast.engine.config import EngineConfig
from stayfast.engine.fit import check_runnable
from stayfast.http.client.client import split_base_url
from stayfast.http.server.tls import ServerCertificate
from stayfast.jobs.config import JobsConfig
from stayfast.observe.tracing.config import otlp_problem
from stayfast.policy.admission.overload import ANY_TENANT
from stayfast.policy.context.config import LEARNED, UPSTREAM, VOCABULARIES
from stayfast.policy.fleet.config import REDIS_URL, REDIS_URL_FORM
from stayfast.server.config import ServerConfig, check_exposure, is_loopback
from stayfast.settings.classify import check_classifiers
from stayfast.settings.credentials import credentials_problem
from stayfast.settings.history import check_histories
from stayfast.settings.hooks import load_check
from stayfast.settings.model import Settings
from stayfast.settings.passthrough import check_pass_through
from stayfast.settings.price_table import all_rows, find_row
from stayfast.settings.problems import Path, Problem, format_path, quote, suggest
from stayfast.settings.upstreams import (
    EmbeddedUpstream,
    HttpUpstream,
    RedisStoreSettings,
    SqliteStoreSettings,
    TurnUpstreamSettings,
)
from stayfast.settings.yaml_nodes import Node, YamlList, YamlScalar, entries_at, expand_references, location_of, node_at
from stayfast.settings.yaml_nodes import YamlMapping as Tree
from stayfast.stores.exact_tokenizer import INSTALL_HINT, package_of
from stayfast.stores.jobs.postgres.address import parse_postgres_url
from stayfast.stores.sqlite import describe_problem

AddProblem = Callable[[Path, str], None]
ANY_MODEL = "*"
_CALIBRATION_KEYS = ("max_error", "min_labels")  # without effect together with a fixed threshold
_NO_REDIS, _NO_POSTGRES, _NO_SCHEMA, _NO_ZMQ = (
    f"needs a package that is not installed: pip install '.[{extra}]' in Stayfast's checkout"
    for extra in ("redis", "postgres", "schema", "kv-events"))
_ENGINE_FIELDS = ("model", "speculation.draft", "cache_type_k", "cache_type_v")  # first words of an engine's refusals
_MODELS = ("model.onnx", "onnx/model.onnx", "model.safetensors")


def find_unknown_upstreams(tree: Tree, variables: Mapping[str, str]) -> list[Problem]:
    """Unknown upstream names in routes. Reads the tree, so that they are reported together with all other problems."""
    known = entries_at(tree, "upstreams")
    problems: list[Problem] = []
    owners: dict[Path, Node] = {("routes", route): node for route, node in entries_at(tree, "routes").items()}
    fallbacks = {(*path, "on_overrun", "fallback"): node_at(node, "on_overrun", "fallback") for path, node in owners.items()}
    fallbacks["defaults", "on_overrun", "fallback"] = node_at(tree, "defaults", "on_overrun", "fallback")
    for path, node in list(fallbacks.items()):
        then = node_at(node, "then")
        if isinstance(then, YamlList):
            fallbacks.update({(*path, "then", n): tier for n, tier in enumerate(then.items)})
    for path, node in list(owners.items()):
        listed = node_at(node, "tiers")
        owners.update({(*path, "tiers", n): tier
                       for n, tier in enumerate(listed.items if isinstance(listed, YamlList) else ())})
    for path, node in {**owners, **fallbacks}.items():
        listing = node_at(node, "upstreams") or node
        for n, item in enumerate(listing.items if isinstance(listing, YamlList) else ()):
            if isinstance(item, YamlScalar) and _expand_or_keep(item.text, variables) not in known:
                message = f"there is no upstream {quote(item.text)}{suggest(item.text, known)}"
                problems.append(Problem(item.location, (*path, "upstreams", n), message))
    return problems


def _expand_or_keep(text: str, variables: Mapping[str, str]) -> str:
    try:
        return expand_references(text, variables)
    except ValueError:  # reported by the decoder
        return text


def find_contradictions(settings: Settings, tree: Tree, check_engine: Callable[[EngineConfig], None],
                        check_turn: Callable[[str], object], check_hook: Callable[[str], object]) -> list[Problem]:
    """Contradictions, and settings without effect. `check_engine`, `check_turn`, `check_hook`: see `load`."""
    problems: list[Problem] = []

    def add_problem(path: Path, message: str) -> None:
        problems.append(Problem(location_of(tree, path), path, message))

    if not settings.upstreams:
        add_problem(("upstreams",), "at least one upstream is required")
    if not settings.routes:
        add_problem(("routes",), "at least one route is required: a name that clients send as `model`")
    _check_upstreams(settings, check_engine, check_turn, add_problem)
    _check_phases(settings, add_problem)
    _check_price_rows(settings, add_problem)
    _check_tenants(settings, add_problem)
    _check_routes(settings, add_problem)
    _check_hooks(settings, check_hook, add_problem)
    _check_caches(settings, tree, add_problem)
    check_histories(settings, add_problem)
    _check_tokenizers(settings, add_problem)
    _check_jobs(settings, add_problem)
    check_classifiers(settings, add_problem)
    check_pass_through(settings, add_problem)
    _check_kv_events(settings, add_problem)
    _check_pools(settings, add_problem)
    if settings.fleet.url is not None and find_spec("redis") is None:
        add_problem(("fleet", "url"), _NO_REDIS)
    _check_job_stores(settings.jobs, add_problem)
    if settings.tracing.exporter == "otlp" and (missing := otlp_problem()) is not None:
        add_problem(("tracing", "exporter"), missing)
    try:
        check_exposure(settings.server)
    except ValueError as error:
        add_problem(("server", "host"), str(error).removeprefix("host "))
    _check_tls(settings.server, add_problem)
    return problems


def _check_tokenizers(settings: Settings, add_problem: AddProblem) -> None:
    for name, route in settings.routes.items():
        tokenizer = route.context.tokenizer
        if tokenizer in (LEARNED, UPSTREAM):
            continue
        path, package = ("routes", name, "context", "tokenizer"), package_of(tokenizer)
        if tokenizer not in VOCABULARIES and not FilePath(tokenizer).is_file():
            add_problem(path, f"no such file: {quote(tokenizer)}")
        elif find_spec(package) is None:
            add_problem(path, f"needs the package {package}, which is not installed: {INSTALL_HINT}")


def _check_kv_events(settings: Settings, add_problem: AddProblem) -> None:
    missing = find_spec("zmq") is None
    for name, upstream in settings.upstreams.items():
        if missing and isinstance(upstream, HttpUpstream) and upstream.kv_events is not None:
            add_problem(("upstreams", name, "kv_events"), _NO_ZMQ)


def _check_pools(settings: Settings, add_problem: AddProblem) -> None:
    """More ready replicas than a route has upstreams are never there."""
    for name, route in settings.routes.items():
        n_upstreams = len(set(route.own_upstreams))
        if route.pool.min_warm > max(1, n_upstreams):
            add_problem(("routes", name, "pool", "min_warm"), f"must be at most {n_upstreams}, the number of the route's "
                        f"upstreams, not {route.pool.min_warm}: each replica is an upstream of its own")


def _check_tls(server: ServerConfig, add_problem: AddProblem) -> None:
    if server.tls is None:
        return
    names = {name: getattr(server.tls, name) for name in ("cert_file", "key_file", "client_ca_file")}
    missing = [name for name, path in names.items() if path is not None and not FilePath(path).is_file()]
    for name in missing:
        add_problem(("server", "tls", name), f"no such file: {quote(names[name])}")
    if not missing:
        try:
            ServerCertificate(**names)
        except OSError as error:  # ssl.SSLError included
            reason = getattr(error, "reason", None) or error.strerror or error.args[0]
            if "PEM lib" in str(reason):  # OpenSSL's words for a file without what is wanted
                where = "" if server.tls.key_file else ": name the key's file as key_file"
                reason = f"no certificate, or no key, in PEM{where}"
            add_problem(("server", "tls"), f"the certificate and key cannot be used: {reason}")


def embedded_engine_problem(check: Callable[[EngineConfig], None] = check_runnable,
                     config: EngineConfig | None = None) -> str | None:
    """Why the embedded engine cannot run on this machine; None if it can."""
    try:
        check(config or EngineConfig())
    except ValueError as error:
        return str(error)
    return None


def _check_upstreams(settings: Settings, check_engine: Callable[[EngineConfig], None], check_turn: Callable[[str], object],
                     add_problem: AddProblem) -> None:
    for name, upstream in settings.upstreams.items():
        if isinstance(upstream, EmbeddedUpstream) and (reason := embedded_engine_problem(check_engine,
                                                                                  upstream.engine)) is not None:
            field, _, rest = reason.partition(" ")
            path, why = (field.split("."), rest) if field in _ENGINE_FIELDS else (["model"], reason)
            add_problem(("upstreams", name, *path), why)
        elif isinstance(upstream, HttpUpstream) and _is_itself(upstream.base_url, settings.server):
            add_problem(("upstreams", name, "base_url"), "is the address of this gateway (server.host, server.port): "
                        "requests would loop")
        elif (isinstance(upstream, HttpUpstream) and upstream.ca_file is not None
                and not FilePath(upstream.ca_file).is_file()):
            add_problem(("upstreams", name, "ca_file"), "no such file")
        elif isinstance(upstream, HttpUpstream) and upstream.credentials is not None:
            if (problem := credentials_problem(upstream.credentials)) is not None:
                add_problem(("upstreams", name, "credentials"), problem)
        elif isinstance(upstream, TurnUpstreamSettings):
            try:
                check_turn(upstream.turn)
            except ValueError as error:
                add_problem(("upstreams", name, "turn"), str(error))


def _check_phases(settings: Settings, add_problem: AddProblem) -> None:
    """Without its probes, a replica that was not ready once would never be ready again."""
    for name, upstream in settings.upstreams.items():
        if isinstance(upstream, HttpUpstream | EmbeddedUpstream) and upstream.warm.phases == "on" and not upstream.probe:
            add_problem(("upstreams", name, "warm", "phases"), "on needs probe: true: only a probe shows that a replica is "
                        "ready again; set probe: true, or phases: off")


def _check_hooks(settings: Settings, check_hook: Callable[[str], object], add_problem: AddProblem) -> None:
    for name, route in settings.routes.items():
        for n, hook in enumerate(route.hooks.use):
            try:
                check_hook(hook)
            except ValueError as error:
                add_problem(("routes", name, "hooks", "use", n), str(error))


def _is_itself(base_url: str, server: ServerConfig) -> bool:
    """Whether an upstream's address is this gateway's listener. Names are not resolved."""
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


def _check_price_rows(settings: Settings, add_problem: AddProblem) -> None:
    for name, upstream in settings.upstreams.items():
        for model, price in getattr(upstream, "prices", {}).items():
            if price.table and find_row(price.table) is None:
                add_problem(("upstreams", name, "prices", model, "table"), f"the table of list prices has no row "
                            f"{quote(price.table)}{suggest(price.table, all_rows())}")


def _check_tenants(settings: Settings, add_problem: AddProblem) -> None:
    upstreams = settings.upstreams.items()
    has_costs = any(isinstance(known, TurnUpstreamSettings) or settings.prices_for(name) for name, known in upstreams)
    for name, tenant in settings.tenants.items():
        if name not in settings.server.keys and name != ANY_TENANT:
            hint = suggest(name, settings.server.keys)
            add_problem(("tenants", name), f"no key of this name in server.keys{hint}")
        for window in ("cost_per_minute", "cost_per_day"):
            if getattr(tenant.quota, window) is not None and not has_costs:
                add_problem(("tenants", name, "quota", window), "has no effect: no upstream has `prices`")


def _check_jobs(settings: Settings, add_problem: AddProblem) -> None:
    jobs, keys = settings.jobs, settings.server.keys
    for n, webhook in enumerate(jobs.webhooks):
        for name in webhook.tenants:
            if name not in keys:
                add_problem(("jobs", "webhooks", n, "tenants"), f"no key named {quote(name)} in server.keys"
                            f"{suggest(name, keys)}")
    for name in jobs.windows:
        if name not in settings.routes and ANY_MODEL not in settings.routes:
            add_problem(("jobs", "windows", name), f"no route of this name{suggest(name, settings.routes)}")


def _check_routes(settings: Settings, add_problem: AddProblem) -> None:
    continuing = {name for name, upstream in settings.upstreams.items()
                  if isinstance(upstream, HttpUpstream) and upstream.supports_continuation}
    for name in sorted(continuing):
        upstream = settings.upstreams[name]
        if isinstance(upstream, HttpUpstream) and upstream.native_apis <= {Api.GEMINI}:
            add_problem(("upstreams", name, "supports_continuation"), "its protocol cannot continue an answer: remove it")
    for name, route in settings.routes.items():
        fallback = route.on_overrun.fallback
        spare = [up for tier in fallback.tiers for up in tier.upstreams] if fallback is not None else []
        if route.on_stall == "rescue" and continuing.isdisjoint((*route.own_upstreams, *spare)):
            add_problem(("routes", name, "on_stall"), "rescue needs an upstream with supports_continuation: true")
        offline, others = route.size.oversize_route, settings.routes.keys() - {name}
        if offline and offline not in others:
            message = f"no other route is named {quote(offline)}{suggest(offline, others)}"
            add_problem(("routes", name, "oversize_route"), message)
        _check_service_tiers(name, settings, add_problem)
        if "*" in name and name != "*":
            add_problem(("routes", name), 'no patterns: name each model, or use the route "*" for other names')


def _check_service_tiers(name: str, settings: Settings, add_problem: AddProblem) -> None:
    """Each upstream of a tier must have a word for its service tier."""
    for n, tier in enumerate(settings.routes[name].tiers):
        for upstream in tier.upstreams if tier.service_tier else ():
            config = settings.upstreams.get(upstream)
            words = config.service_words if isinstance(config, HttpUpstream) else {}
            if config is not None and tier.service_tier not in words:
                known = f"it has {', '.join(words)}" if words else "it has none"
                add_problem(("routes", name, "tiers", n, "service_tier"), f"upstream {quote(upstream)} has no word for "
                            f"{tier.service_tier} ({known}): set upstreams.{upstream}.service_tiers, or remove it")
            if f"{upstream}:{tier.service_tier}" in settings.upstreams:
                add_problem(("routes", name, "tiers", n, "service_tier"),
                            f"another upstream is named {quote(f'{upstream}:{tier.service_tier}')}: rename it")


def _check_caches(settings: Settings, tree: Tree, add_problem: AddProblem) -> None:
    for name, route in settings.routes.items():
        _check_helper_routes(name, settings, add_problem)
        _check_enough(name, settings, add_problem)
        _check_cache_mode(("routes", name, "cache"), node_at(tree, "routes", name, "cache"), add_problem)
        if route.cache.store and route.cache.store not in settings.stores:
            hint = suggest(route.cache.store, settings.stores)
            add_problem(("routes", name, "cache", "store"), f"unknown store {quote(route.cache.store)}{hint}")
    for name, store_settings in settings.stores.items():
        if isinstance(store_settings, SqliteStoreSettings) and not FilePath(store_settings.path).absolute().parent.is_dir():
            add_problem(("stores", name, "path"), "no such folder")
        if isinstance(store_settings, RedisStoreSettings) and find_spec("redis") is None:
            add_problem(("stores", name, "kind"), _NO_REDIS)


def _check_job_stores(jobs: JobsConfig, add_problem: AddProblem) -> None:
    """The problems never quote an address: it may contain a password."""
    if jobs.store is not None:
        try:
            parse_postgres_url(jobs.store.reveal())
        except ValueError as error:
            add_problem(("jobs", "store"), f"{error}, as in postgres://user:password@host:5432/database")
        if find_spec("asyncpg") is None:
            add_problem(("jobs", "store"), _NO_POSTGRES)
    if jobs.wake is not None:
        if not fullmatch(REDIS_URL, jobs.wake.reveal()):
            add_problem(("jobs", "wake"), f"must be like {REDIS_URL_FORM}")
        if find_spec("redis") is None:
            add_problem(("jobs", "wake"), _NO_REDIS)


def find_warnings(settings: Settings) -> list[str]:
    """Warnings for valid settings that are probably a mistake, one line each."""
    reached = {name for route in settings.routes.values() for name in route.own_upstreams}
    for route in settings.routes.values():
        fallback = route.on_overrun.fallback
        reached.update(name for tier in (fallback.tiers if fallback is not None else ()) for name in tier.upstreams)
    reached.update(settings.passthrough.upstreams)
    return [f"{format_path(('upstreams', name))}: no route uses it: add it to a route's `upstreams`, or remove it"
            for name in settings.upstreams if name not in reached]


def find_unusable_files(settings: Settings) -> list[str]:
    """Files that cannot be used, one line each. The gateway starts without them and logs it: a semantic cache is then exact,
    a store empty.
    """
    found = []
    for name, store_settings in settings.stores.items():
        if isinstance(store_settings, SqliteStoreSettings) and (why := _why_no_file(FilePath(store_settings.path))):
            found.append(f"{format_path(('stores', name, 'path'))}: {quote(store_settings.path)}: {why}")
    model = settings.embedder.model
    if model and (why := _why_no_model(FilePath(model).expanduser())):
        found.append(f"embedder.model: {quote(model)}: {why}")
    return found


def _check_helper_routes(name: str, settings: Settings, add_problem: AddProblem) -> None:
    cache, others = settings.routes[name].cache, settings.routes.keys() - {name}
    judge, verifier = cache.semantic.judge_route(name), cache.semantic.verify
    if judge and judge not in settings.routes:
        message = f"no route is named {quote(judge)}{suggest(judge, others)}, and it is neither auto nor local"
        add_problem(("routes", name, "cache", "judge"), message)
    if verifier and verifier not in others:
        message = f"no other route is named {quote(verifier)}{suggest(verifier, others)}"
        add_problem(("routes", name, "cache", "verify"), message)
    elif verifier and settings.routes[verifier].cache.mode == "semantic":
        message = f"route {quote(verifier)} has a semantic cache itself: its verdict could be one on other answers"
        add_problem(("routes", name, "cache", "verify"), message)


def _check_enough(name: str, settings: Settings, add_problem: AddProblem) -> None:
    enough, others = settings.routes[name].enough, settings.routes.keys() - {name}
    if enough.mode == "off":
        return
    if enough.judge_route and enough.judge_route not in others:
        message = (f"no other route is named {quote(enough.judge_route)}{suggest(enough.judge_route, others)}, and it is "
                   f"neither exact nor words")
        add_problem(("routes", name, "enough", "compare"), message)
    if enough.checks.json == "schema" and find_spec("jsonschema_rs") is None:
        add_problem(("routes", name, "enough", "checks", "json"), _NO_SCHEMA)
    _check_own_checks(name, settings, add_problem)


def _check_own_checks(name: str, settings: Settings, add_problem: AddProblem) -> None:
    checks, known = settings.routes[name].enough.checks, settings.classifiers
    if checks.classifier and checks.classifier not in known:
        add_problem(("routes", name, "enough", "checks", "classifier"), f"there is no classifier {quote(checks.classifier)}"
                    f"{suggest(checks.classifier, known)}")
    if checks.hook:
        try:
            load_check(checks.hook)
        except ValueError as error:
            add_problem(("routes", name, "enough", "checks", "hook"), str(error))


def _check_cache_mode(path: Path, cache: Node | None, add_problem: AddProblem) -> None:
    entries = cache.entries if isinstance(cache, Tree) else {}
    if entries and "mode" not in entries:
        add_problem((*path, next(iter(entries))), "has no effect without a mode: add mode: exact or mode: semantic "
                    "(mode: off keeps these settings for later)")
    threshold = entries["threshold"].value if "threshold" in entries else None
    if threshold is None or (isinstance(threshold, YamlScalar) and threshold.is_null):
        return
    for name in _CALIBRATION_KEYS:
        if name in entries:
            add_problem((*path, name), "has no effect together with threshold, a fixed cosine without an error bound: "
                                         "remove one")


def _why_no_file(path: FilePath) -> str:
    if path.is_dir():
        return "is a folder"
    return describe_problem(path) if path.exists() else ""


def _why_no_model(path: FilePath) -> str:
    """The files that `stores.onnx_embedder` will look for."""
    if path.is_file():
        has_tokens = any((folder / "tokenizer.json").exists() for folder in (path.parent, path.parent.parent))
        return "" if has_tokens else "no tokenizer.json in the folder of this file"
    if not path.is_dir():
        return "no such file or folder"
    if not any((path / model).exists() for model in _MODELS):
        return "no model.onnx or model.safetensors in this folder"
    return "" if (path / "tokenizer.json").exists() else "no tokenizer.json in this folder"
