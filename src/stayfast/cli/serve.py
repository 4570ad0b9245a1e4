"""`stayfast serve`: the gateway in this process, or a parent with workers; and `stayfast check`, its first step alone."""

import argparse
import asyncio
import contextlib
import errno
import json
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stayfast import __version__, compose
from stayfast.cli import curl, print_message
from stayfast.compose.caching import missing, prefix_rules
from stayfast.core.clock import SystemClock
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import (
    BUILT_IN,
    EmbeddedUpstream,
    HttpUpstream,
    Override,
    Settings,
    SettingsError,
    SettingsText,
    TurnUpstreamSettings,
    advice,
    environment,
    find,
    load,
    overrides,
    unusable,
    why_not_embedded,
)
from stayfast.turns.function import file_state
from stayfast.workers.channels import ParentChannel, WorkerPeers, meeting_place
from stayfast.workers.supervisor import EXIT_BAD_SETTINGS, EXIT_PORT_IN_USE, Supervisor, WorkersConfig, command_of, reserve

Address = tuple[str, int]
_MARGIN_S = 5.0
_CANNOT_LISTEN = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)
_PREFERRED = ("stayfast-tiny", "simulated")
_UNKNOWN = "MODEL"


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; returns the exit status."""
    variables = environment()
    if arguments.worker is not None:
        return _work(arguments.worker, variables)
    given = Given(arguments, variables)
    try:
        settings = given.load()
    except SettingsError as error:
        print_message(str(error))
        return EXIT_BAD_SETTINGS
    if arguments.check:
        if wrong := unusable(settings):
            print_message("\n".join(wrong))
            return EXIT_BAD_SETTINGS
        sys.stdout.write(_summary(settings) + "\n")
    _advise(given.find(), settings)
    if arguments.check:
        return 0
    if not any(isinstance(upstream, EmbeddedUpstream) for upstream in settings.upstreams.values()) and (
            given.find().name == BUILT_IN):
        print_message(f"no embedded model: {why_not_embedded()}")
    try:
        return _supervise(given, settings) if settings.workers > 1 else _serve(given, settings)
    except OSError as error:
        if error.errno not in _CANNOT_LISTEN:
            raise
        server = settings.server
        print_message(f"stayfast serve: cannot listen on {server.host} port {server.port}: {error.strerror}; choose "
                      f"another --port")
        return EXIT_PORT_IN_USE


def check(arguments: argparse.Namespace) -> int:
    """`stayfast check`: print `ok: ...`, or everything that is wrong with the settings, one problem a line."""
    variables = environment()
    try:
        source = find(arguments.file, variables)
        settings = load(source, variables, overrides(variables), kinds=KINDS)
    except SettingsError as error:
        print_message(str(error))
        return 1
    if wrong := unusable(settings):
        print_message("\n".join(f"{source.name}: {one}" for one in wrong))
        return 1
    sys.stdout.write("\n".join((_summary(settings), *prefix_rules(settings))) + "\n")
    _advise(source, settings)
    if why := missing(settings):
        print_message(why)
    return 0


def _advise(source: SettingsText, settings: Settings) -> None:
    for one in advice(settings):
        print_message(f"{source.name}: warning: {one}")


def _summary(settings: Settings) -> str:
    counts = (len(settings.upstreams), "upstream"), (len(settings.routes), "route")
    return "ok: " + ", ".join(f"{n} {noun}" if n == 1 else f"{n} {noun}s" for n, noun in counts)


class Given:
    """What the command line and the environment say, to be put on top of the file each time it is read."""

    def __init__(self, arguments: argparse.Namespace, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self.model: str | None = arguments.model
        self.overrides = overrides(variables)
        self._file: str | None = arguments.config
        self._running: Settings | None = None
        for name, path in (("host", ("server", "host")), ("port", ("server", "port")), ("workers", ("workers",)),
                           ("log_format", ("log", "format"))):
            if (text := getattr(arguments, name)) is not None:
                self.overrides.append(Override(path, text, f"--{name.replace('_', '-')}"))

    def find(self) -> SettingsText:
        return find(self._file, self.variables)

    def load(self, source: SettingsText | None = None) -> Settings:
        """Settings from the file as it is now, or from `source`; SettingsError. Says what cannot change while it runs."""
        settings = load(source or self.find(), self.variables, self.overrides, kinds=KINDS, model=self.model)
        old = self._running = self._running or settings
        for name, before, after in (("server.host", old.server.host, settings.server.host),
                                    ("server.port", old.server.port, settings.server.port),
                                    ("workers", old.workers, settings.workers)):
            if before != after:
                print_message(f"stayfast: {name} stays {before} until a restart")
        return settings


def _serve(given: Given, settings: Settings) -> int:
    socket_name = given.variables.get("NOTIFY_SOCKET")

    def on_listening(addresses: Sequence[Address]) -> None:
        print_message(hello(settings, addresses, __version__))
        notify(socket_name, "READY=1")

    return compose.serve(settings, siblings=WorkerPeers(), n_workers=1, reload=given.load, engines=None,
                         on_listening=on_listening, on_draining=lambda: notify(socket_name, "STOPPING=1"))


def _supervise(given: Given, settings: Settings) -> int:
    """Be the parent. What the workers get is text, overrides and addresses: all that they need to load the same settings."""
    held = reserve(settings.server.host, settings.server.port)
    address: Address = held.getsockname()[:2]
    listening = Override(("server", "port"), str(address[1]), "the parent process")
    socket_name = given.variables.get("NOTIFY_SOCKET")
    engines: dict[str, Address] = {}
    last_good, turns = given.find(), turn_files(settings)

    def briefing() -> bytes:
        return json.dumps({
            "turns": turns,  # a briefing that says nothing new is not sent
            "name": last_good.name, "text": last_good.text, "model": given.model, "engines": engines, "folder": folder,
            "overrides": [[*override.path, override.text, override.source] for override in (*given.overrides, listening)],
        }).encode()

    def reload() -> bytes:
        nonlocal last_good, turns
        source = given.find()
        new = given.load(source)
        if new.engines != settings.engines:
            raise ValueError("embedded models run in the parent of the workers: to add, change or remove one, restart")
        last_good, turns = source, turn_files(new)
        return briefing()

    def on_ready() -> None:
        print_message(hello(settings, [address], __version__))
        notify(socket_name, "READY=1")

    async def parent() -> int:
        def announce(upstream: str, engine: Address) -> None:
            engines[upstream] = engine
            supervisor.brief(briefing())

        config = WorkersConfig(settings.workers, settings.server.grace_s + settings.server.drain_s)
        supervisor = Supervisor(
            config, lambda n: command_of(n, settings.workers), reload, lambda line: print_message(f"stayfast: {line}"),
            SystemClock(),
            on_ready=on_ready, on_stopping=lambda: notify(socket_name, "STOPPING=1"),
            companions=compose.companions(settings, announce))
        return await supervisor.run()

    with held, meeting_place() as folder:
        if folder is None:
            print_message("stayfast: there is no folder for the workers to meet in; /metrics and explain tell of one "
                          "worker at a "
                "time, and limits are each one's own")
        return asyncio.run(parent())


def _work(place: str, variables: Mapping[str, str]) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the loop takes it
    n, n_workers = (int(part) for part in place.split("/"))
    try:
        lifeline = ParentChannel.on_standard_input()
    except EOFError:
        return 0
    told = ParentState(lifeline, variables)
    try:
        settings = told.load()
    except SettingsError as error:
        print_message(str(error))
        return EXIT_BAD_SETTINGS
    lifeline.watch(settings.server.grace_s + settings.server.drain_s + _MARGIN_S)

    def on_listening(_: Sequence[Address]) -> None:
        asyncio.get_running_loop().call_soon(lifeline.ready)  # once the loop takes signals: an answer may be a reload

    siblings = WorkerPeers(told.folder(), n, n_workers)
    try:
        return compose.serve(settings, siblings=siblings, n_workers=n_workers, reload=told.load, engines=told.engines,
                             on_listening=on_listening, on_draining=lambda: None)
    except OSError as error:
        if error.errno not in _CANNOT_LISTEN:
            raise
        return EXIT_PORT_IN_USE


def turn_files(settings: Settings) -> list[str]:
    """What the files of the turns are like that are served, which workers have to load anew where they have changed."""
    return [file_state(upstream.turn) for upstream in settings.upstreams.values() if isinstance(upstream,
                                                                                              TurnUpstreamSettings)]


class ParentState:
    """What a worker's parent said last."""

    def __init__(self, lifeline: ParentChannel, variables: Mapping[str, str]) -> None:
        self._lifeline = lifeline
        self._variables = variables

    def load(self) -> Settings:
        """The settings that the parent has checked."""
        state = json.loads(self._lifeline.briefing)
        given = [Override(tuple(path), text, source) for *path, text, source in state["overrides"]]
        return load(SettingsText(state["name"], state["text"]), self._variables, given, kinds=KINDS, model=state["model"])

    def folder(self) -> Path | None:
        """Where the workers meet; None: nowhere."""
        told = json.loads(self._lifeline.briefing)["folder"]
        return Path(told) if told is not None else None

    def engines(self) -> Mapping[str, Address]:
        """Where the embedded engines are, by their upstream's name; those not yet up are missing."""
        return {name: (host, port) for name, (host, port) in json.loads(self._lifeline.briefing)["engines"].items()}


def hello(settings: Settings, addresses: Sequence[tuple[str, int]], version: str) -> str:
    """A few lines for the terminal."""
    host, port = addresses[0] if addresses else (settings.server.host, settings.server.port)
    url = f"http://{_reachable(host)}:{port}/v1"
    bound = "" if _reachable(host).strip("[]") == host else f" ({host}, port {port})"
    lines = [f"stayfast {version} listens on {url}{bound}", f"models: {', '.join(settings.routes)}"]
    model = _model_to_try(settings)
    if model is not None:
        key = '-H "authorization: Bearer $STAYFAST_KEY"' if settings.server.demands_key else ""
        lines += [f"try, with a model that your upstream has for {_UNKNOWN}:" if model == _UNKNOWN else "try:",
                  curl(url, model, key)]
    return "\n".join(lines)


def _reachable(host: str) -> str:
    """An address to call, from one to listen on."""
    if host == "0.0.0.0":  # noqa: S104 - it is read, not listened on
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def _model_to_try(settings: Settings) -> str | None:
    """A route that costs nothing if there is one, else the first that has a name; of "*" a name that its upstreams know."""
    named = [name for name in settings.routes if name != "*" and "'" not in name]
    for name in _PREFERRED:
        if name in named:
            return name
    paid = {name for name, upstream in settings.upstreams.items() if isinstance(upstream, HttpUpstream)}
    free = [name for name in named if not paid.intersection(settings.routes[name].upstreams)]
    if free or named or "*" not in settings.routes:
        return next(iter(free or named), None)
    behind = settings.routes["*"].upstreams
    known = [name for upstream in behind for name in settings.upstreams[upstream].models if "'" not in name]
    return next(iter(known), _UNKNOWN if paid.intersection(behind) else "any")


def notify(address: str | None, state: str) -> None:
    """Send `state` (READY=1, STOPPING=1) to the socket that NOTIFY_SOCKET names; nothing when there is none. A manager that
    does not listen is no reason to stop serving, so errors end here."""
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), target)
