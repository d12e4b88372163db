"""The backend ``lightgbm``: serves ``<version>/model.txt``, as ``Booster.save_model`` writes it.

Missing values are NaN. The output is what ``Booster.predict`` gives: a number, a probability, or one for each class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton_lite.plugins.tabular.boosters import BoosterPredictor
from pytriton_lite.plugins.tabular.table import Place, Predictor, TableModel, not_installed

try:
    import lightgbm
except (ImportError, OSError) as error:  # a library of the system may be missing
    raise not_installed("lightgbm", "lightgbm", ImportError(str(error))) from None

BACKEND_SETTINGS: Mapping[str, str] = globals().get("BACKEND_SETTINGS", {})

MODEL_FILES = ("model.txt",)


def _read(place: Place) -> Predictor:
    # Given the text, not the path, it says what is wrong with it without a line on stdout.
    booster = lightgbm.Booster(model_str=place.path.read_text())

    def predict(matrix: Any) -> Any:
        return booster.predict(matrix)

    return BoosterPredictor(place.model, predict, width=booster.num_feature(), dtype="float64")


class TritonPythonModel(TableModel):
    """What the worker calls."""

    backend = "lightgbm"
    files = MODEL_FILES
    settings = BACKEND_SETTINGS
    read = staticmethod(_read)
