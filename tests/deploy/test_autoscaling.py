"""The examples for autoscalers: fields that exist, and names that the gateway has."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stayfast.compose.scaling import PoolReport
from stayfast.observe.metrics.definitions import SCALING_WANTED
from stayfast.server.paths import SCALING
from tests.docs.pages import ROOT

FOLDER = ROOT / "deploy" / "autoscaling"
# of KEDA's documentation, as far as the examples use them
SPEC = {"scaleTargetRef", "pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount", "fallback", "advanced",
        "triggers"}
METADATA = {
    "prometheus": {"serverAddress", "query", "threshold", "ignoreNullValues"},
    "metrics-api": {"url", "format", "valueLocation", "targetValue", "aggregateFromKubeServiceEndpoints", "aggregationType",
                    "authMode"}}


def load(name: str) -> list[dict[str, Any]]:
    return [part for part in yaml.safe_load_all((FOLDER / name).read_text()) if part]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("keda-*.yaml")), ids=lambda path: path.stem)
def test_scaled_object_fields_are_documented_ones(path: Path) -> None:
    scaled = next(part for part in load(path.name) if part["kind"] == "ScaledObject")
    assert set(scaled["spec"]) <= SPEC
    (trigger,) = scaled["spec"]["triggers"]
    assert set(trigger["metadata"]) <= METADATA[trigger["type"]]
    assert all(isinstance(value, str) for value in trigger["metadata"].values())  # KEDA reads strings only


def test_triggers_read_what_the_gateway_has() -> None:
    (by_metric,) = load("keda-prometheus.yaml")[0]["spec"]["triggers"]
    assert SCALING_WANTED.name in by_metric["metadata"]["query"]
    (by_page,) = load("keda-metrics-api.yaml")[0]["spec"]["triggers"]
    assert by_page["metadata"]["url"].endswith(SCALING)
    root, _, field = by_page["metadata"]["valueLocation"].split(".")
    assert (root, field in PoolReport.__struct_fields__) == ("pools", True)
    (external,) = load("hpa.yaml")[0]["spec"]["metrics"]
    assert external["external"]["metric"]["name"] == SCALING_WANTED.name


def test_hpa_is_valid_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for manifest in load("hpa.yaml"):
        validate.validate(manifest, validate.latest_version(), strict=True)
