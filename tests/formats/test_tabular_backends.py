"""The backends ``sklearn``, ``xgboost`` and ``lightgbm``: models in this process, and a real server. See `make docs`."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.testing import ModelUnderTest, Request
from tests.harness import Reply, RunningServer, tensor, write_model

sklearn = pytest.importorskip("sklearn")
skops = pytest.importorskip("skops.io")
joblib = pytest.importorskip("joblib")
xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")

from sklearn.decomposition import PCA  # noqa: E402  # after the check that it is there
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer  # noqa: E402
from sklearn.kernel_ridge import KernelRidge  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegression  # noqa: E402
from sklearn.multioutput import MultiOutputClassifier  # noqa: E402
from sklearn.pipeline import Pipeline, make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.random((60, 4))
Y = X @ np.array([[1.0], [2.0], [3.0], [4.0]])[:, 0]
LABELS = np.where(Y.mean() < Y, 1, 0)
NAMES = np.where(LABELS, "high", "low")

CLASSIFIER = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS)
NAMED = LogisticRegression().fit(X, NAMES)
REGRESSOR = KernelRidge(kernel="rbf").fit(X, Y)
TEXTS = make_pipeline(CountVectorizer(), LogisticRegression()).fit(["good day", "bad day", "good", "bad"], [1, 0, 1, 0])
ENCODER = OneHotEncoder(handle_unknown="ignore").fit(X.round())
VECTORISER = TfidfVectorizer().fit(["good day", "bad day"])
BOOSTER = xgboost.train({"objective": "multi:softprob", "num_class": 3}, xgboost.DMatrix(X, LABELS + (Y > 6)), 4)
TREES = lightgbm.train({"verbose": -1, "min_data_in_leaf": 2}, lightgbm.Dataset(X, Y), 5)


def unsafe(array: Any) -> Any:
    return array


def write(repository: Path, name: str, backend: str, config: str = "") -> Path:
    """The folder of the version, for the file."""
    return write_model(repository, name, config=f'backend: "{backend}"\n{config}') / "1"


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., ModelUnderTest]:
    """A model with the file that *save* writes."""

    def load(backend: str, file: str, save: Callable[[Path], object], config: str = "") -> ModelUnderTest:
        save(write(tmp_path, "m", backend, config) / file)
        return ModelUnderTest(tmp_path / "m")

    return load


def skops_of(estimator: Any) -> Callable[[Path], object]:
    return lambda path: skops.dump(estimator, path)


def io(model: ModelUnderTest) -> list[tuple[str, str, list[str]]]:
    tensors = (*model.config["input"], *model.config["output"])
    return [(each["name"], each["data_type"].removeprefix("TYPE_"), each["dims"]) for each in tensors]


FEATURES = ("features", "FP64", [4])
PROBABILITIES = ("probabilities", "FP64", [2])


@pytest.mark.parametrize(
    ("estimator", "tensors"),
    [
        (CLASSIFIER, [FEATURES, ("prediction", "INT64", [1]), PROBABILITIES]),
        (NAMED, [FEATURES, ("prediction", "STRING", [1]), PROBABILITIES]),
        (REGRESSOR, [FEATURES, ("prediction", "FP64", [1])]),
        (LinearRegression().fit(X, X), [FEATURES, ("prediction", "FP64", [4])]),
        (TEXTS, [("text", "STRING", [1]), ("prediction", "INT64", [1]), PROBABILITIES]),
        (PCA(2).fit(X), [FEATURES, ("transformed", "FP64", [2])]),
        (ENCODER, [FEATURES, ("transformed", "FP64", [8])]),
        (VECTORISER, [("text", "STRING", [1]), ("transformed", "FP64", [3])]),
    ],
    ids=[
        "classifier",
        "named classes",
        "regressor",
        "several targets",
        "texts",
        "transformer",
        "encoder",
        "vectoriser",
    ],
)
def test_a_configuration_of_one_line_is_completed_from_the_file(load: Any, estimator: Any, tensors: Any) -> None:
    with load("sklearn", "model.skops", skops_of(estimator)) as model:
        assert io(model) == tensors
        assert model.config["max_batch_size"] == 1024
        assert "dynamic_batching" in model.config
        texts = ["a good one", "bad"] if tensors[0][0] == "text" else None
        rows = X.round() if texts is None else np.array([[text.encode()] for text in texts], object)
        name, method = ("transformed", "transform") if hasattr(estimator, "transform") else ("prediction", "predict")
        expected = getattr(estimator, method)(rows if texts is None else texts)
        if estimator in (ENCODER, VECTORISER):
            expected = expected.toarray()
        if estimator is NAMED:
            expected = np.array([each.encode() for each in expected], object)
        found, expected = model.infer({tensors[0][0]: rows})[name], np.reshape(expected, (len(rows), -1))
        assert np.allclose(found, expected) if expected.dtype.kind == "f" else found.tolist() == expected.tolist()


def test_probabilities_are_those_of_the_estimator(load: Any) -> None:
    with load("sklearn", "model.skops", skops_of(CLASSIFIER)) as model:
        assert np.array_equal(model.infer({"features": X})["probabilities"], CLASSIFIER.predict_proba(X))


def test_probabilities_of_several_targets_stay_with_their_rows(load: Any) -> None:
    targets = MultiOutputClassifier(LogisticRegression()).fit(X, np.stack([LABELS, Y > 6], axis=1))
    with load("sklearn", "model.skops", skops_of(targets)) as model:
        assert io(model) == [FEATURES, ("prediction", "INT64", [2]), ("probabilities", "FP64", [4])]
        # As many rows as targets, in one request and in two that come together.
        first, second = (
            outcome.response for outcome in model.execute([Request({"features": X[at : at + 1]}) for at in (0, 1)])
        )
        found = model.infer({"features": X[:2]})["probabilities"]
    expected = np.hstack(targets.predict_proba(X[:2]))
    assert np.allclose(found, expected)
    assert np.allclose(np.concatenate([first["probabilities"], second["probabilities"]]), expected)


def test_no_configuration_is_needed_where_the_name_says_the_backend(tmp_path: Path) -> None:
    (tmp_path / "m.sklearn" / "1").mkdir(parents=True)
    skops.dump(CLASSIFIER, tmp_path / "m.sklearn" / "1" / "model.skops")
    with ModelUnderTest(tmp_path / "m.sklearn") as model:
        assert model.infer({"features": X})["prediction"][:, 0].tolist() == CLASSIFIER.predict(X).tolist()


def test_what_a_configuration_says_goes_before_what_would_be_completed(load: Any) -> None:
    config = """max_batch_size: 2
        input { name: "x" data_type: TYPE_FP32 dims: 4 }
        output { name: "decision" data_type: TYPE_FP32 dims: 1 }"""
    with load("sklearn", "model.skops", skops_of(CLASSIFIER), config) as model:
        found = model.infer({"x": X[:2].astype(np.float32)})["decision"]
        assert np.allclose(found[:, 0], CLASSIFIER.decision_function(X[:2]), atol=1e-5)


def test_a_pipeline_that_does_not_say_how_many_features_it_takes_is_given_a_matrix(load: Any) -> None:
    estimator = Pipeline([("scale", "passthrough"), ("classify", LogisticRegression())]).fit(X, LABELS)
    assert not hasattr(estimator, "n_features_in_")
    config = """max_batch_size: 64
        input { name: "features" data_type: TYPE_FP64 dims: 4 } output { name: "prediction" data_type: TYPE_INT64 dims: 1 }"""
    with load("sklearn", "model.skops", skops_of(estimator), config) as model:
        assert model.infer({"features": X})["prediction"][:, 0].tolist() == estimator.predict(X).tolist()


@pytest.mark.parametrize("file", ["model.json", "model.ubj"])
def test_an_xgboost_booster_predicts_as_in_its_own_process(load: Any, file: str) -> None:
    with load("xgboost", file, BOOSTER.save_model) as model:
        assert io(model) == [("features", "FP32", [4]), ("prediction", "FP32", [3])]
        rows = X.astype(np.float32)
        rows[0, 1] = np.nan
        assert np.allclose(model.infer({"features": rows})["prediction"], BOOSTER.inplace_predict(rows))


def test_a_linear_xgboost_booster_predicts_as_in_its_own_process(load: Any) -> None:
    booster = xgboost.train({"booster": "gblinear", "updater": "coord_descent"}, xgboost.DMatrix(X, Y), 4)
    with load("xgboost", "model.json", booster.save_model) as model:
        rows = X.astype(np.float32)
        found = model.infer({"features": rows})["prediction"]
        assert np.allclose(found[:, 0], booster.predict(xgboost.DMatrix(rows)))


def test_a_lightgbm_booster_predicts_as_in_its_own_process(load: Any) -> None:
    with load("lightgbm", "model.txt", TREES.save_model) as model:
        assert io(model) == [FEATURES, ("prediction", "FP64", [1])]
        rows = X.copy()
        rows[0, 1] = np.nan
        assert np.allclose(model.infer({"features": rows})["prediction"][:, 0], TREES.predict(rows))


def test_requests_that_come_together_get_their_own_rows_or_their_own_error(load: Any) -> None:
    def broken(array: Any) -> Any:
        if np.isnan(array).any():
            raise ValueError("not a number")
        return array

    with load("sklearn", "model.skops", skops_of(REGRESSOR)) as model:
        model.instance._predictor._estimator = make_pipeline(FunctionTransformer(broken), REGRESSOR).fit(X, Y)
        parts = [X[:1], X[1:4], np.full((2, 4), np.nan), X[4:]]
        outcomes = model.execute([Request({"features": part}) for part in parts])
        for part, outcome in zip(parts, outcomes):
            if np.isnan(part).any():
                assert outcome.response.error is not None
                assert "ValueError: not a number" in outcome.response.error.message()
            else:
                assert np.allclose(outcome.response["prediction"][:, 0], REGRESSOR.predict(part))


def test_a_pickle_is_refused_and_says_what_to_do(load: Any) -> None:
    with pytest.raises(InferenceError) as refused:
        load("sklearn", "model.joblib", lambda path: joblib.dump(CLASSIFIER, path))
    assert refused.value.message == (
        "'model.joblib' of model 'm' is a pickle: to load it is to run whatever code is in it. Write it anew with "
        "skops.io.dump, as model.skops, or allow it, if you know who has made it: --backend-config=sklearn,allow-pickle=true"
    )


WRONG = """max_batch_size: 2
    input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "score" data_type: TYPE_FP32 dims: 1 }"""


@pytest.mark.parametrize(
    ("backend", "file", "save", "config", "text"),
    [
        ("sklearn", "model.skops", skops_of(FunctionTransformer(unsafe).fit(X)), "", "does not know to be safe: "),
        ("sklearn", "else.skops", skops_of(CLASSIFIER), "", "no file of backend 'sklearn' is in '"),
        (
            "sklearn",
            "model.skops",
            skops_of(CLASSIFIER),
            WRONG,
            "model 'm' has no output 'score', expected 'prediction' or",
        ),
        ("sklearn", "model.skops", skops_of(LABELS), "", "is a ndarray, expected an estimator with one of predict"),
        (
            "xgboost",
            "model.json",
            lambda path: path.write_text("{"),
            "",
            "cannot be read by backend 'xgboost': XGBoostError",
        ),
        ("lightgbm", "model.txt", lambda path: path.write_text("no"), "", "read by backend 'lightgbm': LightGBMError"),
        ("xgboost", "model.json", BOOSTER.save_model, WRONG, "model 'm' has no input 'x', expected 'features'"),
    ],
    ids=["untrusted", "missing", "output", "no estimator", "xgboost", "lightgbm", "input"],
)
def test_files_that_cannot_be_served_are_refused(
    load: Any, backend: str, file: str, save: Any, config: str, text: str
) -> None:
    with pytest.raises(InferenceError) as refused:
        load(backend, file, save, config)
    assert text in refused.value.message


def test_of_two_files_one_has_to_be_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "m", "sklearn")
    skops.dump(CLASSIFIER, folder / "model.skops")
    joblib.dump(CLASSIFIER, folder / "model.joblib")
    with pytest.raises(InferenceError, match=r"model\.skops and model\.joblib are there: expected one of model\.skops"):
        ModelUnderTest(tmp_path / "m")
    write(tmp_path, "m", "sklearn", 'default_model_filename: "model.skops"')
    with ModelUnderTest(tmp_path / "m") as model:
        assert model.infer({"features": X[:1]})["prediction"].shape == (1, 1)


class Marked:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


def test_nothing_of_a_pickle_runs_that_is_refused(load: Any, tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match="is a pickle"):
        load("sklearn", "model.pkl", lambda path: path.write_bytes(pickle.dumps(Marked(tmp_path / "ran"))))
    assert not (tmp_path / "ran").exists()


def test_a_frame_of_named_columns_is_made_where_the_configuration_names_them(load: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": X[:, 0], "city": ["a", "b"] * 30})
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder

    columns = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    estimator = make_pipeline(columns, LinearRegression()).fit(frame, Y)
    config = """max_batch_size: 8
        input [ { name: "age" data_type: TYPE_FP64 dims: 1 }, { name: "city" data_type: TYPE_STRING dims: 1 } ]
        output { name: "prediction" data_type: TYPE_FP64 dims: 1 }"""
    with load("sklearn", "model.skops", skops_of(estimator), config) as model:
        given = {"age": X[:2, :1], "city": np.array([[b"a"], [b"b"]], object)}
        assert np.allclose(model.infer(given)["prediction"][:, 0], estimator.predict(frame[:2]))


def outputs(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in reply.json["outputs"]}


def test_a_server_serves_them_with_flags_for_pickles_and_tells_of_other_versions(tmp_path: Path) -> None:
    threads = 'instance_group { count: 2 } parameters { key: "INSTANCE_SHARING" value { string_value: "threads" } }'
    skops.dump(CLASSIFIER, write(tmp_path, "shared", "sklearn", threads) / "model.skops")
    skops.dump(FunctionTransformer(operator.neg).fit(X), write(tmp_path, "function", "sklearn") / "model.skops")
    types = ":".join(skops.get_untrusted_types(file=tmp_path / "function" / "1" / "model.skops"))
    old = LinearRegression().fit(X, Y)
    version = old.__getstate__()["_sklearn_version"].encode()
    written = pickle.dumps(old).replace(version, b"0" * len(version))
    (write(tmp_path, "old", "sklearn") / "model.pkl").write_bytes(written)
    text = write(tmp_path, "booster", "xgboost") / "model.json"
    BOOSTER.save_model(text)
    numbers = ",".join(xgboost.__version__.split("."))
    assert f'"version":[{numbers}]' in text.read_text()
    text.write_text(text.read_text().replace(f'"version":[{numbers}]', '"version":[1,7,0]'))
    flags = ("--backend-config=sklearn,allow-pickle=true", f"--backend-config=sklearn,trusted-types={types}")
    with RunningServer(tmp_path, flags=flags) as server:

        def infer(model: str, rows: Any, datatype: str = "FP64") -> dict[str, Any]:
            return outputs(server.infer(model, [tensor("features", datatype, list(rows.shape), rows.ravel().tolist())]))

        with ThreadPoolExecutor(8) as pool:
            parts = [X[at : at + 1 + at % 3] for at in range(40)]
            for part, found in zip(parts, pool.map(lambda part: infer("shared", part), parts)):
                assert found["prediction"][:, 0].tolist() == CLASSIFIER.predict(part).tolist()
        assert np.allclose(infer("function", X)["transformed"], -X)
        assert np.allclose(infer("old", X)["prediction"][:, 0], Y)
        rows = X.astype(np.float32)
        assert np.allclose(infer("booster", rows, "FP32")["prediction"], BOOSTER.inplace_predict(rows))
        server.wait_for_log(r"'model.pkl' of model 'old' was written by scikit-learn 0+, and is read by ")
        server.wait_for_log(r"'model.json' of model 'booster' was written by XGBoost 1.7.0, and is read by ")
