"""docs/operations.md and the files in deploy/ say what the code does."""

import re
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import msgspec
import yaml

from stayfast.cli import EXIT_STATUSES, _parser
from stayfast.compose.jobs import jobs_folder
from stayfast.jobs.config import JobsConfig
from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.alerts.files import prometheus_rules
from stayfast.observe.log import _RequestLine
from stayfast.server.config import ServerConfig
from stayfast.server.paths import HEALTH
from stayfast.settings import SettingsText, load_settings
from stayfast.workers.supervisor import EXIT_BAD_SETTINGS
from tests.deploy.stopping import longest_stop_s
from tests.docs.pages import ROOT, variables_for

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
UNIT = ROOT / "deploy" / "stayfast.service"
MANIFEST = ROOT / "deploy" / "kubernetes.yaml"


def test_every_field_of_the_log_has_a_row() -> None:
    """In the order of the line, none missing and none made up."""
    table = PAGE.split("### Requests")[1].split("### ")[0]
    fields = [field.name for field in msgspec.structs.fields(_RequestLine)]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == fields


def test_every_exit_status_has_a_row() -> None:
    """Those that `stayfast --help` names."""
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == re.findall(r"^  (\d+) ", EXIT_STATUSES, re.MULTILINE)


def test_systemd_unit_is_valid() -> None:
    """It waits for the drain, signals the main process only, and does not restart what cannot start."""
    unit = RawConfigParser(strict=False)  # a later ExecReload counts: the signal
    unit.read(UNIT)
    service = unit["Service"]
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
    assert int(service["TimeoutStopSec"]) > longest_stop_s(ServerConfig("0.0.0.0"))
    assert str(EXIT_BAD_SETTINGS) in service["RestartPreventExitStatus"].split()
    assert int(service["LimitNOFILE"]) > 2 * ServerConfig().max_connections
    assert service["ExecReload"].endswith("-HUP $MAINPID")
    _parser().parse_args(service["ExecStart"].split()[1:])
    name, _, state = service["Environment"].partition("=")
    assert jobs_folder(JobsConfig(), {name: state}).parent == Path(state, service["StateDirectory"])


def test_kubernetes_manifest_is_valid() -> None:
    """Its settings load, its probes exist, its port is the gateway's, and Kubernetes waits for the drain."""
    parts: dict[str, Any] = {part["kind"]: part for part in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}
    text = parts["ConfigMap"]["data"]["stayfast.yaml"]
    settings = load_settings(SettingsText("stayfast.yaml", text), variables_for(text), kinds=KINDS)
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]
    (state,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "state")
    assert jobs_folder(JobsConfig(), image_environment()).parent == Path(state)
    assert port["containerPort"] == settings.server.port
    probes = {container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {"/livez", "/readyz"} <= HEALTH
    assert "lifecycle" not in container  # the grace is the gateway's own
    assert settings.server.grace_s >= 5
    assert pod["terminationGracePeriodSeconds"] > longest_stop_s(settings.server)
    _parser().parse_args(container["args"])
    assert parts["Service"]["spec"]["selector"] == parts["Deployment"]["spec"]["template"]["metadata"]["labels"]


def test_compose_file_is_valid() -> None:
    """Its settings load and use both servers, each gateway has a name and an address, and Docker waits for the drain."""
    parts = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    text = parts["configs"]["settings"]["content"].replace("$$", "$")
    gateways = {name: service for name, service in parts["services"].items() if name.startswith("gateway")}
    one, other = gateways.values()
    variables = variables_for(text) | {"JOBS_STORE": "postgres://stayfast:a@postgres/stayfast", "REDIS_URL": "redis://redis/0"}
    assert set(variables_for(text)) == set(one["environment"])
    settings = load_settings(SettingsText("stayfast.yaml", text), variables, kinds=KINDS)
    assert settings.jobs.store is not None
    assert settings.jobs.wake is not None
    assert settings.jobs.path in one["tmpfs"][1]
    assert one["hostname"] != other["hostname"]
    ports = {port.rpartition(":")[2] for service in gateways.values() for port in service["ports"]}
    assert ports == {str(settings.server.port)}
    assert int(one["stop_grace_period"].removesuffix("s")) > longest_stop_s(settings.server)
    assert set(one["depends_on"]) == {"postgres", "redis"} < set(parts["services"])


def image_environment() -> dict[str, str]:
    """The variables that the Dockerfile sets."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    return dict(re.findall(r"(\w+)=([^\s\\]+)", text.partition("\nENV ")[2].partition("\nUSER ")[0]))


def test_the_image_has_a_folder_for_jobs() -> None:
    """Its user may write there, and a volume keeps it."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    folder = jobs_folder(JobsConfig(), image_environment()).parent
    assert f"VOLUME {folder}\n" in text
    assert f"/folders{folder} " in text


def test_the_image_runs_a_command_that_exists() -> None:
    """The Dockerfile's CMD parses, and copies only what there is."""
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    _parser().parse_args(msgspec.json.decode(command, type=list[str]))
    for names in re.findall(r"^COPY ((?:[\w./]+ )+)\S+$", text, re.MULTILINE):
        assert [name for name in names.split() if not (ROOT / name).exists()] == []


def test_shipped_rules_match_shipped_settings() -> None:
    """What `stayfast alerts` prints for the manifest's settings; `make docs` writes it anew."""
    text = next(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))["data"]["stayfast.yaml"]
    settings = load_settings(SettingsText("manifest", text), variables_for(text), kinds=KINDS)
    rules = prometheus_rules({name: route.slo for name, route in settings.routes.items()}, settings.alerts)
    assert (ROOT / "deploy" / "prometheus" / "stayfast.rules.yml").read_text(encoding="utf-8") == rules
