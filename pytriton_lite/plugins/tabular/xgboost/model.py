"""The backend ``xgboost``: serves ``<version>/model.json`` or ``model.ubj``, as ``Booster.save_model`` writes them.

Missing values are NaN. The output is what ``Booster.predict`` gives: a number, a probability, or one for each class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton_lite.plugins.tabular.boosters import BoosterPredictor
from pytriton_lite.plugins.tabular.table import Place, Predictor, TableModel, not_installed

try:
    import xgboost
except ImportError as error:
    raise not_installed("xgboost", "xgboost", error) from None

BACKEND_SETTINGS: Mapping[str, str] = globals().get("BACKEND_SETTINGS", {})

MODEL_FILES = ("model.json", "model.ubj")


def _read(place: Place) -> Predictor:
    booster = xgboost.Booster(model_file=str(place.path))
    _tell_version(place)

    is_linear = json.loads(booster.save_config())["learner"]["gradient_booster"]["name"] == "gblinear"

    def predict(matrix: Any) -> Any:
        if is_linear:  # XGBoost predicts in place with trees alone
            return booster.predict(xgboost.DMatrix(matrix), validate_features=False)
        return booster.inplace_predict(matrix, validate_features=False)

    return BoosterPredictor(place.model, predict, width=booster.num_features(), dtype="float32")


def _tell_version(place: Place) -> None:
    """Say so in the log where another version of XGBoost has written the file. Of JSON alone it can be read off."""
    written = _version_of(place.path)
    if written and written.split(".")[0] != xgboost.__version__.split(".")[0]:
        pb_utils.Logger.log_warn(
            f"'{place.path.name}' of model '{place.model}' was written by XGBoost {written}, and is read by "
            f"{xgboost.__version__}"
        )


def _version_of(path: Path) -> str:
    if path.suffix != ".json":
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 200))
        found = re.search(rb'"version":\s*\[(\d+),\s*(\d+),\s*(\d+)\]', file.read())
    return b".".join(found.groups()).decode() if found else ""


class TritonPythonModel(TableModel):
    """What the worker calls."""

    backend = "xgboost"
    files = MODEL_FILES
    settings = BACKEND_SETTINGS
    read = staticmethod(_read)
