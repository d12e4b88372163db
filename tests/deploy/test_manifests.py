"""Every manifest: valid where it is applied, its flags known to our settings, its metrics on a live page."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytriton_lite.cli.serve import parse
from tests.deploy.manifests import (
    CHART,
    DEPLOY,
    KSERVE,
    Document,
    containers,
    documents,
    metrics_in,
    notes,
    of_kind,
    render,
    validate,
)
from tests.harness import MODEL_REPOSITORY, RunningServer, tensor

EVERYTHING: dict[str, Any] = {
    "kind": "StatefulSet",
    "imagePullSecrets": [{"name": "registry"}],
    "models": {
        "volume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        "controlMode": "explicit",
    },
    "server": {
        "flags": ["--load-model=*", "--frontends=2", "--log-format=json"],
        "env": [{"name": "PYTRITON_LITE_ACCESS_LOG", "value": "true"}],
        "envFrom": [{"secretRef": {"name": "credentials"}}],
    },
    "sharedMemory": {"sizeLimit": "1Gi"},
    "preStopSleepSeconds": 5,
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "podDisruptionBudget": {"minAvailable": "50%"},
    "autoscaling": {"type": "hpa"},
    "metrics": {"serviceMonitor": True, "alerts": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}],
        "monitoring": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
    },
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn"}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
}
VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": EVERYTHING,
    "keda": {"autoscaling": {"type": "keda"}, "metrics": {"serviceMonitor": True, "alerts": True}},
    "least": {
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False},
        "service": {"headless": False},
        "topologySpreadConstraints": [],
    },
}
by_values = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())


# What needs nothing but the project: part of `make test` -----------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """The metrics of a server with front ends that has answered, refused and failed."""
    with RunningServer(MODEL_REPOSITORY / "add_sub", flags=("--frontends=1",)) as server:
        inputs = [tensor(name, "FP32", [4], [1.0] * 4) for name in ("INPUT0", "INPUT1")]
        assert server.infer("add_sub", inputs).status == 200
        server.get(server.metrics_url)
        yield server.get(server.metrics_url).body.decode()


def names_on(page: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))


@pytest.mark.parametrize(
    "path",
    [CHART / "rules" / "alerts.yaml", DEPLOY / "prometheus-adapter" / "values.yaml", *KSERVE],
    ids=lambda path: path.name,
)
def test_every_metric_of_a_query_is_on_a_live_page(path: Path, page: str) -> None:
    asked = set[str]()
    for document in documents(path.read_text()):
        for text in texts_of(document, ("expr", "query", "seriesQuery", "metricsQuery")):
            asked |= metrics_in(text)
    assert asked or path in KSERVE
    assert asked <= names_on(page)


def texts_of(document: Any, keys: tuple[str, ...]) -> Iterator[str]:
    """The values of *keys*, wherever they stand."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in keys and isinstance(value, str):
                yield value
            else:
                yield from texts_of(value, keys)
    elif isinstance(document, list):
        for value in document:
            yield from texts_of(value, keys)


def flags_of(container: Document) -> list[str]:
    return [str(argument) for argument in container.get("args", ())]


def check_flags(container: Document) -> None:
    """Our own settings take the arguments, without a warning but the one of whoever may load models."""
    parsed = parse(flags_of(container), {})
    assert parsed.settings is not None
    assert parsed.settings.model_repository
    warnings = [text for text in parsed.warnings if "in mode explicit whoever reaches the server" not in text]
    assert not warnings


@pytest.mark.parametrize("path", KSERVE, ids=lambda path: path.name)
def test_every_flag_of_kserve_is_one_of_ours(path: Path) -> None:
    for document in documents(path.read_text()):
        for container in containers(document):
            check_flags(container)


def test_kserves_names_and_ports() -> None:
    """What KServe looks for by name: the container, the folder of the storage initializer, ports for HTTP and gRPC."""
    for name in ("clusterservingruntime.yaml", "clusterservingruntime-multimodel.yaml"):
        (runtime,) = documents((DEPLOY / "kserve" / name).read_text())
        (container,) = containers(runtime)
        settings = parse(flags_of(container), {}).settings
        assert settings is not None
        assert container["name"] == "kserve-container"
        assert settings.model_repository == (Path("/mnt/models"),)
        assert (settings.http_port, settings.grpc_port) == (8080, 9000)
        assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == str(settings.metrics_port)
        assert runtime["spec"].get("multiModel", False) == (settings.model_control_mode.value == "explicit")


def test_kserves_grace_periods_leave_a_server_its_time() -> None:
    (runtime,) = documents((DEPLOY / "kserve" / "clusterservingruntime.yaml").read_text())
    (container,) = containers(runtime)
    settings = parse(flags_of(container), {}).settings
    assert settings is not None
    for path in KSERVE:
        for document in documents(path.read_text()):
            if document["kind"] == "InferenceService":
                predictor = document["spec"]["predictor"]
                if document["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Knative":
                    # Knative takes the timeout of requests for it, and refuses a pod that says something else.
                    assert "terminationGracePeriodSeconds" not in predictor
                    grace = predictor["timeout"]
                else:
                    grace = predictor["terminationGracePeriodSeconds"]
                assert grace > settings.exit_timeout_secs > settings.drain_delay_secs


def test_every_alert_is_tried() -> None:
    alerts = yaml.safe_load((CHART / "rules" / "alerts.yaml").read_text())
    named = {rule["alert"] for group in alerts["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((DEPLOY / "alerts_test.yaml").read_text())
    fires = {case["alertname"] for test in tests["tests"] for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fires == named


def test_promtool_takes_the_alerts() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus")
    for command in (["check", "rules", str(CHART / "rules" / "alerts.yaml")], ["test", "rules", "alerts_test.yaml"]):
        done = subprocess.run([promtool, *command], cwd=DEPLOY, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# What needs Helm and schemas: `make test-deploy` ---------------------------------------------------------------------------


@by_values
def test_the_chart_is_valid(values: dict[str, Any], page: str) -> None:
    manifests = render(values)
    assert manifests
    for document in manifests:
        validate(document)
        for text in texts_of(document, ("expr", "query")):
            assert metrics_in(text) <= names_on(page)
    kind = values.get("kind", "Deployment")
    (container,) = containers(of_kind(manifests, kind))
    check_flags(container)


@by_values
def test_pods_pass_the_restricted_profile(values: dict[str, Any]) -> None:
    """The controls of Pod Security Standards, "restricted"."""
    pod = of_kind(render(values), values.get("kind", "Deployment"))["spec"]["template"]["spec"]
    for forbidden in ("hostNetwork", "hostPID", "hostIPC"):
        assert not pod.get(forbidden)
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in pod["volumes"]:
        assert volume.keys() - {"name"} <= allowed
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in containers(pod):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert "privileged" not in context
        assert all("hostPort" not in port for port in container["ports"])


@by_values
def test_the_kubelet_is_more_patient_than_the_server(values: dict[str, Any]) -> None:
    pod = of_kind(render(values), values.get("kind", "Deployment"))["spec"]["template"]["spec"]
    (container,) = containers(pod)
    settings = parse(flags_of(container), {}).settings
    assert settings is not None
    before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod["terminationGracePeriodSeconds"] > settings.exit_timeout_secs + before
    ready = container["readinessProbe"]
    assert settings.drain_delay_secs >= ready["periodSeconds"] * ready["failureThreshold"]


def test_services_and_monitors_find_the_pods() -> None:
    manifests = render(EVERYTHING)
    labels = of_kind(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    services = [document for document in manifests if document["kind"] == "Service"]
    assert len(services) == 2
    for service in services:
        assert service["spec"]["selector"].items() <= labels.items()
    monitor = of_kind(manifests, "ServiceMonitor")["spec"]["selector"]
    watched = [
        service["metadata"]["name"]
        for service in services
        if monitor["matchLabels"].items() <= service["metadata"]["labels"].items()
        and "pytriton-lite/headless" not in service["metadata"]["labels"]
    ]
    assert watched == ["demo-pytriton-lite"]
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        spec = of_kind(manifests, kind)["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        assert selector["matchLabels"].items() <= labels.items()
    assert of_kind(manifests, "StatefulSet")["spec"]["serviceName"] in {one["metadata"]["name"] for one in services}


@pytest.mark.parametrize("override", [{}, {"fullnameOverride": "serving"}, {"nameOverride": "serving"}], ids=str)
def test_alerts_are_about_the_job_that_the_monitor_makes(override: dict[str, str]) -> None:
    manifests = render({**override, "metrics": {"serviceMonitor": True, "alerts": True}})
    (endpoint,) = of_kind(manifests, "ServiceMonitor")["spec"]["endpoints"]
    (job,) = [entry["replacement"] for entry in endpoint["relabelings"] if entry["targetLabel"] == "job"]
    asked = re.findall(r'job=~"([^"]+)"', str(of_kind(manifests, "PrometheusRule")["spec"]))
    assert asked
    assert all(re.fullmatch(pattern, job) for pattern in asked)


def test_the_autoscaler_asks_for_what_the_adapter_has() -> None:
    autoscaler = of_kind(render({"autoscaling": {"type": "hpa"}}), "HorizontalPodAutoscaler")
    asked = {entry["pods"]["metric"]["name"] for entry in autoscaler["spec"]["metrics"]}
    adapter = yaml.safe_load((DEPLOY / "prometheus-adapter" / "values.yaml").read_text())
    assert asked == {rule["name"]["as"] for rule in adapter["rules"]["custom"]}


def test_a_long_name_leaves_room_for_what_kubernetes_appends() -> None:
    label = 63
    for document in render({"kind": "StatefulSet"}, name="a" * 53):
        # Pods have the name of a revision in a label, which is that of the set, a hyphen and a hash of at most ten digits.
        room = label - len("-4294967295") if document["kind"] == "StatefulSet" else label
        assert len(document["metadata"]["name"]) <= room


def test_what_scales_has_no_fixed_number_of_pods() -> None:
    assert "replicas" not in of_kind(render({"autoscaling": {"type": "keda"}}), "Deployment")["spec"]
    assert of_kind(render(), "Deployment")["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicaz": 3}, "replicaz"),
        ({"kind": "DaemonSet"}, "kind"),
        ({"server": {"flags": ["frontends=2"]}}, "flags"),
        ({"server": {"drainDelaySeconds": 60}}, "must be more than server.drainDelaySeconds"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        render(values)


def test_helm_lints_the_chart() -> None:
    helm = pytest.importorskip("helm_python.chart", reason="make test-deploy installs helm-python-sdk")
    report = helm.lint(str(CHART))
    assert [message for message in report["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("path", KSERVE, ids=lambda path: path.name)
def test_kserve_takes_its_manifests(path: Path) -> None:
    for document in documents(path.read_text()):
        validate(document)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda spec: spec.update(multimodel=True), "multimodel"),
        (lambda spec: spec.update(protocolVersions="v2"), "expected a list"),
        (lambda spec: spec["containers"][0].update(arguments=[]), "arguments"),
    ],
)
def test_a_wrong_manifest_is_noticed(change: Any, said: str) -> None:
    """So that the tests above cannot pass for want of a schema."""
    (runtime,) = documents((DEPLOY / "kserve" / "clusterservingruntime.yaml").read_text())
    change(runtime["spec"])
    with pytest.raises(Exception, match=said):
        validate(runtime)


@pytest.mark.parametrize(
    ("policy", "is_said"),
    [({}, True), ({"clients": [{"namespaceSelector": {}}]}, False), ({"enabled": False}, False)],
    ids=["as it is", "others", "everybody"],
)
def test_whoever_installs_it_is_told_that_other_namespaces_do_not_reach_it(
    policy: dict[str, Any], is_said: bool
) -> None:
    assert ("Pods of the namespace ml alone reach HTTP and gRPC" in notes({"networkPolicy": policy})) is is_said
