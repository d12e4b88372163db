"""Models of MLServer become models that serve without MLServer, and what could not be taken over is said."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite import cli
from pytriton_lite.convert import ConversionError, convert_settings, write
from pytriton_lite.testing import ModelUnderTest, Request
from tests.convert.archives import CUSTOM_MODEL, DECODED_MODEL, JOIN, SCALE, make_settings, tensor

Load = Callable[..., ModelUnderTest]


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models have modules of the same names; a real server has a process for each."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [*sys.modules]:
        if name == "models" or name.partition(".")[0] == "mlserver":
            monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def convert(tmp_path: Path, triton_model: Load) -> Callable[..., ModelUnderTest]:
    def convert_and_load(settings: dict[str, Any], files: dict[str, str | bytes]) -> ModelUnderTest:
        path = make_settings(tmp_path / "source", settings, files)
        written = write(convert_settings(path), tmp_path / "models", path.name)
        return triton_model(written[0].parent)

    return convert_and_load


SCALE_FILES: dict[str, str | bytes] = {"models.py": CUSTOM_MODEL, "factor.txt": "2\n"}


def test_a_model_of_ones_own_serves_without_mlserver(convert: Callable[..., ModelUnderTest]) -> None:
    response = convert(SCALE, SCALE_FILES).infer({"x": np.array([[1, 2], [3, 4]], np.float32)})
    assert response["scaled"].tolist() == [[20, 40], [60, 80]]
    assert response["rows"].tolist() == [[2], [2]]


def test_a_model_of_ones_own_may_be_in_a_file_called_model(convert: Callable[..., ModelUnderTest]) -> None:
    files: dict[str, str | bytes] = {"model.py": CUSTOM_MODEL, "factor.txt": "2\n"}
    response = convert({**SCALE, "implementation": "model.Scale"}, files).infer({"x": np.array([[1, 2]], np.float32)})
    assert response["scaled"].tolist() == [[20, 40]]


def test_files_of_a_model_keep_their_content_whatever_their_names_are(tmp_path: Path) -> None:
    names = ["model.py", "weights.json", "config.pbtxt", "CONVERTED.md"]
    settings = {"implementation": "mlserver_xgboost.XGBoostModel", "parameters": {"uri": "weights.json"}}
    path = make_settings(tmp_path / "source", settings, {name: f"the model's own {name}" for name in names})
    written = write(convert_settings(path), tmp_path / "models", path.name)
    folder = written[0].parent
    assert {file.name: file.read_text() for file in (folder / "1" / "source").iterdir()} == {
        name: f"the model's own {name}" for name in names
    }
    assert "class TritonPythonModel" in (folder / "1" / "model.py").read_text()


def test_a_batch_is_predicted_once_and_each_request_gets_its_rows(convert: Callable[..., ModelUnderTest]) -> None:
    model = convert({**SCALE, "max_batch_size": 8, "max_batch_time": 0.25}, SCALE_FILES)
    assert model.config["dynamic_batching"]["max_queue_delay_microseconds"] == 250_000
    first, second = model.execute(
        [Request({"x": np.array([[1, 1]], np.float32)}), Request({"x": np.array([[2, 2], [3, 3]], np.float32)})]
    )
    assert first.response["rows"].tolist() == [[3]]
    assert second.response["scaled"].tolist() == [[40, 40], [60, 60]]


def test_decoded_arguments_are_arrays_and_lists_of_texts(convert: Callable[..., ModelUnderTest]) -> None:
    texts = np.array([[b"a"], [b"b"]], dtype=object)
    response = convert(JOIN, {"models.py": DECODED_MODEL}).infer(
        {"texts": texts, "numbers": np.array([[1], [2]], np.int32)}
    )
    assert response["output-0"].tolist() == [[b"a=1"], [b"b=2"]]


def sklearn_files(target: str = "names") -> dict[str, str | bytes]:
    """A classifier of two columns, of names or of numbers, as joblib writes it."""
    pytest.importorskip("sklearn")
    import io

    import joblib
    from sklearn.linear_model import LinearRegression, LogisticRegression

    rows, labels = np.array([[0, 0], [0, 1], [5, 5], [6, 5]]), np.array([0, 0, 1, 1])
    if target == "regression":
        fitted = LinearRegression().fit(rows, rows.sum(axis=1))
    else:
        fitted = LogisticRegression().fit(rows, np.array(["low", "high"])[labels] if target == "names" else labels)
    written = io.BytesIO()
    joblib.dump(fitted, written)
    return {"model.joblib": written.getvalue()}


SKLEARN = {"name": "sums", "implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./model.joblib"}}


@pytest.mark.parametrize(
    ("target", "expected"), [("names", [[b"low"], [b"high"]]), ("numbers", [[0], [1]]), ("regression", [[1], [12]])]
)
def test_an_estimator_says_itself_what_it_takes_and_gives(
    convert: Callable[..., ModelUnderTest], target: str, expected: list[list[object]]
) -> None:
    model = convert(SKLEARN, sklearn_files(target))
    response = model.infer({"input-0": np.array([[0, 1], [6, 6]], np.float32)})
    found = response["predict"].tolist()
    assert [[round(value) if isinstance(value, float) else value for value in row] for row in found] == expected
    if target != "regression":
        assert response["predict_proba"].shape == (2, 2)


def test_an_estimator_batches_and_takes_the_names_of_the_metadata(convert: Callable[..., ModelUnderTest]) -> None:
    settings = {**SKLEARN, "max_batch_size": 16, "max_batch_time": 0.01, "inputs": [tensor("rows", "FP64", -1, 2)]}
    model = convert(settings, sklearn_files())
    first, second = model.execute(
        [
            Request({"rows": np.array([[0.0, 0]])}, requested_outputs=["predict"]),
            Request({"rows": np.array([[6.0, 6]])}),
        ]
    )
    assert first.response["predict"].tolist() == [[b"low"]]
    assert second.response["predict_proba"].shape == (1, 2)


def test_a_converted_repository_serves_and_the_check_has_nothing_to_say(
    tmp_path: Path, triton_server: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    in_model_py = {**JOIN, "name": "join_too", "implementation": "model.Join"}
    for settings, files in (
        (SCALE, SCALE_FILES),
        (JOIN, {"models.py": DECODED_MODEL}),
        (in_model_py, {"model.py": DECODED_MODEL}),
    ):
        folder = tmp_path / str(settings["name"])
        make_settings(folder, settings, files)
        assert cli.main(["convert", str(folder), str(models)]) == 0
    assert "Must be" not in capsys.readouterr().err
    assert cli.main(["check", "--warnings-as-errors", str(models)]) == 0
    log = triton_server(models).log
    assert all(f"successfully loaded '{name}'" in log for name in ("scale", "join", "join_too"))


def test_what_a_person_has_to_do_is_said_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "from mlserver import MLModel, register\nfrom mlserver.codecs import PandasCodec, NumpyCodec\n"
        "class M(MLModel):\n    async def predict_stream(self, payloads): ...\n"
    )
    path = make_settings(tmp_path / "source", {"name": "m", "implementation": "models.M"}, {"models.py": code})
    assert cli.main(["convert", str(path), str(tmp_path / "models")]) == 2
    shown = capsys.readouterr().out
    for expected in (
        "models.py:1: from mlserver import register; models.py:2: from mlserver.codecs import PandasCodec.",
        "to do: predict_stream is not called",
        "to do: model-settings.json has no inputs",
        "to do: model-settings.json has no outputs",
    ):
        assert expected in shown
    assert "NumpyCodec" not in shown


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "implementation: expected the name of a class"),
        ({"implementation": "mlserver_mlflow.MLflowRuntime"}, "no runtime that can be converted"),
        ({**SKLEARN, "parameters": {"uri": "s3://bucket/model"}}, "is on another host"),
        (
            {**SKLEARN, "parameters": {"uri": "/mnt/models/model.joblib"}},
            "is an absolute path; copy it beside the file",
        ),
        ({**SKLEARN, "parameters": {"uri": "gone.joblib"}}, "expected gone.joblib"),
        ({**SKLEARN, "parameters": {}}, "expected model.joblib or model.pickle or model.pkl"),
        ({**SCALE, "max_batch_size": "8"}, "max_batch_size: expected a number"),
        ({**SCALE, "max_batch_size": 2.5}, "max_batch_size: expected a whole number, got 2.5"),
        ({**SCALE, "max_batch_size": 1 << 31}, "max_batch_size: expected a number from 0 to 2147483647"),
        ({**SCALE, "max_batch_time": math.inf}, "max_batch_time: expected a number from 0 to 2147483647, got inf"),
        ({**SCALE, "parallel_workers": math.nan}, "parallel_workers: expected a number from 0 to 2147483647, got nan"),
        (
            {**SCALE, "inputs": [{"name": "x", "datatype": "FLOAT", "shape": [1]}]},
            r"inputs\[0\].datatype: expected one of",
        ),
        (
            {**SCALE, "inputs": [{"name": "x", "datatype": ["FP32"], "shape": [1]}]},
            r"inputs\[0\].datatype: expected one of .*, got \['FP32'\]",
        ),
        (
            {**SCALE, "inputs": [{"name": "x", "datatype": "FP32", "shape": [0]}]},
            r"inputs\[0\].shape: expected a list of sizes",
        ),
        ({**SCALE, "outputs": ["x"]}, r"outputs\[0\]: expected an object with a name"),
        ({**SCALE, "outputs": {"x": 1}}, "outputs: expected a list"),
    ],
)
def test_what_cannot_be_converted_is_told(tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    path = make_settings(tmp_path / "source", settings, {"models.py": "x = 1\n"})
    with pytest.raises(ConversionError, match=expected):
        convert_settings(path)


def test_a_name_that_no_file_can_have_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**SCALE, "inputs": [{"name": "\ud83d", "datatype": "FP32", "shape": [1]}]}
    path = make_settings(tmp_path / "source", settings, {"models.py": "x = 1\n"})
    assert cli.main(["convert", str(path), str(tmp_path / "models")]) == 1
    assert "one half of a surrogate pair" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(("text", "expected"), [("{", "is no JSON"), ("[]", "expected a JSON object")])
def test_a_file_of_settings_that_is_none_is_told(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "model-settings.json"
    path.write_text(text)
    with pytest.raises(ConversionError, match=expected):
        convert_settings(path)


@pytest.mark.parametrize(("size", "expected"), [(16.0, 16), (None, 0)])
def test_a_size_of_batches_is_a_whole_number_in_any_spelling(tmp_path: Path, size: object, expected: int) -> None:
    path = make_settings(tmp_path / "source", {**SCALE, "max_batch_size": size}, SCALE_FILES)
    assert f"max_batch_size: {expected}\n" in convert_settings(path).config()


def test_a_model_without_a_name_is_called_like_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_settings(tmp_path / "my-model", {**SCALE, "name": None}, SCALE_FILES)
    monkeypatch.chdir(tmp_path / "my-model")
    assert convert_settings(Path("model-settings.json")).name == "my-model"


def boosted_file(package: str) -> tuple[str, bytes]:
    """The name and content of a classifier of two columns, high where their sum is, as *package* writes it."""
    rows = np.random.default_rng(1).random((200, 2), dtype=np.float32)
    high = (rows.sum(axis=1) > 1).astype(int)
    if package == "lightgbm":
        lightgbm = pytest.importorskip("lightgbm")
        booster = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(rows, high), 20)
        return "model.bst", booster.model_to_string().encode()
    xgboost = pytest.importorskip("xgboost")
    fitted = xgboost.XGBClassifier(n_estimators=20).fit(rows, high)
    return "model.json", bytes(fitted.get_booster().save_raw("json"))


@pytest.mark.parametrize(
    ("package", "implementation"),
    [("lightgbm", "mlserver_lightgbm.LightGBMModel"), ("xgboost", "mlserver_xgboost.XGBoostModel")],
)
def test_boosted_trees_say_themselves_what_they_take(
    convert: Callable[..., ModelUnderTest], package: str, implementation: str
) -> None:
    name, content = boosted_file(package)
    model = convert(
        {"name": "trees", "implementation": implementation, "parameters": {"uri": f"./{name}"}}, {name: content}
    )
    assert model.config["input"][0]["dims"] == [-1, 2]
    response = model.infer({"input-0": np.array([[0.1, 0.1], [0.9, 0.9]], np.float32)})
    low, high = response["predict"][:, 0]
    assert (low < 0.5, high > 0.5) == (True, True)
