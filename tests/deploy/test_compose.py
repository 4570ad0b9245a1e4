"""deploy/compose.yaml: hardening, health checks, files of the monitoring. tests/docs/test_operations.py reads the rest."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from stayfast.lab.simulated.settings import KINDS
from stayfast.observe.alerts.files import prometheus_rules
from stayfast.settings import SettingsText, load_settings
from tests.docs.pages import ROOT, variables_for
from tests.services.tools import tool

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SETTINGS = COMPOSE["configs"]["settings"]["content"].replace("$$", "$")
VARIABLES = {**variables_for(SETTINGS), "JOBS_STORE": "postgres://stayfast:a@postgres/stayfast", "REDIS_URL": "redis://redis/0"}


def test_compose_services_are_read_only_with_health_checks() -> None:
    """All of them; the gateways have the check of their image. No port is open to other machines."""
    assert set(SERVICES) == {"gateway-1", "gateway-2", "postgres", "redis", "prometheus", "grafana"}
    for name, service in SERVICES.items():
        assert service["read_only"], name
        assert "/tmp" in service["tmpfs"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "healthcheck" in service or name.startswith("gateway"), name
        assert re.search(r":[\w.]+$", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    assert "\nHEALTHCHECK " in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def test_compose_mounts_files_and_volumes_that_exist() -> None:
    """Each source is declared, each file is there and can be read by its format."""
    used = {mount["source"] for service in SERVICES.values() for mount in service.get("configs", ())}
    assert used == set(COMPOSE["configs"])
    volumes = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    assert volumes == set(COMPOSE["volumes"])
    for name, config in COMPOSE["configs"].items():
        if name != "settings":
            path = DEPLOY / config["file"]
            assert msgspec.json.decode(path.read_bytes()) if path.suffix == ".json" else yaml.safe_load(path.read_text())


def test_compose_grafana_finds_prometheus_and_the_board() -> None:
    """The address of the data source is Prometheus's; the board is mounted where its provider looks."""
    targets = {mount["source"]: Path(mount["target"]) for mount in SERVICES["grafana"]["configs"]}
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasource.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana" / "provisioning.yaml").read_text())["providers"]
    assert source["url"] == "http://prometheus:9090"
    assert SERVICES["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]
    assert targets["board"].parent == Path(provider["options"]["path"])
    provisioning = Path("/etc/grafana/provisioning")
    assert targets["datasource"].parent == provisioning / "datasources"
    assert targets["boards"].parent == provisioning / "dashboards"


def test_compose_prometheus_scrapes_both_gateways_with_their_rules(tmp_path: Path) -> None:
    """promtool takes the files as they are mounted; the rules are those of the settings."""
    for mount in SERVICES["prometheus"]["configs"]:
        source = (DEPLOY / COMPOSE["configs"][mount["source"]]["file"]).read_bytes()
        (tmp_path / Path(mount["target"]).name).write_bytes(source)
    done = subprocess.run([tool("promtool", "prometheus"), "check", "config", "prometheus.yml"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (scrape,) = yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]
    gateways = [f"{name}:8090" for name in SERVICES if name.startswith("gateway")]
    assert scrape["static_configs"] == [{"targets": gateways}]
    settings = load_settings(SettingsText("compose", SETTINGS), VARIABLES, kinds=KINDS)
    assert settings.server.metrics_access == "open"
    rules = prometheus_rules({name: route.slo for name, route in settings.routes.items()}, settings.alerts)
    assert (tmp_path / "stayfast.rules.yml").read_text(encoding="utf-8") == rules


@pytest.mark.sockets
def test_compose_settings_pass_the_check(tmp_path: Path) -> None:
    """`stayfast check`, as a reader would."""
    (tmp_path / "stayfast.yaml").write_text(SETTINGS)
    done = subprocess.run([sys.executable, "-m", "stayfast", "check", "stayfast.yaml"], cwd=tmp_path, capture_output=True,
                          text=True, check=False, env={**VARIABLES, "PATH": "/usr/bin"})
    assert done.returncode == 0, done.stdout + done.stderr
