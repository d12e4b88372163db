"""Plans of ensembles: what is refused, what runs for which outputs, what is inherited. Texts are Triton's (asked of 2.51)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytriton_lite.config.ensemble_plan import EnsemblePlan, check_ensemble_for_load, plan_ensemble
from pytriton_lite.config.model_config import ModelConfig, check_for_load, read_model_config
from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError

Write = Callable[..., None]
Plan = Callable[..., EnsemblePlan]
Spec = tuple[str, str, str]


def tensors(kind: str, specs: tuple[Spec, ...]) -> str:
    return "".join(f'{kind} {{ name: "{n}" data_type: TYPE_{t} dims: [ {d} ] }}\n' for n, t, d in specs)


def mapping(kind: str, pairs: str) -> str:
    """``IN0=X IN1=Y``: the model's name, and the ensemble's."""
    return "".join(
        'input_map {{ key: "{}" value: "{}" }}\n'.replace("input", kind).format(*pair.split("="))
        for pair in pairs.split()
    )


X: tuple[Spec, ...] = (("X", "FP32", "4"),)
Y: tuple[Spec, ...] = (("Y", "FP32", "4"),)
IN0: tuple[Spec, ...] = (("IN0", "FP32", "4"),)
OUT: tuple[Spec, ...] = (("OUT0", "FP32", "4"), ("OUT1", "FP32", "4"))

MODELS: dict[str, tuple[tuple[Spec, ...], tuple[Spec, ...], int]] = {
    "plain": (IN0, OUT, 4),
    "single": (IN0, OUT, 0),
    "decoupled": (IN0, OUT, 0),
    "decoupled_too": (IN0, OUT, 0),
    "i32": ((("IN0", "INT32", "4"),), (("OUT0", "INT32", "4"),), 4),
    "three": ((("IN0", "FP32", "3"),), (("OUT0", "FP32", "3"),), 4),
    "two": ((*IN0, ("IN1", "FP32", "4")), OUT, 0),
    "optional": ((*IN0, ("IN1", "FP32", "4")), OUT, 0),
    "wide": ((("IN0", "FP32", "-1, 16"),), (("OUT0", "FP32", "-1, 16"),), 0),
    "deep": ((("IN0", "FP32", "-1, 16, 16, 16"),), (("OUT0", "FP32", "-1, 16, 16, 16"),), 0),
    "whole_batch": ((("IN0", "FP32", "-1, 4"),), (("OUT0", "FP32", "-1, 4"),), 0),
}


@pytest.fixture
def models(tmp_path: Path) -> Callable[[str, int | None], ModelConfig | None]:
    def find(name: str, version: int | None) -> ModelConfig | None:
        if name not in MODELS:
            return None
        inputs, outputs, batch = MODELS[name]
        text = f'backend: "python"\nmax_batch_size: {batch}\n{tensors("input", inputs)}{tensors("output", outputs)}'
        if name.startswith("decoupled"):
            text += "model_transaction_policy { decoupled: true }"
        if name == "optional":
            text = text.replace('"IN1"', '"IN1" optional: true')
        if name == "single":
            text = text.replace('"OUT0"', '"OUT0" label_filename: "labels.txt"')
        folder = tmp_path / name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        (folder / "labels.txt").write_text("p\nq\nr\ns\n")
        (folder / "config.pbtxt").write_text(text)
        return check_for_load(read_model_config(folder, versions=(1,)), model_dir=folder, gpu_ids=())

    return find


def read_ensemble(
    folder: Path,
    *steps: tuple[str, str, str],
    inputs: tuple[Spec, ...] = X,
    outputs: tuple[Spec, ...] = Y,
    batch: int = 0,
    more: str = "",
) -> ModelConfig:
    """An ensemble ``e`` of (model, input map, output map)."""
    text = (
        f'platform: "ensemble"\nmax_batch_size: {batch}\n{tensors("input", inputs)}{tensors("output", outputs)}{more}\n'
    )
    text += "ensemble_scheduling {\n"
    for model, taken, given in steps:
        text += (
            f'step {{ model_name: "{model}" model_version: -1\n{mapping("input", taken)}{mapping("output", given)}}}\n'
        )
    (folder / "e" / "1").mkdir(parents=True)
    (folder / "e" / "config.pbtxt").write_text(text + "}\n")
    config = read_model_config(folder / "e", versions=(1,))
    return check_ensemble_for_load(config, model_dir=folder / "e")


@pytest.fixture
def plan(tmp_path: Path, models: Callable[[str, int | None], ModelConfig | None]) -> Plan:
    def make(*steps: tuple[str, str, str], **fields: object) -> EnsemblePlan:
        return plan_ensemble(read_ensemble(tmp_path, *steps, **fields), models)  # type: ignore[arg-type]

    return make


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "steps, fields, text",
    [
        pytest.param(
            [("plain", "IN0=X", "OUT0=Y")],
            {"batch": 8},
            "ensemble e allows maximum batch size 8, but it contains model plain which only allows maximum batch size to be 4",
            id="row 115 larger batches than a model takes",
        ),
        pytest.param(
            [("plain", "IN0=X", "OUT0=T"), ("i32", "IN0=T", "OUT0=Y")],
            {"batch": 4, "outputs": (("Y", "INT32", "4"),)},
            "in ensemble e, ensemble tensor T: inconsistent data type: TYPE_FP32 is inferred from model plain while TYPE_INT32 "
            "is inferred from model i32",
            id="row 116 data types of two models",
        ),
        pytest.param(
            [("two", "IN0=X", "OUT0=Y")],
            {},
            "in ensemble e, input IN1 in model two is not mapped to any ensemble tensors",
            id="row 117 a required input left out",
        ),
        pytest.param(
            [("plain", "IN0=X ZZ=X", "OUT0=Y")],
            {},
            "in ensemble e, ensemble tensor X is mapping to non-existing input ZZ in model plain",
            id="row 151 an unknown input",
        ),
        pytest.param(
            [("plain", "IN0=X", "OUT0=Y NOPE=Z")],
            {"outputs": (*Y, ("Z", "FP32", "4"))},
            "in ensemble e, ensemble tensor Z is mapped from non-existing output NOPE in model plain",
            id="row 151 an unknown output",
        ),
        pytest.param(
            [("plain", "IN0=X", "OUT0=T"), ("three", "IN0=T", "OUT0=Y")],
            {"batch": 4, "outputs": (("Y", "FP32", "3"),)},
            "in ensemble e, ensemble tensor T: inconsistent shape: [-1,4] is inferred from model plain while [-1,3] is "
            "inferred from model three",
            id="row 152 shapes of two models",
        ),
        pytest.param(
            [("wide", "IN0=X", "OUT0=T"), ("deep", "IN0=T", "OUT0=Y")],
            {"inputs": (("X", "FP32", "-1, 16"),), "outputs": (("Y", "FP32", "-1, 16, 16, 16"),)},
            "in ensemble e, ensemble tensor T: inconsistent shape: [-1,16] is inferred from model wide while [-1,16,16,16] is "
            "inferred from model deep",
            id="shapes of different ranks",
        ),
        pytest.param(
            [("plain", "IN0=X", "OUT0=Y")],
            {"batch": 4, "inputs": (("X", "FP32", "5"),)},
            "in ensemble e, ensemble tensor X: inconsistent shape: [-1,5] is inferred from model e while [-1,4] is inferred "
            "from model plain",
            id="the shape of the ensemble's own input",
        ),
        pytest.param(
            [("plain", "IN0=X", "OUT0=Y")],
            {"outputs": (("Y", "INT32", "4"),)},
            "in ensemble e, ensemble tensor Y: inconsistent data type: TYPE_INT32 is inferred from model e while TYPE_FP32 is "
            "inferred from model plain",
            id="row 153 the data type of the ensemble's own output",
        ),
    ],
)
def test_an_ensemble_that_does_not_fit_its_models_is_refused(
    plan: Plan, steps: list[tuple[str, str, str]], fields: dict[str, object], text: str
) -> None:
    with pytest.raises(InferenceError) as refused:
        plan(*steps, **fields)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_ARG, text)


TWO_SOURCES = "in ensemble e, step of model 'e' receives inputs originated from different decoupled models"


@pytest.mark.parametrize(
    "steps, outputs",
    [
        pytest.param(
            [("decoupled", "IN0=X", "OUT0=T"), ("decoupled_too", "IN0=X", "OUT0=U"), ("two", "IN0=T IN1=U", "OUT0=Y")],
            Y,
            id="side by side",
        ),
        pytest.param(
            [("decoupled", "IN0=X", "OUT0=T"), ("decoupled_too", "IN0=T", "OUT0=U"), ("two", "IN0=T IN1=U", "OUT0=Y")],
            Y,
            id="one behind the other",
        ),
        pytest.param(
            [("decoupled", "IN0=X", "OUT0=Y"), ("decoupled_too", "IN0=X", "OUT0=Z")],
            (*Y, ("Z", "FP32", "4")),
            id="outputs of the ensemble",
        ),
    ],
)
def test_what_comes_from_two_decoupled_models_cannot_come_together(
    plan: Plan, steps: list[tuple[str, str, str]], outputs: tuple[Spec, ...]
) -> None:
    """scheduling.md row 120."""
    with pytest.raises(InferenceError) as refused:
        plan(*steps, outputs=outputs)
    assert refused.value.message == TWO_SOURCES


def test_a_composing_model_that_nobody_has_looked_for_is_a_bug(plan: Plan) -> None:
    with pytest.raises(BugError, match="'nobody'"):
        plan(("nobody", "IN0=X", "OUT0=Y"))


# ---------------------------------------------------------------------------------------------- what fits


@pytest.mark.parametrize(
    "steps, fields",
    [
        pytest.param([("optional", "IN0=X", "OUT0=Y")], {}, id="an optional input is left out"),
        pytest.param([("single", "IN0=X", "OUT0=Y")], {"batch": 8}, id="a model that does not batch in one that does"),
        pytest.param(
            [("plain", "IN0=X", "OUT0=T"), ("whole_batch", "IN0=T", "OUT0=Y")],
            {"batch": 4},
            id="the batch dimension is among a model's own",
        ),
        pytest.param(
            [("plain", "IN0=X", "OUT0=Y")],
            {"inputs": (), "more": 'input { name: "X" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } }'},
            id="the reshape of the ensemble's input counts",
        ),
    ],
)
def test_an_ensemble_that_fits_is_planned(
    plan: Plan, steps: list[tuple[str, str, str]], fields: dict[str, object]
) -> None:
    assert len(plan(*steps, **fields).steps) == len(steps)


def test_labels_come_from_the_model_that_gives_the_output(plan: Plan) -> None:
    made = plan(("single", "IN0=X", "OUT0=Y OUT1=Z"), outputs=(*Y, ("Z", "FP32", "4")))
    assert made.config.labels == {"Y": ("p", "q", "r", "s")}


def test_labels_of_the_ensembles_own_come_first(
    tmp_path: Path, models: Callable[[str, int | None], ModelConfig | None]
) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "own.txt").write_text("mine\n")
    config = read_ensemble(
        tmp_path,
        ("single", "IN0=X", "OUT0=Y"),
        outputs=(),
        more='output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "own.txt" }',
    )
    assert plan_ensemble(config, models).config.labels == {"Y": ("mine",)}


def test_an_ensemble_is_decoupled_as_its_models_are_whatever_it_says_of_itself(plan: Plan) -> None:
    made = plan(("single", "IN0=X", "OUT0=Y"), more="model_transaction_policy { decoupled: true }")
    assert made.config.decoupled is False
    assert made.config.json["model_transaction_policy"] == {"decoupled": False}


def test_an_ensemble_with_a_decoupled_model_is_decoupled(plan: Plan) -> None:
    made = plan(("decoupled", "IN0=X", "OUT0=T"), ("single", "IN0=T", "OUT0=Y"))
    assert made.config.decoupled is True
    assert made.config.json["model_transaction_policy"] == {"decoupled": True}


# ---------------------------------------------------------------------------------------------- routes


def numbers(made: EnsemblePlan, *outputs: str) -> dict[int | None, list[int]]:
    return {at: [step.number for step in steps] for at, steps in made.route(outputs).steps.items()}


def test_only_the_steps_that_an_output_needs_are_on_its_route(plan: Plan) -> None:
    made = plan(
        ("single", "IN0=X", "OUT0=T"),
        ("single", "IN0=T", "OUT0=Y"),
        ("two", "IN0=T IN1=X", "OUT0=Z"),
        outputs=(("T", "FP32", "4"), *Y, ("Z", "FP32", "4")),
    )
    assert numbers(made) == {None: [0, 1, 2]}
    assert numbers(made, "T") == {None: [0]}
    assert numbers(made, "Y") == {None: [0, 1]}
    assert made.route(("Z", "T")).outputs == ("T", "Z")  # in the order of the configuration


def test_steps_may_be_written_in_any_order(plan: Plan) -> None:
    made = plan(("single", "IN0=T", "OUT0=Y"), ("decoupled", "IN0=X", "OUT0=T"))
    assert numbers(made) == {1: [0], None: [1]}


def test_steps_run_in_the_iterations_of_the_decoupled_step_that_they_follow(plan: Plan) -> None:
    made = plan(
        ("single", "IN0=X", "OUT0=S"),
        ("decoupled", "IN0=X", "OUT0=T"),
        ("two", "IN0=S IN1=T", "OUT0=U"),
        ("decoupled_too", "IN0=U", "OUT0=V"),
        ("two", "IN0=V IN1=S", "OUT0=Y"),
    )
    assert numbers(made) == {None: [0, 1], 1: [2, 3], 3: [4]}
    assert made.route(()).iterates == 3
    assert made.steps[2].iterates == 1
    assert made.steps[3].outputs_iterate == 3


def test_a_request_for_what_is_not_decoupled_has_one_response(plan: Plan) -> None:
    made = plan(("decoupled", "IN0=X", "OUT0=Y"), ("single", "IN0=X", "OUT0=Z"), outputs=(*Y, ("Z", "FP32", "4")))
    assert made.route(()).iterates == 0
    assert made.route(("Z",)).iterates is None
    assert numbers(made, "Z") == {None: [1]}


def test_tensors_that_somebody_else_wants_are_not_counted_among_those_to_let_go_of(plan: Plan) -> None:
    made = plan(
        ("single", "IN0=X", "OUT0=S OUT1=T"),
        ("two", "IN0=S IN1=S", "OUT0=U"),
        ("decoupled", "IN0=U", "OUT0=V"),
        ("two", "IN0=V IN1=T", "OUT0=Y"),
        outputs=(*Y, ("U", "FP32", "4")),
    )
    uses = made.route(()).uses
    assert uses[None] == {"X": 1, "S": 2}  # U is an output, T is wanted in every iteration
    assert uses[2] == {"V": 1}
    assert made.route(("Y",)).uses[None] == {"X": 1, "S": 2, "U": 1}


def test_namespaces_of_steps_are_the_servers_and_not_what_is_written(
    tmp_path: Path, models: Callable[[str, int | None], ModelConfig | None]
) -> None:
    """Section 2.1."""
    config = read_ensemble(tmp_path, ("single", "IN0=X", "OUT0=T"), ("single", "IN0=T", "OUT0=Y"))
    for step in config.message.ensemble_scheduling.step:
        step.model_namespace = "written"

    def shown(plan: EnsemblePlan) -> list[str]:
        return [step["model_namespace"] for step in plan.config.json["ensemble_scheduling"]["step"]]

    assert shown(plan_ensemble(config, models)) == ["", ""]
    assert shown(plan_ensemble(config, models, {"single": "/models"})) == ["/models", "/models"]
