"""`stayfast serve`: the gateway in this process, or a parent with worker processes; and `stayfast check`."""

import argparse
import asyncio
import errno
import json
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from secrets import token_hex

from stayfast import __version__, compose
from stayfast.cli import curl_example, print_message
from stayfast.cli.listening import UnusableSocket, listening_sockets, notify_systemd, start_watchdog
from stayfast.cli.terminal import style_of_output
from stayfast.compose.caching import explain_missing_packages, prefix_rules
from stayfast.compose.classify import UnusableClassifier, find_unusable_classifiers
from stayfast.compose.enough import explain_missing_vectors
from stayfast.compose.live_check import check_upstreams
from stayfast.compose.prices import price_lines
from stayfast.compose.tiers import tier_lines
from stayfast.core.clock import SystemClock
from stayfast.core.units import make_printable
from stayfast.engine.config import EngineConfig
from stayfast.engine.fit import check_runnable, describe_fits, find_misfits
from stayfast.lab.simulated.settings import KINDS
from stayfast.server.ui_paths import PAGE
from stayfast.settings import (
    BUILT_IN,
    HttpUpstream,
    Override,
    Settings,
    SettingsError,
    SettingsText,
    TurnUpstreamSettings,
    embedded_engine_problem,
    find_unusable_files,
    find_warnings,
    load_settings,
    overrides_from,
    read_environment,
    read_settings_file,
)
from stayfast.settings.effective import BY_DEFAULT, SettingsReport, settings_as_yaml
from stayfast.settings.presets import preset_lines
from stayfast.turns.function import file_state
from stayfast.upstreams.embedded import EngineAddress
from stayfast.workers.channels import ParentChannel, WorkerPeers, runtime_directory
from stayfast.workers.supervisor import (
    EXIT_BAD_SETTINGS,
    EXIT_PORT_IN_USE,
    Supervisor,
    WorkersConfig,
    reserve_port,
    worker_command,
)

Address = tuple[str, int]
_MARGIN_S = 5.0
_CANNOT_LISTEN = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
_PREFERRED = ("stayfast-tiny", "simulated")
_UNKNOWN = "MODEL"


def run(arguments: argparse.Namespace) -> int:
    variables = read_environment()
    if arguments.worker is not None:
        return _run_worker(arguments.worker, variables)
    given = CommandLineSettings(arguments, variables)
    try:
        settings = given.load()
    except SettingsError as error:
        print_message(str(error))
        return EXIT_BAD_SETTINGS
    wrong = find_misfits(settings.embedded)
    if arguments.check:
        wrong += [*find_unusable_files(settings), *find_unusable_classifiers(settings)]
    if wrong:
        print_message("\n".join(wrong))
        return EXIT_BAD_SETTINGS
    if arguments.check:
        sys.stdout.write(_summarize(settings) + "\n")
    _print_warnings(given.find(), settings)
    if arguments.check:
        return 0
    _print_engines(given, settings)
    try:
        with listening_sockets(settings, variables) as sockets:
            return (_run_parent if settings.workers > 1 else _serve)(given, settings, sockets)
    except OSError as error:
        if error.errno not in _CANNOT_LISTEN:
            raise
        server = settings.server
        print_message(f"stayfast serve: cannot listen on {server.host} port {server.port}: {error.strerror}; choose another "
                      "--port")
        return EXIT_PORT_IN_USE
    except (UnusableSocket, UnusableClassifier) as error:
        print_message(f"stayfast serve: {error}")
        return EXIT_PORT_IN_USE if isinstance(error, UnusableSocket) else EXIT_BAD_SETTINGS


def check(arguments: argparse.Namespace) -> int:
    """`stayfast check`: print `ok: ...`, or all problems of the settings, one per line."""
    variables = read_environment()
    try:
        source = read_settings_file(arguments.file, variables)
        settings = load_settings(source, variables, overrides_from(variables), kinds=KINDS)
    except SettingsError as error:
        print_message(str(error))
        return 1
    if wrong := [*find_unusable_files(settings), *find_unusable_classifiers(settings), *find_misfits(settings.embedded)]:
        print_message("\n".join(f"{source.name}: {one}" for one in wrong))
        return 1
    if arguments.effective:
        sys.stdout.write(settings_as_yaml(SettingsReport(settings).read()))
        return 0
    today = datetime.now(UTC).date()
    sys.stdout.write("\n".join((_summarize(settings), *prefix_rules(settings), *tier_lines(settings),
                                *preset_lines(settings.sources), *price_lines(settings, today),
                                *describe_fits(settings.embedded))) + "\n")
    _print_warnings(source, settings)
    for why in (explain_missing_packages(settings), explain_missing_vectors(settings)):
        if why:
            print_message(why)
    return asyncio.run(_check_live(settings)) if arguments.live else 0


async def _check_live(settings: Settings) -> int:
    """Print a line for each step to each upstream. Status 1: one fails."""
    n_failed, last, ink = 0, "", style_of_output()
    async for step in check_upstreams(settings, SystemClock(), Random()):
        n_failed += not step.works
        mark = "ok   " if step.works else "FAILS"
        lines = ink.wrap(make_printable(f"  {mark} {step.what}: {step.text}"), 8)
        sys.stdout.write("\n".join([*([] if step.upstream == last else [step.upstream]), *lines, ""]))
        sys.stdout.flush()
        last = step.upstream
    return 1 if n_failed else 0


def _print_warnings(source: SettingsText, settings: Settings) -> None:
    for one in find_warnings(settings):
        print_message(f"{source.name}: warning: {one}")


def _print_engines(given: "CommandLineSettings", settings: Settings) -> None:
    """What a named model takes; why there is no embedded one, without settings."""
    if given.model is not None:
        print_message("\n".join(describe_fits(settings.embedded)))
    if not settings.engines and given.find().name == BUILT_IN:
        print_message(f"no embedded model: {embedded_engine_problem()}")


def _summarize(settings: Settings) -> str:
    counts = (len(settings.upstreams), "upstream"), (len(settings.routes), "route")
    return "ok: " + ", ".join(f"{n} {noun}" if n == 1 else f"{n} {noun}s" for n, noun in counts)


class CommandLineSettings:
    """Settings of the command line and the environment, applied each time the file is read."""

    def __init__(self, arguments: argparse.Namespace, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.model: str | None = arguments.model
        self.overrides = overrides_from(variables)
        self._file: str | None = arguments.config
        self._running: Settings | None = None
        self._checked: list[EngineConfig] = []  # of the last settings
        for name, path in (("host", ("server", "host")), ("port", ("server", "port")), ("workers", ("workers",)),
                           ("log_format", ("log", "format"))):
            if (text := getattr(arguments, name)) is not None:
                self.overrides.append(Override(path, text, f"--{name.replace('_', '-')}"))

    def find(self) -> SettingsText:
        return read_settings_file(self._file, self.variables)

    def _check_engine(self, config: EngineConfig) -> None:
        """A running engine already holds its memory, so it is not measured against the rest at a reload."""
        if config not in self._checked:
            check_runnable(config)

    def load(self, source: SettingsText | None = None) -> Settings:
        """Load the current file, or `source`. Prints a message for changes that need a restart. Raises SettingsError."""
        settings = load_settings(source or self.find(), self.variables, self.overrides, kinds=KINDS, model=self.model,
                                 check_engine=self._check_engine)
        self._checked = list(settings.embedded.values())
        old = self._running = self._running or settings
        for name, before, after in (("server.host", old.server.host, settings.server.host),
                                    ("server.port", old.server.port, settings.server.port),
                                    ("server.tls", old.server.tls, settings.server.tls),
                                    ("server.unix_socket", old.server.unix_socket, settings.server.unix_socket),
                                    ("workers", old.workers, settings.workers)):
            if before != after:
                print_message(f"stayfast: {name} stays {before} until a restart")
        return settings


def _serve(given: CommandLineSettings, settings: Settings, sockets: Sequence[socket.socket]) -> int:
    socket_name = given.variables.get("NOTIFY_SOCKET")

    def on_listening(addresses: Sequence[Address]) -> None:
        print_message(startup_message(settings, addresses, __version__))
        notify_systemd(socket_name, "READY=1")
        start_watchdog(given.variables)

    return compose.serve(settings, siblings=WorkerPeers(), n_workers=1, reload=given.load, engines=None,
                         on_listening=on_listening, on_draining=lambda: notify_systemd(socket_name, "STOPPING=1"),
                         sockets=sockets)


def _run_parent(given: CommandLineSettings, settings: Settings, sockets: Sequence[socket.socket]) -> int:
    """Run the parent process. Workers get the settings text, overrides and addresses, and load the same settings."""
    of_systemd = [sock for sock in sockets if sock.family != socket.AF_UNIX]
    held = of_systemd[0] if of_systemd else reserve_port(settings.server.host, settings.server.port)
    address: Address = held.getsockname()[:2]
    descriptors = [sock.fileno() for sock in sockets]
    listening = Override(("server", "port"), str(address[1]), settings.sources.get("server.port", BY_DEFAULT))
    socket_name = given.variables.get("NOTIFY_SOCKET")
    engines: dict[str, EngineAddress] = {}
    last_good, files = given.find(), watched_file_states(settings)
    session_secret = token_hex(32)

    def snapshot() -> bytes:
        return json.dumps({
            "files": files,  # part of the snapshot: an unchanged one is not sent
            "sockets": descriptors,
            "name": last_good.name, "text": last_good.text, "model": given.model, "engines": engines, "folder": folder,
            "session_secret": session_secret,
            "overrides": [[*override.path, override.text, override.source] for override in (*given.overrides, listening)],
        }).encode()

    def reload() -> bytes:
        nonlocal last_good, files
        source = given.find()
        new = given.load(source)
        if new.engines != settings.engines:
            raise ValueError("embedded models run in the parent process: adding, changing or removing one needs a restart")
        last_good, files = source, watched_file_states(new)
        return snapshot()

    def on_ready() -> None:
        print_message(startup_message(settings, [address], __version__))
        notify_systemd(socket_name, "READY=1")

    async def parent() -> int:
        def announce(upstream: str, engine: EngineAddress) -> None:
            engines[upstream] = engine
            supervisor.send_snapshot(snapshot())

        config = WorkersConfig(settings.workers, settings.server.grace_s + settings.server.drain_s)
        supervisor = Supervisor(
            config, lambda n: worker_command(n, settings.workers), reload, lambda line: print_message(f"stayfast: {line}"),
            SystemClock(),
            on_ready=on_ready, on_stopping=lambda: notify_systemd(socket_name, "STOPPING=1"),
            companions=compose.engine_hosts(settings, announce), descriptors=descriptors)
        start_watchdog(given.variables)
        return await supervisor.run()

    with held, runtime_directory() as folder:
        if folder is None:
            print_message("stayfast: no runtime directory for the workers: /metrics and explain cover one worker at a time, "
                          "and limits are per worker")
        return asyncio.run(parent())


def _run_worker(place: str, variables: Mapping[str, str]) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the event loop handles it
    n, n_workers = (int(part) for part in place.split("/"))
    try:
        lifeline = ParentChannel.from_stdin()
    except EOFError:
        return 0
    parent_state = ParentState(lifeline, variables)
    try:
        settings = parent_state.load()
    except SettingsError as error:
        print_message(str(error))
        return EXIT_BAD_SETTINGS
    lifeline.watch(settings.server.grace_s + settings.server.drain_s + _MARGIN_S)

    def on_listening(_: Sequence[Address]) -> None:
        asyncio.get_running_loop().call_soon(lifeline.send_ready)  # once the loop handles signals, as a reload may follow

    siblings = WorkerPeers(parent_state.runtime_directory(), n, n_workers)
    try:
        return compose.serve(settings, siblings=siblings, n_workers=n_workers, reload=parent_state.load,
                             engines=parent_state.engine_addresses, on_listening=on_listening, on_draining=lambda: None,
                             session_secret=parent_state.session_secret(), sockets=parent_state.sockets())
    except OSError as error:
        if error.errno not in _CANNOT_LISTEN:
            raise
        return EXIT_PORT_IN_USE
    except UnusableClassifier as error:
        print_message(f"stayfast serve: {error}")
        return EXIT_BAD_SETTINGS


def watched_file_states(settings: Settings) -> list[str]:
    """The states of the served turns' and the certificate's files; workers reload changed ones."""
    tls = settings.server.tls
    certificate = [Path(name).stat() for name in ((tls.cert_file, tls.key_file) if tls is not None else ()) if name]
    return [*(file_state(upstream.turn) for upstream in settings.upstreams.values()
              if isinstance(upstream, TurnUpstreamSettings)),
            *(f"{state.st_mtime_ns} {state.st_ino} {state.st_size}" for state in certificate)]


class ParentState:
    """The latest snapshot from a worker's parent."""

    def __init__(self, lifeline: ParentChannel, variables: Mapping[str, str]) -> None:
        self._lifeline = lifeline
        self._variables = variables

    def load(self) -> Settings:
        """The settings, already checked by the parent."""
        state = json.loads(self._lifeline.config_snapshot)
        given = [Override(tuple(path), text, source) for *path, text, source in state["overrides"]]
        return load_settings(SettingsText(state["name"], state["text"]), self._variables, given, kinds=KINDS,
                             model=state["model"], check_engine=lambda _: None)  # it holds its memory by now

    def runtime_directory(self) -> Path | None:
        """The runtime directory of the workers; None if there is none."""
        path = json.loads(self._lifeline.config_snapshot)["folder"]
        return Path(path) if path is not None else None

    def session_secret(self) -> bytes:
        """Signs the sessions of the page, for all workers alike."""
        return bytes.fromhex(json.loads(self._lifeline.config_snapshot)["session_secret"])

    def sockets(self) -> list[socket.socket]:
        """Bound sockets that all workers listen on."""
        return [socket.socket(fileno=number) for number in json.loads(self._lifeline.config_snapshot)["sockets"]]

    def engine_addresses(self) -> Mapping[str, EngineAddress]:
        """The ready embedded engines, by name."""
        engines = json.loads(self._lifeline.config_snapshot)["engines"]
        return {name: EngineAddress(*address) for name, address in engines.items()}


def startup_message(settings: Settings, addresses: Sequence[tuple[str, int]], version: str) -> str:
    """The startup message: address, models, and an example request."""
    host, port = addresses[0] if addresses else (settings.server.host, settings.server.port)
    scheme = "https" if settings.server.tls is not None else "http"
    url = f"{scheme}://{_client_host(host)}:{port}/v1"
    bound = "" if _client_host(host).strip("[]") == host else f" ({host}, port {port})"
    lines = [f"stayfast {version} listens on {url}{bound}", f"models: {', '.join(settings.routes)}"]
    if settings.server.unix_socket:
        lines.append(f"unix socket: {settings.server.unix_socket}")
    if settings.server.has_page:
        lines.append(f"page: {url.removesuffix('/v1')}{PAGE}")
    model = _model_to_try(settings)
    if model is not None:
        key = '-H "authorization: Bearer $STAYFAST_KEY"' if settings.server.demands_key else ""
        lines += [f"try (replace {_UNKNOWN} by a model of your upstream):" if model == _UNKNOWN else "try:",
                  curl_example(url, model, key)]
    return "\n".join(lines)


def _client_host(host: str) -> str:
    """The address to call for a listening address."""
    if host == "0.0.0.0":  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def _model_to_try(settings: Settings) -> str | None:
    """A route without costs if there is one, else the first named route; for "*" a model name of its upstreams."""
    named = [name for name in settings.routes if name != "*" and "'" not in name]
    for name in _PREFERRED:
        if name in named:
            return name
    paid = {name for name, upstream in settings.upstreams.items() if isinstance(upstream, HttpUpstream)}
    free = [name for name in named if not paid.intersection(settings.routes[name].own_upstreams)]
    if free or named or "*" not in settings.routes:
        return next(iter(free or named), None)
    behind = settings.routes["*"].upstreams
    known = [name for upstream in behind for name in settings.upstreams[upstream].models if "'" not in name]
    return next(iter(known), _UNKNOWN if paid.intersection(behind) else "any")
