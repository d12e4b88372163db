"""The chart and KServe's manifests, applied to a real API server, which judges what no schema says."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.api_server import ApiServer, running
from tests.deploy.manifests import KSERVE, Document, documents, of_kind, render
from tests.deploy.test_manifests import VALUES

BUILT_IN = ("serving.kserve.io", "keda.sh", "monitoring.coreos.com")
"""Groups whose kinds a cluster has when somebody has installed them."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("cluster")) as server:
        for path in sorted(Path(os.environ["DEPLOY_CRDS"]).glob("*.yaml")) if os.environ.get("DEPLOY_CRDS") else ():
            server.apply(documents(path.read_text()))
        kinds = server.get("customresourcedefinitions")["items"]
        for kind in kinds:
            server.kubectl("wait", "--for=condition=Established", f"crd/{kind['metadata']['name']}", "--timeout=60s")
        yield server


@pytest.fixture
def namespace(api: ApiServer, request: pytest.FixtureRequest) -> str:
    """One in which the profile *restricted* is enforced."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[-60:].strip("-")
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    api.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}])
    return name


def known(api: ApiServer, manifests: list[Document]) -> list[Document]:
    """Those of kinds that this cluster has."""
    groups = set(api.kubectl("api-versions").stdout.split())
    left_out = {one["apiVersion"] for one in manifests if one["apiVersion"] not in groups}
    assert {version.partition("/")[0] for version in left_out} <= set(BUILT_IN)
    return [one for one in manifests if one["apiVersion"] in groups]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_the_chart_is_applied_and_applied_again(api: ApiServer, namespace: str, values: dict[str, Any]) -> None:
    manifests = known(api, render(values, namespace=namespace))
    here = f"--namespace={namespace}"
    api.apply(manifests, here)
    kind = values.get("kind", "Deployment")
    first = api.get(kind.lower(), "demo-pytriton-lite", here)
    assert "warning" not in api.apply(manifests, here).stderr.lower()
    again = api.get(kind.lower(), "demo-pytriton-lite", here)
    # Nothing is changed by what has not changed: no new generation, so no rolling update.
    assert again["metadata"]["generation"] == first["metadata"]["generation"] == 1
    (applied,) = of_kind(manifests, kind)["spec"]["template"]["spec"]["containers"]
    (stored,) = again["spec"]["template"]["spec"]["containers"]
    for field in ("args", "securityContext"):
        assert stored[field] == applied[field]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_a_pod_of_the_chart_is_admitted_where_restricted_is_enforced(
    api: ApiServer, namespace: str, values: dict[str, Any]
) -> None:
    manifests = render(values, namespace=namespace)
    pod = pod_of(of_kind(manifests, values.get("kind", "Deployment")), namespace)
    api.apply([pod])
    wrong = copy.deepcopy(pod)
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused = api.apply([wrong], check=False)
    assert refused.returncode != 0
    assert "violates PodSecurity" in refused.stderr


def pod_of(workload: Document, namespace: str) -> Document:
    """What a controller would make of a template."""
    template = copy.deepcopy(workload["spec"]["template"])
    metadata = {**template["metadata"], "name": "pod", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def test_an_update_of_the_chart_changes_the_workload_alone(api: ApiServer, namespace: str) -> None:
    here = f"--namespace={namespace}"
    api.apply(known(api, render(namespace=namespace)), here)
    after = known(api, render({"server": {"flags": ["--frontends=2"]}}, namespace=namespace))
    api.apply(after, here)
    for one in after:
        found = api.get(one["kind"], one["metadata"]["name"], here)
        generation = found["metadata"].get("generation", 1)
        assert generation == (2 if one["kind"] == "Deployment" else 1), one["kind"]


def test_what_is_wrong_is_refused(api: ApiServer, namespace: str) -> None:
    """So that the tests above cannot pass by a server that takes everything."""
    deployment = of_kind(render(namespace=namespace), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["livenessProbe"]["successThreshold"] = 2  # no schema knows that it must be 1
    refused = api.apply([deployment], f"--namespace={namespace}", check=False)
    assert refused.returncode != 0
    assert "successThreshold: Invalid value: 2: must be 1" in refused.stderr
    container["livenessProbe"]["successThreshold"] = 1
    container["livenesProbe"] = {}
    refused = api.apply([deployment], f"--namespace={namespace}", check=False)
    assert refused.returncode != 0
    assert "livenesProbe" in refused.stderr


@pytest.mark.parametrize("path", KSERVE, ids=lambda path: path.name)
def test_kserve_manifests_are_applied_where_its_kinds_are(api: ApiServer, namespace: str, path: Path) -> None:
    manifests = documents(path.read_text())
    there = known(api, manifests)
    if not there:
        pytest.skip("DEPLOY_CRDS has no CustomResourceDefinitions of KServe's")
    for one in there:
        if not one["kind"].startswith("Cluster"):
            one["metadata"]["namespace"] = namespace
    api.apply(there)
