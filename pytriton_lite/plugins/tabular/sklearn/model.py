"""The backend ``sklearn``: serves ``<version>/model.skops``, and pickles where the operator allows code in them.

An estimator, or a pipeline, that was fitted. It takes one matrix of features; texts, where it begins with a vectoriser; or
columns by name, where it was fitted with a DataFrame and the configuration names them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.plugins.tabular.table import Column, Place, Predictor, TableModel, not_installed, unknown_name

try:
    import sklearn
    from sklearn.exceptions import InconsistentVersionWarning
except ImportError as error:
    raise not_installed("sklearn", "scikit-learn", error) from None

BACKEND_SETTINGS: Mapping[str, str] = globals().get("BACKEND_SETTINGS", {})

MODEL_FILES = ("model.skops", "model.joblib", "model.pkl", "model.pickle")
SAFE_FILES = ("*.skops",)
"""What is no code; ``pytriton-lite check`` reads it, too."""

_FEATURES = "features"
_TEXT = "text"
_METHODS = {
    "prediction": "predict",
    "probabilities": "predict_proba",
    "decision": "decision_function",
    "transformed": "transform",
}
"""Outputs, and the methods that give them."""

_COMPLETED = ("prediction", "probabilities")


class _Estimator(Predictor):
    def __init__(self, model: str, estimator: Any) -> None:
        self._model = model
        self._estimator = estimator
        self._width: int | None = getattr(estimator, "n_features_in_", None)
        self._names: list[str] = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
        self._by_name = False
        """Whether the configuration has the columns of the DataFrame that it was fitted with, and not one matrix."""

    def inputs(self) -> Sequence[Column]:
        if self._width is not None:
            return [Column.of(_FEATURES, np.zeros((1, self._width)))]
        return [Column(_TEXT, "TYPE_STRING", 1)]

    def outputs(self) -> Sequence[Column]:
        outputs = [name for name in _COMPLETED if hasattr(self._estimator, _METHODS[name])]
        if not outputs and hasattr(self._estimator, "transform"):
            outputs = ["transformed"]
        sample = np.zeros((1, self._width)) if self._width is not None else np.array([["a"]], object)
        try:
            found = self.predict({self.inputs()[0].name: sample}, outputs)
        except Exception as error:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"autofill failed for model '{self._model}': its outputs cannot be found by a row of zeros "
                f"({type(error).__name__}: {error}); give input and output in its configuration",
            ) from None
        return [Column.of(name, rows) for name, rows in found.items()]

    def check(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        known = [name for name, method in _METHODS.items() if hasattr(self._estimator, method)]
        for name in outputs:
            if name not in known:
                raise unknown_name(self._model, "output", name, known)
        self._by_name = bool(self._names) and set(inputs) == set(self._names)
        if not self._by_name and len(inputs) != 1:
            expected = f", or the columns {', '.join(self._names)}" if self._names else ""
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"model '{self._model}' takes one input{expected}, got {', '.join(inputs)}",
            )

    def predict(self, columns: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
        table = self._table(columns)
        with warnings.catch_warnings():
            # It was fitted with names, which one matrix has not.
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            return {name: _by_row(getattr(self._estimator, _METHODS[name])(table)) for name in wanted}

    def _table(self, columns: Mapping[str, Any]) -> Any:
        if self._by_name:
            import pandas as pd  # only a model that was fitted with it

            return pd.DataFrame({name: columns[name].reshape(-1) for name in self._names})
        (array,) = columns.values()
        # It does not say how many features it takes: a vectoriser, or a transformer of somebody's own, which has numbers.
        if self._width is None and array.dtype == object:
            return list(array.reshape(-1))
        return array


def _by_row(found: Any) -> Any:
    """*found* with a row for each that was asked.

    Encoders and vectorisers give sparse matrices, and classifiers of several targets a list with an array for each target.
    """
    if isinstance(found, list):
        return np.hstack(found)
    return found.toarray() if hasattr(found, "toarray") else found


def _read(place: Place) -> Predictor:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InconsistentVersionWarning)
        estimator = _skops(place) if place.path.match(SAFE_FILES[0]) else _pickle(place)
    for warning in caught:
        if isinstance(warning.message, InconsistentVersionWarning):
            pb_utils.Logger.log_warn(
                f"'{place.path.name}' of model '{place.model}' was written by scikit-learn "
                f"{warning.message.original_sklearn_version}, and is read by {sklearn.__version__}: it may predict otherwise"
            )
            break
    if not any(hasattr(estimator, method) for method in _METHODS.values()):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"'{place.path.name}' of model '{place.model}' is a {type(estimator).__name__}, expected an estimator with one of "
            f"{', '.join(_METHODS.values())}",
        )
    return _Estimator(place.model, estimator)


def _skops(place: Place) -> Any:
    try:
        from skops import io
        from skops.io.exceptions import UntrustedTypesFoundException
    except ImportError as error:
        raise not_installed("sklearn", "skops", error) from None
    trusted = [name for name in place.settings.get("trusted-types", "").split(":") if name]
    try:
        return io.load(place.path, trusted=trusted)
    except UntrustedTypesFoundException:
        found = [name for name in io.get_untrusted_types(file=place.path) if name not in trusted]
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"'{place.path.name}' of model '{place.model}' has types that skops does not know to be safe: {', '.join(found)}. "
            f"If they are: --backend-config=sklearn,trusted-types={':'.join([*trusted, *found])}",
        ) from None


def _pickle(place: Place) -> Any:
    if not place.allows("allow-pickle"):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"'{place.path.name}' of model '{place.model}' is a pickle: to load it is to run whatever code is in it. Write it "
            "anew with skops.io.dump, as model.skops, or allow it, if you know who has made it: "
            "--backend-config=sklearn,allow-pickle=true",
        )
    import joblib  # reads what pickle has written, too

    return joblib.load(place.path)


class TritonPythonModel(TableModel):
    """What the worker calls."""

    backend = "sklearn"
    files = MODEL_FILES
    settings = BACKEND_SETTINGS
    read = staticmethod(_read)
