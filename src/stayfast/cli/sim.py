"""`stayfast sim`: simulated providers on a port of this machine."""

import argparse
import errno
import gc
import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import uvloop

from stayfast import __version__
from stayfast.cli import curl_example, print_message
from stayfast.core.clock import SystemClock
from stayfast.core.setting import SettingDoc
from stayfast.lab.sim_server.app import ListenConfig, SimulatorApp, check_name, stop_on_signals
from stayfast.lab.simulated import PRESETS, ProviderConfig
from stayfast.settings import SettingsError, read_environment
from stayfast.settings.decoder import Decoder, RecordField
from stayfast.settings.yaml_nodes import parse
from stayfast.workers.supervisor import EXIT_BAD_SETTINGS, EXIT_PORT_IN_USE

EXIT_USAGE = 2
DEFAULT_PRESET = "gpt-4o-like"
_CANNOT_LISTEN = (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL)

Providers = dict[str, ProviderConfig]


@dataclass(frozen=True, slots=True)
class ProvidersFile:
    """The file of `--config`. A provider has the settings of an upstream of kind `simulated`."""

    providers: Annotated[Mapping[str, ProviderConfig], SettingDoc("Each provider's name and settings.")]

    def __post_init__(self) -> None:
        if not self.providers:
            raise ValueError("providers must not be empty")
        for name in self.providers:
            try:
                check_name(name)
            except ValueError as error:
                raise ValueError(f"providers.{error}") from None


def run(arguments: argparse.Namespace) -> int:
    """Run until a signal; returns the exit status."""
    if arguments.list_presets:
        sys.stdout.write(format_presets())
        return 0
    try:
        listen = ListenConfig(arguments.host, arguments.port, arguments.key, arguments.control_anywhere)
        base = ProviderConfig(DEFAULT_PRESET, arguments.seed)
        providers = _parse_providers(arguments.provider, base)
    except ValueError as error:
        print_message(f"stayfast sim: {error}")
        return EXIT_USAGE
    try:
        if arguments.config is not None:
            providers |= load_providers(Path(arguments.config), base)
    except SettingsError as error:
        print_message(str(error))
        return EXIT_BAD_SETTINGS
    except (OSError, UnicodeDecodeError) as error:
        print_message(f"stayfast sim: {arguments.config}: {error}")
        return EXIT_BAD_SETTINGS
    providers = providers or {"sim": base}
    try:
        return uvloop.run(_serve(listen, providers, as_json=arguments.json))
    except BrokenPipeError:  # the reader of stdout has closed it; the flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _CANNOT_LISTEN:
            raise
        print_message(f"stayfast sim: cannot listen on {listen.host} port {listen.port}: {error.strerror}; choose another "
                      "--port")
        return EXIT_PORT_IN_USE


def format_presets() -> str:
    lines = [f"{'preset':24}{'vendor':12}{'TTFT p50':>10}{'p95':>8}{'p99':>8}{'tokens/s':>10}"]
    for name, preset in PRESETS.items():
        p50, p95, p99 = (f"{preset.ttft.quantile(p):.3f}" for p in (0.5, 0.95, 0.99))
        pace = f"{1 / preset.gaps.median_s:.0f}" if preset.gaps.median_s else "-"
        lines.append(f"{name:24}{preset.vendor:12}{p50:>10}{p95:>8}{p99:>8}{pace:>10}")
    return "\n".join([*lines, "TTFT in seconds, small prompts: fits to third-party pings, not ground truth.", ""])


def load_providers(path: Path, base: ProviderConfig) -> Providers:
    """The providers of a YAML file, defaults from `base`. Raises SettingsError and OSError. The preset of `base` applies
    only to providers without a preset, `engine`, `ttft` and `gaps`; else the default is `instant`.
    """
    tree, problems = parse(path.read_text(encoding="utf-8"), str(path))
    decoder = Decoder(read_environment(), {ProviderConfig: replace(base, preset="")})
    file = decoder.decode(RecordField(ProvidersFile), tree, ())
    if problems or decoder.problems:
        raise SettingsError([*problems, *decoder.problems])
    return {name: config if config.preset or config.engine or config.ttft or config.gaps
            else replace(config, preset=base.preset) for name, config in file.providers.items()}


def _parse_providers(given: list[str], base: ProviderConfig) -> Providers:
    """The providers of `--provider`: NAME=PRESET, or a preset alone, which is then also the name."""
    providers = {}
    for text in given:
        name, _, preset = text.rpartition("=")
        name = name or preset
        check_name(name)
        if preset not in PRESETS:
            raise ValueError(f"--provider {text}: unknown preset {preset!r}; `--list-presets` lists them")
        if name in providers:
            raise ValueError(f"--provider {text}: {name!r} is given twice")
        providers[name] = replace(base, preset=preset)
    return providers


async def _serve(listen: ListenConfig, providers: Providers, *, as_json: bool) -> int:
    site = SimulatorApp(listen, providers, SystemClock(), _report_unexpected)
    gc.collect()
    gc.freeze()  # a full collection of imported objects takes 10 ms, which adds to a latency
    with stop_on_signals() as is_stopped:  # before the address is printed: a signal may follow at once
        port = await site.listen()
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        url = f"http://{host}:{port}"
        if as_json:
            _print_json({"url": url, "port": port, "providers": {name: f"{url}/{name}/v1" for name in site.control.configs}})
        else:
            sys.stdout.write(f"{url}/v1\n")
            sys.stdout.flush()
            print_message(_start_message(site, url))
        try:
            await is_stopped.wait()
        finally:
            site.close()
    if as_json:
        _print_json(site.control.counts())
    return 0


def _start_message(site: SimulatorApp, url: str) -> str:
    key = '-H "authorization: Bearer $KEY"' if site.config.key is not None else ""
    return "\n".join([
        f"stayfast {__version__} simulates:",
        *(f"  {url}/{name}/v1  {_describe_provider(config)}" for name, config in site.control.configs.items()),
        "try:", curl_example(f"{url}/v1", "any", key),
        *([f"  curl {url}/_sim/counts {key}".rstrip()] if site.config.has_control else [])])


def _describe_provider(config: ProviderConfig) -> str:
    """The preset and its overrides."""
    overridden = [f"its own {name}" for name in ("ttft", "gaps", "engine") if getattr(config, name)]
    return ", ".join([config.preset] * bool(config.preset) + overridden) or "instant"


def _print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def _report_unexpected(error: BaseException) -> None:
    """Print the traceback of an unexpected exception without its message, which may quote a prompt."""
    where = "".join(traceback.format_tb(error.__traceback__))
    print_message(f"stayfast sim: unexpected {type(error).__name__}\n{where}")
