"""Models of MLServer: a model-settings.json, and the files that it names."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytriton_lite.convert.folder import LARGEST_COUNT, Conversion, ConversionError, Tensor, missing_imports

SETTINGS = "model-settings.json"

_FOLDER = "source"
"""Where the model's own files go in the version's directory: beside ours they could have the same names, model.py first."""

ESTIMATORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mlserver_sklearn.SKLearnModel": ("scikit-learn joblib", ("model.joblib", "model.pickle", "model.pkl")),
    "mlserver_xgboost.XGBoostModel": ("xgboost", ("model.bst", "model.json", "model.ubj")),
    "mlserver_lightgbm.LightGBMModel": ("lightgbm", ("model.bst",)),
}
"""Runtimes that a model.py can take the place of: the packages they need, and the files they look for without a name."""

KNOWN: Mapping[str, frozenset[str]] = {
    "mlserver": frozenset(
        {"MLModel", "ModelSettings", "types", "codecs", "errors", "logging", "utils", "model", "settings"}
    ),
    "mlserver.model": frozenset({"MLModel"}),
    "mlserver.settings": frozenset({"ModelSettings", "ModelParameters"}),
    "mlserver.types": frozenset(
        {"InferenceRequest", "InferenceResponse", "RequestInput", "RequestOutput", "ResponseOutput", "Parameters"}
    ),
    "mlserver.codecs": frozenset(
        {"NumpyCodec", "NumpyRequestCodec", "StringCodec", "StringRequestCodec", "decode_args"}
    ),
    "mlserver.errors": frozenset({"MLServerError", "InferenceError", "ModelNotFound"}),
    "mlserver.logging": frozenset({"logger"}),
    "mlserver.utils": frozenset({"get_model_uri", "generate_uuid"}),
}
"""What runtimes/mlserver_model.py.template has of the package ``mlserver``."""

_SKIPPED = {"__pycache__", ".git", "settings.json", SETTINGS}
_DATATYPES = (
    "BOOL", "BYTES", "FP16", "FP32", "FP64", "INT16", "INT32", "INT64", "INT8", "UINT16", "UINT32", "UINT64", "UINT8",
)  # fmt: skip


def convert_settings(path: Path, *, name: str = "") -> Conversion:
    """What becomes of the model in *path*, a model-settings.json or the directory in which it lies. Raises ConversionError."""
    file = path / SETTINGS if path.is_dir() else path
    settings = _read(file)
    implementation = settings.get("implementation")
    if not isinstance(implementation, str) or "." not in implementation:
        raise ConversionError(
            f"'{file}': implementation: expected the name of a class in a module, got {implementation!r}"
        )
    files = _files(file.parent)
    conversion = Conversion(
        name=name or str(settings.get("name") or file.parent.resolve().name),
        runtime="mlserver_estimator" if implementation in ESTIMATORS else "mlserver",
        max_batch_size=_count(settings, "max_batch_size", file),
        batch_delay_us=int(_number(settings, "max_batch_time", file) * 1_000_000),
        files={
            **{f"{_FOLDER}/{path}": content for path, content in files.items()},
            SETTINGS: json.dumps(settings, indent=2).encode(),
        },
    )
    if conversion.max_batch_size <= 1:
        conversion.max_batch_size = 0
    has_batches = conversion.max_batch_size > 0
    conversion.inputs = _tensors(settings, "inputs", file, has_batches=has_batches)
    conversion.outputs = _tensors(settings, "outputs", file, has_batches=has_batches)
    if implementation in ESTIMATORS:
        _take_estimator(conversion, implementation, settings, file, files)
    else:
        _take_custom(conversion, implementation, files)
    conversion.instances = max(1, _count(settings, "parallel_workers", file))
    conversion.notes.append(
        "Inputs are those of config.pbtxt: another name, data type or shape is refused, where MLServer would have let "
        "the model see it."
    )
    return conversion


def _read(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConversionError(f"cannot read '{file}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"'{file}' is no JSON: {error}") from None
    if not isinstance(settings, dict):
        raise ConversionError(f"'{file}': expected a JSON object")
    return settings


def _number(settings: Mapping[str, Any], key: str, file: Path) -> float:
    value = settings.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_COUNT:
        raise ConversionError(f"'{file}': {key}: expected a number from 0 to {LARGEST_COUNT}, got {value!r}")
    return value


def _count(settings: Mapping[str, Any], key: str, file: Path) -> int:
    value = _number(settings, key, file)
    if value != int(value):
        raise ConversionError(f"'{file}': {key}: expected a whole number, got {value!r}")
    return int(value)


def _files(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not _SKIPPED & set(relative.parts):
            try:
                found[relative.as_posix()] = path.read_bytes()
            except OSError as error:
                raise ConversionError(f"cannot read '{path}': {error.strerror}") from None
    return found


def _tensors(settings: Mapping[str, Any], key: str, file: Path, *, has_batches: bool) -> list[Tensor]:
    """The tensors of the metadata in *settings*; with batches without their first dimension, which is that of the batch."""
    entries = settings.get(key) or []
    if not isinstance(entries, list):
        raise ConversionError(f"'{file}': {key}: expected a list, got {entries!r}")
    tensors = []
    for index, entry in enumerate(entries):
        place = f"'{file}': {key}[{index}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise ConversionError(f"{place}: expected an object with a name, got {entry!r}")
        if entry.get("datatype") not in _DATATYPES:
            raise ConversionError(
                f"{place}.datatype: expected one of {', '.join(_DATATYPES)}, got {entry.get('datatype')!r}"
            )
        shape = entry.get("shape")
        if not isinstance(shape, list) or not all(type(size) is int and (size == -1 or size > 0) for size in shape):
            raise ConversionError(f"{place}.shape: expected a list of sizes, -1 for any, got {shape!r}")
        dims = shape[1:] if has_batches else shape
        tensors.append(Tensor(entry["name"], entry["datatype"], tuple(dims) or (1,)))
    return tensors


def _take_estimator(
    conversion: Conversion, implementation: str, settings: Mapping[str, Any], file: Path, files: Mapping[str, bytes]
) -> None:
    packages, usual = ESTIMATORS[implementation]
    parameters = settings.get("parameters")
    uri = str(parameters.get("uri") or "") if isinstance(parameters, dict) else ""
    if "://" in uri or Path(uri).is_absolute():
        where = "on another host" if "://" in uri else "an absolute path"
        raise ConversionError(
            f"'{file}': parameters.uri '{uri}' is {where}; copy it beside the file, and name it as it is called there"
        )
    names = [uri] if uri and uri not in (".", "./") else list(usual)
    there = [name for name in names if Path(name).as_posix() in files]
    if not there:
        raise ConversionError(f"'{file}': the model's file is not beside it; expected {' or '.join(names)}")
    conversion.files = {**conversion.files, "weights.json": json.dumps(Path(there[0]).as_posix()).encode()}
    conversion.notes.append(f"Must be installed where the server runs: {packages}.")
    if not conversion.inputs:
        conversion.notes.append(
            "model-settings.json has no inputs, so the model is asked when it is loaded: the input is `input-0`, FP32, "
            "with as many "
            "columns as it was trained with. Another name or type goes into config.pbtxt."
        )
    conversion.notes.append(
        "A request that names no outputs gets all that the model has (`predict`, `predict_proba`), where MLServer answers with "
        "`predict` alone."
    )


def _take_custom(conversion: Conversion, implementation: str, files: Mapping[str, bytes]) -> None:
    module = implementation.rpartition(".")[0]
    if f"{module.replace('.', '/')}.py" not in files:
        known = ", ".join(ESTIMATORS)
        raise ConversionError(
            f"the implementation '{implementation}' is not beside model-settings.json, and no runtime that can be "
            f"converted ({known}). "
            "Put its module there, or write a model.py that loads the model: pytriton-lite new"
        )
    missing = missing_imports(files, "mlserver", KNOWN)
    if missing:
        conversion.remaining.append(
            "the model imports parts of MLServer that are not here: "
            + "; ".join(missing)
            + ". Take them out, or install mlserver where the server runs: what is installed goes before what is here"
        )
    if any("predict_stream" in _functions(content) for path, content in files.items() if path.endswith(".py")):
        conversion.remaining.append(
            "predict_stream is not called: a model that answers in streams becomes a decoupled one, pytriton-lite new "
            "--kind=decoupled"
        )
    for key, tensors in (("inputs", conversion.inputs), ("outputs", conversion.outputs)):
        if not tensors:
            conversion.remaining.append(
                f"model-settings.json has no {key}: write them into config.pbtxt, or into model-settings.json and convert again"
            )
    conversion.notes += [
        "What the model imports must be installed where the server runs; mlserver need not be.",
        "`load` is awaited in an event loop of its own, which is gone when `predict` is called: sessions of clients "
        "belong into predict.",
    ]


def _functions(content: bytes) -> set[str]:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
