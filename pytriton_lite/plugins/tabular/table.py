"""What the backends of models of tables have in common: rows in, one or several columns out (docs/formats.md).

Imported by workers, where ``triton_python_backend_utils`` is. A backend says how a file becomes a `Predictor`; completing the
configuration, checking it, and putting together requests that come together is done here.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pytriton_lite.core.errors import ErrorCode, InferenceError

Config = dict[str, Any]
"""A model configuration in its JSON form."""

_MAX_BATCH_SIZE = 1024
"""Rows of a request, at most, where nobody says otherwise: models of tables are asked for many rows at a time. The setting
``default-max-batch-size`` is not looked at, which says 4 to all backends, as on Triton."""

_TYPES = {
    np.dtype(np.bool_): "TYPE_BOOL",
    **{np.dtype(f"i{size}"): f"TYPE_INT{8 * size}" for size in (1, 2, 4, 8)},
    **{np.dtype(f"u{size}"): f"TYPE_UINT{8 * size}" for size in (1, 2, 4, 8)},
    **{np.dtype(f"f{size}"): f"TYPE_FP{8 * size}" for size in (2, 4, 8)},
}


@dataclass(frozen=True)
class Column:
    """An input or output: its name, its type as config.pbtxt has it, and the size of a row of it."""

    name: str
    data_type: str
    width: int

    @classmethod
    def of(cls, name: str, rows: Any) -> Column:
        """As the array *rows*, of at least one row, has it."""
        rows = np.asarray(rows)
        data_type = _TYPES.get(rows.dtype, "TYPE_STRING")
        return cls(name, data_type, int(np.prod(rows.shape[1:])))


@dataclass(frozen=True)
class Place:
    """The file of a model that is to be opened, and what the operator says of the backend."""

    model: str
    path: Path
    settings: Mapping[str, str]

    def allows(self, setting: str) -> bool:
        """Whether ``--backend-config=<backend>,<setting>=true`` was given. Raises InferenceError for what is no truth."""
        text = self.settings.get(setting, "false").lower()
        if text not in ("true", "false", "1", "0"):
            raise InferenceError(
                ErrorCode.INVALID_ARG, f"--backend-config {setting} must be true or false, got '{text}'"
            )
        return text in ("true", "1")


class Predictor(ABC):
    """A model that was read from its file."""

    @abstractmethod
    def inputs(self) -> Sequence[Column]:
        """What it takes, where a configuration does not say it. Raises InferenceError where that cannot be known."""

    @abstractmethod
    def outputs(self) -> Sequence[Column]:
        """What it gives, likewise; it may be asked for less."""

    @abstractmethod
    def check(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Raises InferenceError for names of a configuration that mean nothing to it."""

    @abstractmethod
    def predict(self, columns: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
        """The rows of each output of *wanted*, for the rows of all inputs. What is raised fails the requests."""


class TableModel:
    """``TritonPythonModel`` of such a backend, which sets what is declared here."""

    backend: str
    files: Sequence[str]
    """Names that a model's file may have, the first one for messages."""
    settings: Mapping[str, str]
    read: Callable[[Place], Predictor]

    @classmethod
    def auto_complete_config(cls, completion: Any) -> Any:
        """Fill in inputs, outputs, max_batch_size and dynamic batching, where they are missing."""
        config: Config = completion.as_dict()
        if config["input"] and config["output"]:
            return completion
        predictor = cls._open(config)
        if not config["max_batch_size"]:
            completion.set_max_batch_size(_default_batch_size(cls.settings))
        if config["max_batch_size"] > 1:
            completion.set_dynamic_batching()
        for key, columns, add in (
            ("input", predictor.inputs, completion.add_input),
            ("output", predictor.outputs, completion.add_output),
        ):
            if not config[key]:
                for column in columns():
                    add({"name": column.name, "data_type": column.data_type, "dims": [column.width]})
        return completion

    def initialize(self, args: Mapping[str, str]) -> None:
        config: Config = json.loads(args["model_config"])
        self._model = config["name"]
        self._strings = {tensor["name"] for tensor in config["input"] if tensor["data_type"] == "TYPE_STRING"}
        self._outputs = {tensor["name"]: tensor for tensor in config["output"]}
        if config["max_batch_size"] == 0:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"model '{self._model}': backend '{self.backend}' serves rows, so max_batch_size has to be 1 or more",
            )
        self._predictor = self._open(config)
        self._predictor.check([tensor["name"] for tensor in config["input"]], list(self._outputs))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        try:
            return self._answer(requests)
        except Exception as error:
            if len(requests) > 1:  # one may be at fault
                return [response for request in requests for response in self.execute([request])]
            text = error.message if isinstance(error, InferenceError) else f"{type(error).__name__}: {error}"
            code = pb_utils.TritonError.INVALID_ARG if isinstance(error, (InferenceError, ValueError)) else None
            failure = pb_utils.TritonError(text) if code is None else pb_utils.TritonError(text, code)
            return [pb_utils.InferenceResponse(error=failure)]

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        wanted = [request.requested_output_names() for request in requests]
        names = [name for name in self._outputs if any(name in each for each in wanted)]
        rows = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        columns = {
            name: self._text(name, array) if name in self._strings else array
            for name in rows[0]
            for array in [np.concatenate([each[name] for each in rows]) if len(rows) > 1 else rows[0][name]]
        }
        count = len(next(iter(columns.values())))
        whole = {
            name: self._output(name, array, count) for name, array in self._predictor.predict(columns, names).items()
        }
        ends = np.cumsum([len(next(iter(each.values()))) for each in rows]).tolist()
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, whole[name][start:end]) for name in names if name in each]
            )
            for each, start, end in zip(wanted, [0, *ends], ends)
        ]

    def _text(self, name: str, array: Any) -> Any:
        """An array of str."""
        texts = np.empty(array.size, dtype=object)
        for number, data in enumerate(array.flat):
            try:
                texts[number] = data.decode()
            except UnicodeDecodeError:
                raise InferenceError(
                    ErrorCode.INVALID_ARG, f"input '{name}' of model '{self._model}': element {number} is not UTF-8"
                ) from None
        return texts.reshape(array.shape)

    def _output(self, name: str, array: Any, count: int) -> Any:
        array = np.asarray(array)
        data_type = self._outputs[name]["data_type"]
        if len(array) != count:
            raise InferenceError(
                ErrorCode.INTERNAL, f"output '{name}' of model '{self._model}' has {len(array)} rows for {count}"
            )
        array = array.reshape(count, -1)
        if data_type == "TYPE_STRING":
            return np.array([str(each).encode() for each in array.flat], dtype=object).reshape(array.shape)
        return np.ascontiguousarray(array, dtype=pb_utils.triton_string_to_numpy(data_type))

    @classmethod
    def _open(cls, config: Config) -> Predictor:
        place = Place(config["name"], cls._path(config), cls.settings)
        try:
            return cls.read(place)
        except InferenceError:
            raise
        except Exception as error:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"model '{place.model}': '{place.path.name}' cannot be read by backend '{cls.backend}': "
                f"{type(error).__name__}: {error}",
            ) from None

    @classmethod
    def _path(cls, config: Config) -> Path:
        folder = Path(pb_utils.get_model_dir())
        named: str = config["default_model_filename"]
        # A folder that is called 'iris.sklearn' has 'model.sklearn' for a default.
        if named and (folder / named).is_file():
            return folder / named
        found = [name for name in cls.files if (folder / name).is_file()]
        if len(found) == 1:
            return folder / found[0]
        expected = f"expected one of {', '.join(cls.files)} there, or default_model_filename to name it"
        what = f"{' and '.join(found)} are there" if found else f"no file of backend '{cls.backend}' is in '{folder}'"
        raise InferenceError(ErrorCode.NOT_FOUND, f"model '{config['name']}': {what}: {expected}")


def _default_batch_size(settings: Mapping[str, str]) -> int:
    text = settings.get("max-batch-size", str(_MAX_BATCH_SIZE))
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"--backend-config max-batch-size must be a number from 1 on, got '{text}'"
        )
    return int(text)


def unknown_name(model: str, what: str, name: str, known: Sequence[str]) -> InferenceError:
    """The error for an input or output that a configuration names and a model has not."""
    return InferenceError(
        ErrorCode.INVALID_ARG, f"model '{model}' has no {what} '{name}', expected {' or '.join(map(repr, known))}"
    )


def not_installed(backend: str, package: str, error: ImportError) -> InferenceError:
    """The error of a backend whose library cannot be imported."""
    return InferenceError(
        ErrorCode.UNAVAILABLE,
        f"backend '{backend}' cannot import {package} ({error}): pip install 'pytriton-lite[{backend}]'",
    )
