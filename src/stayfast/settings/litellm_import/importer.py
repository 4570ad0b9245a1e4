"""`stayfast import litellm`: a settings file from a LiteLLM configuration, and what became of each of its values.

Text in, text out: nothing is resolved, and no file is read but through `read`, which gets the names of `include`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from stayfast.settings.litellm_import.calls import CallSettings, add_fallbacks, most_attempts, write_tracing
from stayfast.settings.litellm_import.deployments import Deployment, EntryReader
from stayfast.settings.litellm_import.known import GENERAL, TOP, mark_known
from stayfast.settings.litellm_import.ledger import ImportVerdict, Mark, SourceNode, SourceValue, TooManyValues, ValueLedger
from stayfast.settings.litellm_import.routes import (
    ImportedRoute,
    UpstreamTable,
    alias_target,
    group_deployments,
    write_passthrough,
    write_upstream,
)
from stayfast.settings.litellm_import.scalars import SecretNames, bounded, names_in, names_of, read_switch
from stayfast.settings.litellm_import.writer import OutSection, write_file
from stayfast.settings.load import SettingsText
from stayfast.settings.problems import Problem, SettingsError, SourceLocation
from stayfast.settings.yaml_nodes import parse

MAX_FILES = 100
_ORDER = ("server", "upstreams", "routes", "passthrough", "defaults", "admission", "stores", "fleet", "log", "metrics",
          "tracing")
_SECTIONS = ("model_list", "router_settings", "litellm_settings", "general_settings")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ImportedFile:
    """The result. `text`: of the settings file; `ledger`: what became of each value."""

    text: str
    ledger: ValueLedger
    n_upstreams: int
    n_routes: int


def import_litellm(source: SettingsText, read: Callable[[str, str], SettingsText]) -> ImportedFile:
    """Import a configuration. read: the file of an `include`, from its name and that of the including file; raises
    SettingsError. Raises SettingsError if the source, or an included file, is no YAML mapping, or includes itself.
    """
    files = _Files(read)
    files.add(source, ())
    sections = files.sections()
    secrets = SecretNames(files.variables)
    root = OutSection()
    for name in _ORDER:
        root.section(name)
    calls = CallSettings(_only(sections, "router_settings"), _only(sections, "litellm_settings"), root, secrets)
    upstreams = UpstreamTable()
    routes = _read_routes(sections, calls, secrets, upstreams, root)
    general = _only(sections, "general_settings")
    coordination = _write_general(general, root, secrets) if general is not None else None
    add_fallbacks(routes, calls)
    for name, route in routes.items():
        route.write(root.section("routes", name))
    _write_calls(calls, routes, root, coordination)
    for entry in upstreams.entries:
        write_upstream(entry, root.section("upstreams", entry.name))
    root.entries = {name: piece for name, piece in root.entries.items() if isinstance(piece, OutSection) and piece.entries}
    return ImportedFile(write_file(_head(source.name), root), files.ledger, len(upstreams.entries), len(routes))


def _head(name: str) -> Iterator[str]:
    yield f"Settings of Stayfast, imported from {PurePath(name).name} (LiteLLM). Comments name its lines."
    yield "What was taken, taken differently and not taken: `stayfast import litellm --report FILE`."
    yield "Next: set the variables, then `stayfast check FILE` and `stayfast serve --config FILE`."


class _Files:
    """The source and the files that it includes: their values in one ledger, and their sections."""

    def __init__(self, read: Callable[[str, str], SettingsText]) -> None:
        self._read = read
        self._roots: list[SourceNode] = []
        self.ledger = ValueLedger()
        self.variables: set[str] = set()

    def add(self, file: SettingsText, including: tuple[str, ...]) -> None:
        if file.name in including:
            raise SettingsError([Problem(SourceLocation(including[-1]), ("include",),
                                         f"includes itself: {' -> '.join((*including, file.name))}")])
        if len(self._roots) >= MAX_FILES:
            raise SettingsError([Problem(SourceLocation(file.name), (), f"more than {MAX_FILES} included files")])
        tree, problems = parse(file.text, file.name)
        number = len(self._roots)
        try:
            self.ledger.enter((number,), tree, tree.location)
        except TooManyValues as error:
            raise SettingsError([Problem(tree.location, (), str(error))]) from None
        for n, problem in enumerate(problems):
            self.ledger.add(SourceValue((number, *problem.path, f"problem {n + 1}"), problem.location),
                            Mark(ImportVerdict.NOT_TAKEN, "", problem.message))
        self.variables |= names_in(file.text)
        root = SourceNode(tree, (number,), tree.location, self.ledger)
        self._roots.append(root)
        included = root.get("include")
        for node in names_of(included) if included is not None else []:
            if node.text is None:
                node.refuse("no name of a file")
                continue
            node.take("read as part of this file")
            self.add(self._read(node.text, file.name), (*including, file.name))

    def sections(self) -> dict[str, list[SourceNode]]:
        """The top-level values: lists of all files together, of others the included file's."""
        found: dict[str, list[SourceNode]] = {}
        for root in self._roots:
            mark_known(root, TOP)
            for name, node in root.entries().items():
                if name == "include":
                    continue
                if name in _SECTIONS and node.is_empty:
                    node.take("nothing: it is empty")
                known = found.setdefault(name, [])
                if known and not node.is_list:
                    for other in known:
                        other.refuse(f"{node.place} overrides it")
                    known.clear()
                known.append(node)
        return found


def _only(sections: dict[str, list[SourceNode]], name: str) -> SourceNode | None:
    found = sections.get(name, [])
    return found[-1] if found and found[-1].is_mapping else None


def _items(sections: dict[str, list[SourceNode]], name: str) -> list[SourceNode]:
    return [item for node in sections.get(name, []) for item in node.items()]


def _read_routes(sections: dict[str, list[SourceNode]], calls: CallSettings, secrets: SecretNames, upstreams: UpstreamTable,
                 root: OutSection) -> dict[str, ImportedRoute]:
    credentials = {}
    items = _items(sections, "credential_list")
    for item in items:
        name, values = item.get("credential_name"), item.get("credential_values")
        if name is not None and name.text and values is not None:
            credentials[name.text] = values
    reader = EntryReader(credentials, secrets, verify=read_switch(calls.get("ssl_verify")) is not False)
    found: list[Deployment] = []
    for entry in _items(sections, "model_list"):
        found += reader.read(entry)
    _mark_credentials(items, reader.used)
    write_passthrough([one for one in found if one.passed_path is not None], upstreams, root)
    found = [one for one in found if one.passed_path is None]
    aliases = _read_aliases(calls, found)
    groups = group_deployments(found, aliases)
    return {name: ImportedRoute(name, deployments, upstreams) for name, deployments in groups.items()}


def _mark_credentials(items: list[SourceNode], used: set[str]) -> None:
    for item in items:
        name = item.get("credential_name")
        if name is None or name.text not in used:
            item.refuse("no imported entry names it")
            continue
        name.take("the upstreams that name the credential")
        if (info := item.get("credential_info")) is not None:
            info.differ("nothing", "a description")


def _read_aliases(calls: CallSettings, found: list[Deployment]) -> dict[str, str]:
    node = calls.get("model_group_alias")
    groups = {one.group for one in found}
    aliases = {}
    for alias, target in node.entries().items() if node is not None else ():
        name = alias_target(target)
        if name not in groups or name is None:
            target.refuse("no route of this name was imported")
        elif alias in groups:
            target.differ("nothing", "an entry of model_list has this name")
        else:
            aliases[alias] = name
    return aliases


def _write_calls(calls: CallSettings, routes: dict[str, ImportedRoute], root: OutSection, coordination: SourceNode | None
                 ) -> None:
    calls.write_defaults()
    calls.write_logs()
    calls.write_fleet(coordination)
    calls.refuse_checks()
    has_cache = calls.write_store()
    for name, route in routes.items():
        section = root.section("routes", name)
        calls.write_affinity(section, route)
        if has_cache:
            calls.write_cache(section)
    _write_group_retries(calls.get("model_group_retry_policy"), routes, root)
    _write_lengths(calls, routes, root)


def _write_group_retries(policies: SourceNode | None, routes: dict[str, ImportedRoute], root: OutSection) -> None:
    for name, policy in policies.entries().items() if policies is not None else ():
        attempts = most_attempts(policy)
        if name not in routes:
            policy.refuse("no route of this name was imported")
        elif attempts is not None:
            root.section("routes", name, "retry").set("max_attempts", attempts, policy.place)


def _write_lengths(calls: CallSettings, routes: dict[str, ImportedRoute], root: OutSection) -> None:
    """Limits of prompts, and the routes for longer ones."""
    longer: dict[str, SourceNode] = {}
    node = calls.get("context_window_fallbacks")
    for entry in names_of(node) if node is not None else []:
        for name, targets in entry.entries().items():
            listed = names_of(targets)
            target = next((one for one in listed if one.text in routes and one.text != name), None)
            if name not in routes or target is None or routes[name].input_limit() is None:
                targets.refuse("needs two imported routes, and model_info.max_input_tokens of the first")
                continue
            longer[name] = target
            for other in listed:
                if other is not target:
                    other.refuse("one route for longer prompts; it may name a further one itself")
    checks = calls.get("enable_pre_call_checks")
    has_checks = bool(read_switch(checks))
    for name, route in routes.items():
        limit = route.input_limit()
        if limit is not None and (has_checks or name in longer):
            section = root.section("routes", name)
            section.set("max_input_tokens", limit)
            if name in longer:
                section.set("oversize_route", longer[name].text or "", longer[name].place)
        elif limit is not None:
            route.leave_input_limits()


def _write_general(general: SourceNode, root: OutSection, secrets: SecretNames) -> SourceNode | None:
    """Write `general_settings`. Returns the settings of the Redis for coordination."""
    mark_known(general, GENERAL)
    key = general.get("master_key")
    if key is not None and key.text:
        _write_master_key(key, root, secrets)
    places = general.get("global_max_parallel_requests")
    for node in (places, general.get("max_in_flight_requests_per_worker")):
        most = bounded(node, 1, 1_000_000)
        if node is not None and most is not None:
            root.section("admission").set("max_in_flight", int(most), node.place)
    for name, to, section, low, high, factor in (
        ("max_queued_requests_per_worker", "max_queue", "admission", 0, 100_000, 1),
        ("admission_queue_timeout_seconds", "max_wait_s", "admission", 0.001, 3600, 1),
        ("max_request_size_mb", "max_body_bytes", "server", 1024, 1024 * _MIB, _MIB),
    ):
        node = general.get(name)
        value = bounded(node, low, high, factor=factor)
        if node is not None and value is not None:
            root.section(section).set(to, value, node.place)
    otel = general.get("otel")
    if otel is not None and read_switch(otel):
        write_tracing(root, otel)
    return general.get("coordination_redis")


def _write_master_key(key: SourceNode, root: OutSection, secrets: SecretNames) -> None:
    name = secrets.take_secret(key, "STAYFAST_MASTER_KEY", "`server: {keys: {master: ...}}`")[2:-1]
    digest = f"{name}_DIGEST"
    key.differ("`server: {keys: {master: ...}, admins: [master]}`",
               f"only the digest is stored: set {digest} to sha256: and the SHA-256 of the key in {name}, of 16 "
               "characters or more")
    server = root.section("server")
    server.note(f'{digest}="sha256:$(printf %s "${name}" | sha256sum | cut -d" " -f1)"')
    server.section("keys").set("master", f"${{{digest}}}", key.place)
    server.set("admins", ["master"])
