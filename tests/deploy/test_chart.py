"""deploy/helm/stayfast: rendered by Helm, checked by Kubernetes' own schemas, for several files of values."""

import json
import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from stayfast.cli import _parser
from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import SettingsText, load_settings
from tests.deploy.chart_rig import CHART, Manifest, annotations, helm, only, render
from tests.deploy.stopping import longest_stop_s
from tests.docs.pages import ROOT, variables_for

VALUES = {path.stem: path for path in sorted((CHART / "ci").glob("*.yaml"))}
KUBERNETES = ["1.31", "1.37"]
OTHERS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}  # kinds of operators: Kubernetes has no schema of them
KINDS_RENDERED = {
    "postgres": {"Deployment", "Secret", "Service", "PodDisruptionBudget", "Pod"},
    "sqlite": {"StatefulSet", "Secret", "Service", "PodDisruptionBudget", "Pod"},
    "autoscaling": {"Deployment", "Secret", "Service", "PodDisruptionBudget", "Pod", "HorizontalPodAutoscaler"},
    "everything": {"Deployment", "Secret", "Service", "PodDisruptionBudget", "Pod", "Ingress", "NetworkPolicy", "ConfigMap",
                   *OTHERS},
}


def pod_of(manifests: list[Manifest]) -> Manifest:
    """The template of the gateway's pods."""
    (workload,) = [part for part in manifests if part["kind"] in {"Deployment", "StatefulSet"}]
    template: Manifest = workload["spec"]["template"]
    return template


@pytest.mark.parametrize("name", VALUES)
def test_chart_renders_what_the_values_name(name: str) -> None:
    """Each kind once, every manifest with the labels that select its release."""
    manifests = render(VALUES[name])
    assert sorted(part["kind"] for part in manifests) == sorted(KINDS_RENDERED[name])
    assert {part["metadata"]["labels"]["app.kubernetes.io/instance"] for part in manifests} == {"r"}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", VALUES)
def test_chart_manifests_fit_the_schemas_of_kubernetes(name: str, version: str) -> None:
    """Strictly: an unknown field is an error."""
    for part in render(VALUES[name]):
        if part["kind"] not in OTHERS:
            kubernetes_validate.validate(part, version, strict=True)


def test_chart_check_finds_an_unknown_field() -> None:
    """The schemas do refuse something."""
    pods = render(VALUES["postgres"])
    pod_of(pods)["spec"]["terminationGracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(only(pods, "Deployment"), KUBERNETES[0], strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_chart_settings_load_and_fit_the_pod(name: str) -> None:
    """Port, arguments, and a stop that is longer than the drain."""
    manifests = render(VALUES[name])
    text = only(manifests, "Secret")["stringData"]["stayfast.yaml"]
    settings = load_settings(SettingsText("stayfast.yaml", text), variables_for(text), kinds=KINDS)
    pod = pod_of(manifests)["spec"]
    (container,) = pod["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": settings.server.port}]
    assert pod["terminationGracePeriodSeconds"] > longest_stop_s(settings.server)
    _parser().parse_args(container["args"])
    assert pod["volumes"][0]["secret"]["secretName"] == only(manifests, "Secret")["metadata"]["name"]


@pytest.mark.parametrize("name", VALUES)
def test_chart_pods_are_hardened(name: str) -> None:
    """Of the gateway and of `helm test`: no root, nothing written, no privilege, no CPU limit, no token of the cluster."""
    manifests = render(VALUES[name])
    tests = [part for part in manifests if annotations(part).get("helm.sh/hook") == "test"]
    assert len(tests) == 1
    for pod in (pod_of(manifests)["spec"], tests[0]["spec"]):
        assert not pod["automountServiceAccountToken"]
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 65532)
        (container,) = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}
        assert set(container["resources"]["limits"]) == {"memory"}
    (gateway,) = pod_of(manifests)["spec"]["containers"]
    probes = {name: gateway[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}


def test_chart_with_persistence_keeps_jobs_on_its_volume() -> None:
    """One replica, a claim at the folder of jobs, no volume of the pod in its place."""
    manifests = render(VALUES["sqlite"])
    spec = only(manifests, "StatefulSet")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    (container,) = spec["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert (spec["replicas"], mounts[claim["metadata"]["name"]]) == (1, "/var/lib/stayfast")
    assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert "state" not in {volume["name"] for volume in spec["template"]["spec"]["volumes"]}


def test_chart_rolls_without_a_missing_replica() -> None:
    """One more before one less; autoscalers set the number themselves."""
    spec = only(render(VALUES["postgres"]), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"]) == (2, {"maxSurge": 1, "maxUnavailable": 0})
    assert "replicas" not in only(render(VALUES["autoscaling"]), "Deployment")["spec"]
    pod = pod_of(render(VALUES["everything"]))["spec"]
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["terminationGracePeriodSeconds"] == 50


def test_chart_changed_settings_replace_the_pods() -> None:
    """By the checksum of the settings; another number of replicas does not."""
    def checksum(*options: str) -> str:
        return annotations(pod_of(render(VALUES["postgres"], *options)))["checksum/settings"]

    assert checksum() == checksum("--set", "replicas=3")
    assert checksum() != checksum("--set", "settings.server.drain_s=31")


def test_chart_with_a_tls_secret_serves_and_probes_by_tls() -> None:
    """The files of the settings are those that are mounted, and probes do not call them in clear text."""
    manifests = render(VALUES["everything"], "--set", "tlsSecret=gateway-tls")
    tls = yaml.safe_load(only(manifests, "Secret")["stringData"]["stayfast.yaml"])["server"]["tls"]
    pod = pod_of(manifests)["spec"]
    (container,) = pod["containers"]
    (mount,) = [part for part in container["volumeMounts"] if part["name"] == "tls"]
    assert tls == {"cert_file": f"{mount['mountPath']}/tls.crt", "key_file": f"{mount['mountPath']}/tls.key"}
    assert {"name": "tls", "secret": {"secretName": "gateway-tls"}} in pod["volumes"]
    probes = [container[name]["httpGet"]["scheme"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert probes == ["HTTPS"] * 3
    assert only(manifests, "ServiceMonitor")["spec"]["endpoints"][0]["scheme"] == "https"
    for part in manifests:
        if part["kind"] not in OTHERS:
            kubernetes_validate.validate(part, KUBERNETES[0], strict=True)


def test_chart_monitoring_finds_the_service() -> None:
    """By labels that the Service has, with the job that rules and board expect; the board is the package's own."""
    manifests = render(VALUES["everything"])
    service, monitor = only(manifests, "Service"), only(manifests, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "stayfast"
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    board = json.loads(only(manifests, "ConfigMap")["data"]["stayfast.json"])
    assert board == json.loads((ROOT / "src" / "stayfast" / "observe" / "grafana.json").read_text(encoding="utf-8"))
    (trigger,) = only(manifests, "ScaledObject")["spec"]["triggers"]
    (metric,) = re.findall(r"stayfast_\w+", trigger["metadata"]["query"])
    assert f"`{metric}`" in (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("option", "word"), [
    ("replica=3", "replica"), ("settings.server.host=127.0.0.1", "host"), ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("image.digest=abc", "digest"), ("persistence.enabled=true", "one replica"), ("resources.limit.memory=1Gi", "limit"),
    ("ingress.enabled=true", "ingress.host"), ("prometheusRule.enabled=true", "stayfast alerts"),
])
def test_chart_wrong_value_is_refused(option: str, word: str) -> None:
    """A typo by the schema, a contradiction by the template, each with the key's name."""
    done = helm("template", "r", str(CHART), "--values", str(VALUES["postgres"]), "--set", option)
    assert done.returncode != 0
    assert word in done.stderr


def test_chart_without_routes_is_refused() -> None:
    """Its own values are not enough to serve."""
    assert "upstreams and routes are missing" in helm("template", "r", str(CHART)).stderr


def test_chart_every_value_has_a_schema() -> None:
    """And `helm lint --strict` finds nothing, for all values."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert {*values, "global"} == set(schema["properties"])
    done = helm("lint", "--strict", str(CHART), *(f"--values={path}" for path in (VALUES["everything"],)))
    assert done.returncode == 0, done.stdout


def test_chart_package_holds_the_board(tmp_path: Path) -> None:
    """The link in the chart is followed."""
    assert helm("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    (archive,) = tmp_path.glob("stayfast-*.tgz")
    assert archive.stat().st_size > 10_000
