"""What lies in ``deploy/``, read, rendered and validated by what others publish.

Rendering is Helm's own engine, as the PyPI package helm-python-sdk carries it. Schemas are those of Kubernetes
(kubernetes-validate), of KServe (the types of its own SDK, read from its source and not imported, since it brings its server
along), and of KEDA and the Prometheus operator (cloudcoil's models, generated from their CRDs). `make test-deploy` installs
them, those of the last two lines into the folder ``DEPLOY_SCHEMAS``; what is not there is skipped. ``DEPLOY_CRDS`` may name a
folder of CustomResourceDefinitions, against which everything of their kinds is then validated as well.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import PROJECT

DEPLOY = PROJECT / "deploy"
CHART = DEPLOY / "helm" / "pytriton-lite"
KSERVE = sorted((DEPLOY / "kserve").glob("*.yaml"))
KUBERNETES = "1.37"

Document = dict[str, Any]

_OURS = re.compile(r"\b(?:nv|pytriton_lite|process)_[a-z_]+\b")
_LIST = re.compile(r"list\[(.*)\]")
_DICT = re.compile(r"dict\(str, (.*)\)")
_SCALARS: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "object": object,
    "K8sIoApimachineryPkgApiResourceQuantity": (str, int),
    "ResourceQuantity": (str, int),
    "V1beta1MetricQuantity": (str, int),
}


def documents(text: str) -> list[Document]:
    """The YAML documents of *text* that are not empty."""
    return [document for document in yaml.safe_load_all(text) if document]


def render(values: Mapping[str, Any] | None = None, *, name: str = "demo", namespace: str = "ml") -> list[Document]:
    """The manifests of the chart with *values*; skips where Helm is not there."""
    rendered = _rendered(values or {}, name, namespace)
    texts = (text for path, text in sorted(rendered.items()) if not path.endswith("NOTES.txt"))
    return [document for text in texts for document in documents(text)]


def notes(values: Mapping[str, Any]) -> str:
    """What Helm says to whoever has installed the chart with *values*, as `demo` in `ml`; skips where Helm is not there."""
    (text,) = [text for path, text in _rendered(values, "demo", "ml").items() if path.endswith("NOTES.txt")]
    return text


def _rendered(values: Mapping[str, Any], name: str, namespace: str) -> Mapping[str, str]:
    """The texts of the chart's templates, by their paths."""
    helm = pytest.importorskip("helm_python", reason="make test-deploy installs helm-python-sdk")
    with helm.Chart.load(str(CHART)) as chart:
        rendered: Mapping[str, str] = chart.render(values=dict(values), name=name, namespace=namespace)
    return rendered


def of_kind(manifests: list[Document], kind: str) -> Document:
    """The only one of *kind*."""
    (found,) = [document for document in manifests if document["kind"] == kind]
    return found


def containers(document: Document) -> Iterator[Document]:
    """Every container of *document*, wherever its kind has them."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "containers":
                yield from value
            else:
                yield from containers(value)
    elif isinstance(document, list):
        for value in document:
            yield from containers(value)


def metrics_in(text: str) -> set[str]:
    """Names of metrics of ours and of Triton's that stand in *text*."""
    return set(_OURS.findall(text))


# Validation ------------------------------------------------------------------------------------------------------------


def validate(document: Document) -> None:
    """Fail for what the API would refuse, or drop because nobody knows the field. Skips without the schemas of its kind."""
    group = document["apiVersion"].partition("/")[0]
    crd = _given_crds().get((document["apiVersion"], document["kind"]))
    if crd is not None:
        _validate_structural(document, crd, document["kind"])
    if group == "serving.kserve.io":
        _validate_kserve(document)
    elif group in ("keda.sh", "monitoring.coreos.com"):
        _validate_operator(document, group)
    else:
        kubernetes = pytest.importorskip("kubernetes_validate", reason="make test-deploy installs kubernetes-validate")
        kubernetes.validate(document, KUBERNETES, strict=True)


def _schemas(package: str) -> Path:
    """The folder in which *package* lies; skips where there is none."""
    folder = os.environ.get("DEPLOY_SCHEMAS", "")
    if not folder or not (Path(folder) / package).is_dir():
        pytest.skip(f"make test-deploy fetches the package {package}, whose types are read")
    return Path(folder)


def _validate_operator(document: Document, group: str) -> None:
    module = {"keda.sh": "keda.v1alpha1", "monitoring.coreos.com": "prometheus_operator.v1"}[group]
    folder = str(_schemas("cloudcoil"))
    if folder not in sys.path:
        sys.path.append(folder)
    jsonschema = importlib.import_module("jsonschema")
    model = getattr(importlib.import_module(f"cloudcoil.models.{module}"), document["kind"])
    schema = model.model_json_schema(by_alias=True)
    for part in (schema, *schema["$defs"].values()):
        if part.get("properties"):
            part.setdefault("additionalProperties", False)
    # Go's patterns, with flags in their middle, are none of Python's.
    checks = {key: check for key, check in jsonschema.Draft202012Validator.VALIDATORS.items() if key != "pattern"}
    validator = jsonschema.validators.create(jsonschema.Draft202012Validator.META_SCHEMA, checks)
    error = next(iter(validator(schema).iter_errors(document)), None)
    assert error is None, error


# KServe's own types, from the source of its SDK.


@functools.cache
def _kserve_type(name: str) -> Mapping[str, tuple[str, bool]] | None:
    """JSON names of the fields of a class, with their types and whether they must be there; None for an unknown class."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    path = _schemas("kserve") / "kserve" / "models" / f"{snake}.py"
    if not path.is_file():
        return None
    tree = ast.parse(path.read_text())
    (model,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    tables = {
        target.id: ast.literal_eval(node.value)
        for node in model.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("openapi_types", "attribute_map")
    }
    text = path.read_text()
    return {
        tables["attribute_map"][field]: (kind, f"Invalid value for `{field}`, must not be `None`" in text)
        for field, kind in tables["openapi_types"].items()
    }


_KSERVE_PREFIX = {"v1beta1": "V1beta1", "v1alpha1": "V1alpha1"}


def _validate_kserve(document: Document) -> None:
    version = document["apiVersion"].partition("/")[2]
    _check(document, _KSERVE_PREFIX[version] + document["kind"], document["kind"])


def _check(value: Any, kind: str, where: str) -> None:
    if found := _LIST.fullmatch(kind):
        assert isinstance(value, list), f"{where}: expected a list, got {value!r}"
        for at, item in enumerate(value):
            _check(item, found[1], f"{where}[{at}]")
    elif found := _DICT.fullmatch(kind):
        assert isinstance(value, dict), f"{where}: expected a mapping, got {value!r}"
        for key, item in value.items():
            _check(item, found[1], f"{where}.{key}")
    elif kind in _SCALARS:
        is_wrong_bool = isinstance(value, bool) and kind in ("int", "float")
        assert isinstance(value, _SCALARS[kind]), f"{where}: expected {kind}, got {value!r}"
        assert not is_wrong_bool, f"{where}: expected {kind}, got {value!r}"
    elif (fields := _kserve_type(kind)) is not None:
        assert isinstance(value, dict), f"{where}: expected {kind}, got {value!r}"
        unknown = value.keys() - fields.keys()
        assert not unknown, f"{where}: {kind} has no {sorted(unknown)}"
        for key, (inner, is_needed) in fields.items():
            if key in value:
                _check(value[key], inner, f"{where}.{key}")
            else:
                assert not is_needed, f"{where}: {kind} needs {key}"
    else:
        _check_kubernetes(value, kind, where)


def _check_kubernetes(value: Any, kind: str, where: str) -> None:
    """A type of Kubernetes's, ``V1Container`` for instance."""
    validator = pytest.importorskip("kubernetes_validate", reason="make test-deploy installs kubernetes-validate")
    jsonschema = importlib.import_module("jsonschema")
    definitions = _kubernetes_definitions(Path(validator.__file__).parent)
    name = next((key for key in definitions if key.endswith(f".v1.{kind.removeprefix('V1')}")), None)
    assert name is not None, f"{where}: nobody knows {kind}"
    schema = {"$ref": f"#/$defs/{name}", "$defs": definitions}
    jsonschema.validate(value, schema)


@functools.cache
def _kubernetes_definitions(package: Path) -> dict[str, Any]:
    """Definitions of Kubernetes that refuse what they do not name."""
    (path,) = (package / "kubernetes-json-schema").glob(f"v{KUBERNETES}.*-local/_definitions.json")
    definitions: dict[str, Any] = json.loads(path.read_text())["$defs"]
    for definition in definitions.values():
        if definition.get("properties"):
            definition.setdefault("additionalProperties", False)
    return definitions


# CustomResourceDefinitions that somebody has, checked as the API server does: structural schemas, whose unknown fields go.


@functools.cache
def _given_crds() -> Mapping[tuple[str, str], Document]:
    folder = os.environ.get("DEPLOY_CRDS")
    found: dict[tuple[str, str], Document] = {}
    for path in sorted(Path(folder).glob("*.yaml")) if folder else ():
        for crd in documents(path.read_text()):
            for version in crd["spec"]["versions"]:
                key = (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"])
                found[key] = version["schema"]["openAPIV3Schema"]
    return found


def _validate_structural(value: Any, schema: Document, where: str) -> None:
    if schema.get("x-kubernetes-int-or-string"):
        assert isinstance(value, (int, str)), f"{where}: expected a number or a text, got {value!r}"
        return
    kind = schema.get("type")
    if kind == "object":
        assert isinstance(value, dict), f"{where}: expected an object, got {value!r}"
        missing = [name for name in schema.get("required", ()) if name not in value]
        assert not missing, f"{where}: {missing} must be there"
        properties = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        for key, item in value.items():
            if where.count(".") == 0 and key == "metadata":
                continue
            inner = properties.get(key, extra if isinstance(extra, dict) else None)
            keeps = schema.get("x-kubernetes-preserve-unknown-fields") or extra is True or not (properties or extra)
            assert inner is not None or keeps, f"{where}.{key}: no such field"
            if inner is not None:
                _validate_structural(item, inner, f"{where}.{key}")
    elif kind == "array":
        assert isinstance(value, list), f"{where}: expected a list, got {value!r}"
        for at, item in enumerate(value):
            _validate_structural(item, schema["items"], f"{where}[{at}]")
    elif kind is not None:
        expected: dict[str, type | tuple[type, ...]] = {
            "string": str,
            "integer": int,
            "number": (int, float),
            "boolean": bool,
        }
        assert isinstance(value, expected[kind]), f"{where}: expected {kind}, got {value!r}"
        assert value in schema.get("enum", [value]), f"{where}: expected one of {schema.get('enum')}, got {value!r}"
