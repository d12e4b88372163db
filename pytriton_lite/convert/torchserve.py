"""TorchServe archives (``.mar``): a zip of MAR-INF/MANIFEST.json, a handler and the files that it loads."""

from __future__ import annotations

import datetime
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pytriton_lite.convert.folder import (
    LARGEST_COUNT,
    Conversion,
    ConversionError,
    Tensor,
    missing_imports,
    safe_name,
)

MANIFEST = "MAR-INF/MANIFEST.json"

OWN_HANDLERS = ("image_classifier", "image_segmenter", "object_detector", "text_classifier")
"""Handlers that are part of TorchServe, and so of no archive."""

KNOWN: Mapping[str, frozenset[str]] = {
    "ts": frozenset({"context", "torch_handler", "utils"}),
    "ts.context": frozenset({"Context"}),
    "ts.torch_handler": frozenset({"base_handler"}),
    "ts.torch_handler.base_handler": frozenset({"BaseHandler"}),
    "ts.utils": frozenset({"util"}),
    "ts.utils.util": frozenset({"PredictionException", "list_classes_from_module", "load_label_mapping"}),
}
"""What runtimes/torchserve_model.py.template has of the package ``ts``."""

_MAX_BYTES = 64 << 30
_MAX_SETTINGS = 1 << 20


def convert_archive(path: Path, *, name: str = "") -> Conversion:
    """What becomes of the archive *path*, a ``.mar`` file or the directory of one. Raises ConversionError."""
    files = _files(path)
    manifest = _json(
        files.pop(MANIFEST, None), f"'{path}' has no {MANIFEST}; expected an archive of torch-model-archiver"
    )
    if not isinstance(manifest, dict) or not isinstance(manifest.get("model"), dict):
        raise ConversionError(f"{MANIFEST} of '{path}' has no object 'model'")
    model: dict[str, Any] = manifest["model"]
    if manifest.get("runtime", "python") not in ("python", "python3"):
        raise ConversionError(f"the runtime is '{manifest['runtime']}'; only Python handlers can be converted")
    handler = str(model.get("handler") or "")
    _check_handler(handler, files)
    settings = _settings(model.get("configFile"), files)
    conversion = Conversion(
        name=name or str(model.get("modelName") or path.resolve().stem),
        runtime="torchserve",
        inputs=[Tensor("data", "BYTES", (1,)), Tensor("content_type", "BYTES", (1,), is_optional=True)],
        outputs=[Tensor("result", "BYTES", (1,))],
        files={
            **{f"archive/{file}": content for file, content in files.items()},
            "manifest.json": json.dumps(manifest, indent=2).encode(),
        },
    )
    _keep_settings(conversion, settings)
    _take_settings(conversion, settings)
    _take_requirements(conversion, model.get("requirementsFile"), files)
    missing = missing_imports(files, "ts", KNOWN)
    if missing:
        conversion.remaining.append(
            "the handler imports parts of TorchServe that are not here: "
            + "; ".join(missing)
            + ". Take them out, or put torchserve into requirements.txt of this model: what is installed goes before "
            "what is here"
        )
    conversion.notes += [
        "A request to `/predictions/NAME` becomes one to `/v2/models/NAME/infer`, with the body as the element of the input "
        '`data`, or to `/v2/models/NAME/generate`, as in `{"data": "…"}`. With the input `content_type` of '
        "`application/json` the handler gets the parsed body, as from TorchServe.",
        "What the handler returns for a request is the element of the output `result`: texts and bytes as they are, "
        "all else as JSON.",
        "A status that the handler sets becomes an error of the protocol from 400 on; headers of responses are not sent.",
        "Metrics of `context.metrics` are on the metrics page as `ts_…`, without TorchServe's dimensions.",
    ]
    return conversion


def _files(path: Path) -> dict[str, bytes]:
    """Contents by name. Raises ConversionError."""
    try:
        if path.is_dir():
            found = [file for file in sorted(path.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
            return {file.relative_to(path).as_posix(): file.read_bytes() for file in found}
        with path.open("rb") as file:
            return _unpacked(file, path)
    except OSError as error:
        raise ConversionError(f"cannot read '{path}': {error.strerror or error}") from None


def _unpacked(file: BinaryIO, path: Path) -> dict[str, bytes]:
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
                _check_size(sum(entry.file_size for entry in entries), path)
                return {safe_name(entry.filename): archive.read(entry) for entry in entries}
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:  # --archive-format tgz
            members = [member for member in tar.getmembers() if member.isfile()]
            _check_size(sum(member.size for member in members), path)
            read = {safe_name(member.name): tar.extractfile(member) for member in members}
            return {name: part.read() for name, part in read.items() if part is not None}
    except ConversionError:
        raise
    except Exception as error:  # of damaged data each of the codecs says so in a way of its own: zlib.error, LZMAError
        raise ConversionError(f"'{path}' is neither a zip nor a tar archive that can be read: {error}") from None


def _check_size(size: int, path: Path) -> None:
    if size > _MAX_BYTES:
        raise ConversionError(f"'{path}' would be {size} bytes; unpack it, and name its directory")


def _json(content: bytes | None, missing: str) -> object:
    if content is None:
        raise ConversionError(missing)
    try:
        found: object = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{MANIFEST} is no JSON: {error}") from None
    return found


def _check_handler(handler: str, files: Mapping[str, bytes]) -> None:
    module = handler.partition(":")[0].removesuffix(".py").split("/")[-1]
    if not module:
        raise ConversionError(f"{MANIFEST} names no handler; expected model.handler")
    if f"{module}.py" in files or module == "base_handler":
        return
    if module in OWN_HANDLERS:
        raise ConversionError(
            f"the handler '{module}' is a part of TorchServe, which is not in the archive: its code cannot be taken "
            "over. Write a "
            "handler.py with preprocess, inference and postprocess of a class that derives from BaseHandler, archive it with "
            "--handler handler.py, and convert that"
        )
    raise ConversionError(f"the handler '{handler}' is not in the archive; expected the file {module}.py")


def _settings(config_file: object, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What model-config.yaml says. Raises ConversionError."""
    if not config_file or str(config_file) not in files:
        return {}
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConversionError(
            f"the archive has settings in {config_file}; to read them: pip install 'pytriton-lite[convert]'"
        ) from None
    try:
        found = yaml.safe_load(files[str(config_file)])
    except Exception as error:  # a value that is not of its tag: KeyError, IndexError, AttributeError
        raise ConversionError(f"{config_file} of the archive is no YAML: {error}") from None
    return found if isinstance(found, dict) else {}


def _keep_settings(conversion: Conversion, settings: Mapping[str, Any]) -> None:
    """Keep all of *settings* for ``context.model_yaml_config``. Raises ConversionError for what JSON has nothing for."""
    dates = []

    def as_text(value: object) -> str:
        if not isinstance(value, datetime.date):
            raise TypeError(f"a value is {type(value).__name__}")
        dates.append(value.isoformat())
        return dates[-1]

    kept = ""
    try:
        for piece in json.JSONEncoder(indent=2, default=as_text).iterencode(settings):
            kept += piece
            # A few lines of YAML whose aliases refer to each other may be more than any memory has.
            if len(kept) > _MAX_SETTINGS:
                raise ValueError(f"they are more than {_MAX_SETTINGS:,} characters")
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversionError(f"the settings of the archive cannot be kept as JSON: {error}") from None
    conversion.files = {**conversion.files, "model_yaml_config.json": kept.encode()}
    if dates:
        conversion.notes.append(f"Dates in `context.model_yaml_config` are texts, such as '{dates[0]}'.")


def _take_settings(conversion: Conversion, settings: Mapping[str, Any]) -> None:
    conversion.max_batch_size = _count(settings, "batchSize", 1)
    conversion.batch_delay_us = 1000 * _count(settings, "maxBatchDelay", 100)
    conversion.instances = max(1, _count(settings, "minWorkers", 1))
    parameters = {}
    if "responseTimeout" in settings:
        parameters["EXECUTION_TIMEOUT_SECONDS"] = str(_count(settings, "responseTimeout", 120))
    conversion.parameters = parameters
    if settings.get("maxWorkers", conversion.instances) != conversion.instances:
        conversion.notes.append(
            f"There {'is 1 instance' if conversion.instances == 1 else f'are {conversion.instances} instances'} from "
            "the start, as many as minWorkers says, or one; the server starts no more under load (instance_group)."
        )
    # A handler reads what it likes from `context.model_yaml_config`, which is all there.
    left = sorted(
        set(settings) & {"parallelType", "parallelLevel", "torchrun", "pippy", "deepspeed", "continuousBatching"}
    )
    if left:
        conversion.remaining.append(
            f"{', '.join(left)} of the settings would be TorchServe's to do, and nothing here does it"
        )
    for key in sorted(set(settings) & {"deviceType", "deviceIds"}):
        conversion.notes.append(
            f"`{key}` is not taken over: instances are on the CPU until instance_group says KIND_GPU."
        )


def _count(settings: Mapping[str, Any], key: str, default: int) -> int:
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_COUNT:
        raise ConversionError(
            f"{key} of the archive's settings: expected a whole number from 0 to {LARGEST_COUNT}, got {value!r}"
        )
    return value


def _take_requirements(conversion: Conversion, requirements: object, files: Mapping[str, bytes]) -> None:
    if requirements and str(requirements) in files:
        conversion.beside = {"requirements.txt": files[str(requirements)]}
        conversion.notes.append(
            "requirements.txt is taken over. Serve with --allow-requirements=true to have an environment built from "
            "it, and see that "
            "it names torch, if the handler needs it; TorchServe brought that along."
        )
    else:
        conversion.notes.append(
            "What the handler imports, torch for instance, must be installed where the server runs."
        )
