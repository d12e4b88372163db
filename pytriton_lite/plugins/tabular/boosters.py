"""What the boosters of XGBoost and LightGBM have in common: a matrix of features in, what ``predict`` gives out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pytriton_lite.plugins.tabular.table import Column, Predictor, unknown_name

FEATURES = "features"
PREDICTION = "prediction"


class BoosterPredictor(Predictor):
    """Calls *predict* with a matrix of *width* columns of *dtype*."""

    def __init__(self, model: str, predict: Callable[[Any], Any], *, width: int, dtype: Any) -> None:
        self._model = model
        self._predict = predict
        self._width = width
        self._dtype = np.dtype(dtype)

    def inputs(self) -> Sequence[Column]:
        return [Column.of(FEATURES, np.zeros((1, self._width), self._dtype))]

    def outputs(self) -> Sequence[Column]:
        return [Column.of(PREDICTION, self._predict(np.zeros((1, self._width), self._dtype)))]

    def check(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        for what, names, known in (("input", inputs, FEATURES), ("output", outputs, PREDICTION)):
            for name in names:
                if name != known:
                    raise unknown_name(self._model, what, name, [known])

    def predict(self, columns: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
        matrix = columns[FEATURES]
        if matrix.shape[1] != self._width:
            raise ValueError(f"model '{self._model}' takes {self._width} features, got {matrix.shape[1]}")
        return dict.fromkeys(wanted, self._predict(np.ascontiguousarray(matrix, self._dtype)))
