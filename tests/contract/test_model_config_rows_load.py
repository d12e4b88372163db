"""Rows of model_config.md that show when a model is loaded: its status, its text, the index, the log, its configuration.

``pytriton-lite check`` looks at each of these models as well, and must say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.check.findings import Finding
from pytriton_lite.check.repositories import Rules, check
from tests.harness import Reply, RunningServer, tensor, write_model

CODE = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""
PYTHON = 'backend: "python"\n'
TENSORS = 'input { name: "I" data_type: TYPE_FP32 dims: 4 } output { name: "O" data_type: TYPE_FP32 dims: 4 }\n'
BATCHING = "max_batch_size: 4\n"
INVALID = "Invalid argument"
DIMENSION = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m"


@dataclass(frozen=True)
class Explicit:
    """A server that loads what it is told. ``singles`` has a repository for each model alone."""

    server: RunningServer
    repository: Path
    singles: Path

    def load(self, name: str, override: str | None = None) -> Reply:
        body: dict[str, Any] = {} if override is None else {"parameters": {"config": override}}
        return self.server.post(f"/v2/repository/models/{name}/load", body)

    def wait_for_poll_error(self, name: str, detail: str) -> None:
        """The log's line, in which quotes are escaped."""
        line = f"Poll failed for model directory '{name}': {detail}".replace('"', '\\"')
        self.server.wait_for_log(re.escape(line))

    def index_entry(self, name: str) -> dict[str, Any]:
        (entry,) = [entry for entry in self.server.post("/v2/repository/index").json if entry["name"] == name]
        return dict(entry)

    def findings(self, name: str) -> list[Finding]:
        """What ``check`` says of one model."""
        alone = self.singles / name
        alone.mkdir()
        (alone / name).symlink_to(self.repository / name)
        found, count = check([alone], Rules())
        assert count == 1
        return found


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explicit]:
    folder = tmp_path_factory.mktemp("config")
    (folder / "models").mkdir()
    (folder / "singles").mkdir()
    flags = ("--model-control-mode=explicit",)
    with RunningServer(folder / "models", flags=flags, environ={"CUDA_VISIBLE_DEVICES": ""}) as server:
        yield Explicit(server, folder / "models", folder / "singles")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model's name for this test alone, which no text has by chance."""
    return "cfg_" + re.sub(r"\W+", "_", request.node.callspec.id if hasattr(request.node, "callspec") else "one")


def assert_subset(expected: object, found: object, path: str = "") -> None:
    if isinstance(expected, Mapping) and expected:
        assert isinstance(found, Mapping), path
        for key, value in expected.items():
            assert key in found, f"{path}.{key}"
            assert_subset(value, found[key], f"{path}.{key}")
    else:
        assert found == expected, path


# What loads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        pytest.param('# one\nbackend: "python" # two\nmax_batch_size: 2 # größer', {"max_batch_size": 2}, id="row 1"),
        pytest.param(
            'backend: "python";\ninput { name: "I" data_type: TYPE_FP32; dims: [4]; };\n'
            'output < name: "O", data_type: TYPE_FP32, dims: [4] >',
            {"backend": "python"},
            id="row 2",
        ),
        pytest.param(
            "backend: 'py' \"thon\", max_batch_size: 0x4", {"backend": "python", "max_batch_size": 4}, id="row 3"
        ),
        pytest.param(PYTHON + 'input { name: "I" data_type: 11 dims: 4 }', {}, id="row 4"),
        pytest.param(PYTHON + 'input [ { name: "x", data_type: TYPE_FP32, dims: [ 4 ], } ]', {}, id="row 12"),
        pytest.param(PYTHON + 'input { name: "I" data_type: TYPE_FP32 dims: 2 dims: 2 }', {}, id="row 13"),
        *(
            pytest.param(
                PYTHON + f"model_transaction_policy {{ decoupled: {word} }}",
                {"model_transaction_policy": {"decoupled": True}},
                id=f"row 14, {word}",
            )
            for word in ("True", "t", "1")
        ),
        pytest.param(
            PYTHON + 'parameters { key: "A" value { string_value: "1" } } parameters: { key: "B" value: '
            '{ string_value: "2" } } parameters [ { key: "C" value < string_value: "3" > } ]',
            {"parameters": {"A": {"string_value": "1"}, "B": {"string_value": "2"}, "C": {"string_value": "3"}}},
            id="row 16",
        ),
        pytest.param(
            PYTHON + 'parameters { key: "A" value { string_value: "1" } } parameters { key: "A" value '
            '{ string_value: "2" } }',
            {"parameters": {"A": {"string_value": "2"}}},
            id="row 17",
        ),
        pytest.param('backend: "python"\r\nmax_batch_size: 2\r\n', {"max_batch_size": 2}, id="row 21"),
        pytest.param("# nothing", {"backend": "python", "max_batch_size": 0}, id="row 24"),
        pytest.param(PYTHON + "batch_input [ ]", {"batch_input": []}, id="row 25"),
        pytest.param(PYTHON, {"input": [], "output": []}, id="row 42"),
        pytest.param(
            PYTHON + TENSORS + 'batch_input { target_name: "X" data_type: TYPE_INT32 source_input: "I" }',
            {},
            id="row 44",
        ),
        pytest.param(PYTHON + 'platform: "foo"', {"platform": "foo", "backend": "python"}, id="row 48"),
        pytest.param(
            PYTHON + BATCHING + "dynamic_batching { }", {"dynamic_batching": {"preferred_batch_size": [4]}}, id="row 51"
        ),
        pytest.param(
            PYTHON + "dynamic_batching { }",
            {"dynamic_batching": {"preferred_batch_size": []}},
            id="row 52, as it is shown",
        ),
        pytest.param(PYTHON + "dynamic_batching { priority_queue_policy { key: 4 } }", {}, id="row 54, no levels"),
        pytest.param(
            PYTHON + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
            {},
            id="row 55, no timeout",
        ),
        pytest.param(
            PYTHON + "sequence_batching { }",
            {"sequence_batching": {"max_sequence_idle_microseconds": 1000000}},
            id="row 58",
        ),
        pytest.param(
            PYTHON + "sequence_batching { direct { minimum_slot_utilization: 0 } }", {}, id="utilization of 0"
        ),
        pytest.param(PYTHON + "version_policy { }", {"version_policy": {}}, id="row 69, as it is shown"),
        pytest.param(
            PYTHON + "optimization { priority: PRIORITY_MAX graph { level: 1 } input_pinned_memory { enable: false } }",
            {
                "optimization": {
                    "priority": "PRIORITY_MAX",
                    "graph": {"level": 1},
                    "input_pinned_memory": {"enable": False},
                    "output_pinned_memory": {"enable": True},
                }
            },
            id="row 81",
        ),
        pytest.param(
            PYTHON + 'model_operations { op_library_filename: [ "a.so", "b.so" ] }',
            {"model_operations": {"op_library_filename": ["a.so", "b.so"]}},
            id="model_operations",
        ),
        pytest.param(
            PYTHON + 'cc_model_filenames { key: "7.5" value: "x.py" }', {"cc_model_filenames": {"7.5": "x.py"}}, id="cc"
        ),
        pytest.param(
            PYTHON + "model_repository_agents { }", {"model_repository_agents": {"agents": []}}, id="no agents"
        ),
        pytest.param(PYTHON + "version_policy { specific { versions: [ 7, 1 ] } }", {}, id="one of two versions"),
        pytest.param(PYTHON + 'runtime: "model.py"', {"runtime": "model.py"}, id="runtime"),
    ],
)
def test_what_loads(explicit: Explicit, name: str, config: str, shown: dict[str, Any]) -> None:
    write_model(explicit.repository, name, CODE)
    (explicit.repository / name / "config.pbtxt").write_bytes(config.encode())
    reply = explicit.load(name)
    assert reply.status == 200, reply.body
    assert explicit.index_entry(name)["state"] == "READY"
    assert_subset({"name": name, **shown}, explicit.server.get(f"/v2/models/{name}/config").json)
    assert not [finding for finding in explicit.findings(name) if finding.is_error]


def test_rows_4_12_and_13_are_what_they_mean(explicit: Explicit) -> None:
    """Rows 4, 12 and 13: of the inputs, names, types and dims."""
    for model, text, datatype, dims in (
        ("by_number", 'input { name: "I" data_type: 11 dims: 4 }', "TYPE_FP32", [4]),
        ("comma", 'input [ { name: "I", data_type: TYPE_INT8, dims: [ 4 ], } ]', "TYPE_INT8", [4]),
        ("dim_by_dim", 'input { name: "I" data_type: TYPE_FP32 dims: 2 dims: 2 }', "TYPE_FP32", [2, 2]),
    ):
        write_model(explicit.repository, model, CODE, PYTHON + text)
        assert explicit.load(model).status == 200
        (shown,) = explicit.server.get(f"/v2/models/{model}/config").json["input"]
        assert (shown["data_type"], shown["dims"]) == (datatype, dims)


def test_row_24_an_empty_file_is_a_whole_configuration(explicit: Explicit) -> None:
    write_model(explicit.repository, "empty", CODE)
    (explicit.repository / "empty" / "config.pbtxt").write_text("")
    assert explicit.load("empty").status == 200
    config = explicit.server.get("/v2/models/empty/config").json
    assert (config["backend"], config["default_model_filename"], config["max_batch_size"]) == ("python", "model.py", 0)
    assert [group["name"] for group in config["instance_group"]] == ["empty"]


# Shape A: the configuration cannot be read, or makes no sense --------------------------------------------------------


def no_field(message: str, name: str) -> str:
    return f'Message type "inference.{message}" has no field named "{name}".'


def controls(*inputs: str) -> str:
    written = " ".join(f"control_input {{ {each} }}" for each in inputs)
    return PYTHON + f"sequence_batching {{ {written} }}"


START = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }"
SEQUENCE = "sequence batching "
FOR_START = "'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_START for m"
NO_CACHE = "Please disable the response cache."


@pytest.mark.parametrize(
    ("config", "detail"),
    [
        pytest.param(
            "input { data_type: type_fp32 }",
            '1:20: Unknown enumeration value of "type_fp32" for field "data_type".',
            id="row 5",
        ),
        pytest.param(
            'input { data_type: "TYPE_FP32" }', '1:20: Expected integer or identifier, got: "TYPE_FP32"', id="row 6"
        ),
        pytest.param("foo: 1", "1:1: " + no_field("ModelConfig", "foo"), id="row 7"),
        pytest.param(
            "max_batch_size: 1\nmax_batch_size: 2",
            '2:1: Non-repeated field "max_batch_size" is specified multiple times.',
            id="row 8",
        ),
        pytest.param(
            "dynamic_batching { }\ndynamic_batching { }",
            '2:1: Non-repeated field "dynamic_batching" is specified multiple times.',
            id="row 9",
        ),
        pytest.param(
            "dynamic_batching { } sequence_batching { }",
            '1:22: Field "sequence_batching" is specified along with field "dynamic_batching", another member of oneof '
            '"scheduling_choice".',
            id="row 10",
        ),
        pytest.param("input { dims: [ 4, ] }", "1:20: Expected integer, got: ]", id="row 11"),
        pytest.param(
            "model_transaction_policy { decoupled: TRUE }",
            '1:39: Invalid value for boolean field "decoupled". Value: "TRUE".',
            id="row 15",
        ),
        pytest.param(
            'parameters: { python_lib: "/x" }',
            "1:15: "
            + no_field("ModelConfig.ParametersEntry", "python_lib")
            + " A model's code is <version>/model.py, or "
            "the file there that default_model_filename names.",
            id="row 18",
        ),
        pytest.param('parameters { key: "a" value { string_value: 1 } }', "1:45: Expected string, got: 1", id="row 19"),
        pytest.param("max_batch_size: 4.0", "1:17: Expected integer, got: 4.0", id="row 20"),
        pytest.param("max_batch_size: 3000000000", "1:17: Integer out of range (3000000000)", id="row 20, too large"),
        pytest.param("\ufeffbackend: 'python'", "1:1: Interpreting non ascii codepoint 239.", id="row 22"),
        pytest.param("// hello", "1:1: Expected identifier, got: /", id="row 23"),
        pytest.param(
            "sequence_batching { generative_sequence: true }",
            "1:21: " + no_field("ModelSequenceBatching", "generative_sequence"),
            id="row 26",
        ),
        pytest.param(PYTHON + "max_batch_size: -1", "'max_batch_size' must be non-negative value for m", id="row 27"),
        pytest.param(
            PYTHON + 'name: "other"',
            "unexpected directory name 'm' for model 'other', directory name must equal model name",
            id="row 28",
        ),
        pytest.param('platform: "python"', "unexpected platform type 'python' for m", id="row 47"),
        pytest.param(
            PYTHON + 'platform: "ensemble"',
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
            id="row 49",
        ),
        pytest.param(
            PYTHON + BATCHING + "dynamic_batching { preferred_batch_size: 0 }",
            "dynamic batching preferred size must be positive for m",
            id="row 50",
        ),
        pytest.param(
            PYTHON + BATCHING + "dynamic_batching { preferred_batch_size: 8 }",
            "dynamic batching preferred size must be <= max batch size for m",
            id="row 50, too large",
        ),
        pytest.param(
            PYTHON + "dynamic_batching { priority_levels: 3 }",
            "default priority level must be in range [1, 3] for m",
            id="row 53",
        ),
        pytest.param(
            PYTHON
            + "dynamic_batching { priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: 4 } }",
            "priority queue policy must have priority level in range [1, 3] for m",
            id="row 54",
        ),
        pytest.param(
            PYTHON + "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
            id="row 55, levels",
        ),
        pytest.param(
            PYTHON + "dynamic_batching { preserve_ordering: true "
            "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 10 } }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
            id="row 55, delay",
        ),
        pytest.param(
            PYTHON + "sequence_batching { } response_cache { enable: true }",
            f"Response Cache does not currently support model m with sequence batching scheduler. {NO_CACHE}",
            id="row 56, sequences",
        ),
        pytest.param(
            PYTHON + "model_transaction_policy { decoupled: true } response_cache { enable: true }",
            f"Response Cache does not currently support model m with 'decoupled' transaction policy. {NO_CACHE}",
            id="row 56, decoupled",
        ),
        pytest.param(controls(START), SEQUENCE + "control tensor must have a name for m", id="row 57, no name"),
        pytest.param(
            controls(f'name: "A" {START}', 'name: "A"'),
            SEQUENCE + "control tensor 'A' is specified for multiple control kinds for m",
            id="row 57, a name twice",
        ),
        pytest.param(
            controls(f'name: "A" {START} {START}'),
            SEQUENCE + "specifies multiple CONTROL_SEQUENCE_START tensors for m",
            id="row 57, a kind twice",
        ),
        pytest.param(
            controls('name: "A" control { }'), SEQUENCE + f"must specify either {FOR_START}", id="row 57, no values"
        ),
        pytest.param(
            controls('name: "A" control { int32_false_true: [ 0, 1 ] bool_false_true: [ false, true ] }'),
            SEQUENCE + f"specifies more than one from {FOR_START.replace(' or ', ' and ')}",
            id="row 57, two kinds of values",
        ),
        pytest.param(
            controls('name: "A" control { fp32_false_true: [ 0 ] }'),
            SEQUENCE + "control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
            id="row 57, one value",
        ),
        pytest.param(
            controls('name: "A" control { kind: CONTROL_SEQUENCE_CORRID int32_false_true: [ 0, 1 ] }'),
            SEQUENCE + "must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "CONTROL_SEQUENCE_CORRID for m",
            id="row 57, values of an id",
        ),
        pytest.param(
            controls('name: "A" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 }'),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            id="row 57, type of an id",
        ),
        *(
            pytest.param(
                PYTHON + f"sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}",
                SEQUENCE + "minimum slot utilization must be in range (0.0, 1.0] for m",
                id=f"row 59, {value}",
            )
            for value in ("1.5", "-0.1")
        ),
        pytest.param(
            PYTHON + 'model_repository_agents { agents { name: "checksum" } }',
            "unable to find 'libtritonrepoagent_checksum.so' for repo agent 'checksum', searched: nowhere, pytriton-lite "
            "loads no native repository agents",
            id="row 80",
        ),
        pytest.param(
            PYTHON + 'model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }',
            "histogram options must specify non-empty 'buckets'",
            id="row 98",
        ),
        pytest.param(
            'backend: "onnxruntime" platform: "onnxruntim"',
            "unexpected 'platform' and 'backend' pair, got:onnxruntim, onnxruntime",
            id="row 100",
        ),
        pytest.param(
            PYTHON + "input { format: 7 }",
            "field 'input[0].format' has the unknown number 7 for m; expected one of FORMAT_NONE, FORMAT_NHWC, FORMAT_NCHW",
            id="a number without a meaning",
        ),
    ],
)
def test_what_is_refused_while_it_is_read(explicit: Explicit, name: str, config: str, detail: str) -> None:
    """The texts, behind their places, are those of Triton 2.51, but for rows 80 and 98 and the end of 18."""
    folder = write_model(explicit.repository, name, CODE)
    (folder / "config.pbtxt").write_bytes(config.encode())
    reply = explicit.load(name)
    assert (reply.status, reply.error) == (500, f"failed to load '{name}', failed to poll from model repository")
    assert "state" not in explicit.index_entry(name)
    detail = re.sub(r"\bm\b(?!')", name, detail) if "'m'" not in detail else detail.replace("'m'", f"'{name}'")
    place = re.match(r"(\d+):(\d+): ", detail)
    said = f"{folder}/config.pbtxt:{detail}" if place else detail
    explicit.wait_for_poll_error(name, said)
    finding = next(finding for finding in explicit.findings(name) if finding.is_error)
    assert finding.text == detail.removeprefix(place[0] if place else "")
    assert not place or [finding.line, finding.column] == [int(number) for number in place.groups()]


# Shape B: a version cannot be loaded ---------------------------------------------------------------------------------


def one_input(fields: str, model: str = "") -> str:
    return PYTHON + model + f' input {{ name: "IN0" data_type: TYPE_FP32 {fields} }}'


def parameter(key: str, value: str) -> str:
    return PYTHON + f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def labelled(path: str) -> str:
    return PYTHON + f'output {{ name: "O" data_type: TYPE_FP32 dims: 4 label_filename: "{path}" }}'


@pytest.mark.parametrize(
    ("config", "code", "detail"),
    [
        pytest.param(
            PYTHON + 'input { name: "IN0" dims: 4 }',
            INVALID,
            "model input 'IN0' must specify 'data_type' for m",
            id="row 29",
        ),
        pytest.param(one_input(""), INVALID, "model input 'IN0' must specify 'dims' for m", id="row 30"),
        pytest.param(
            one_input("dims: [ ]"), INVALID, "model input 'IN0' must specify 'dims' for m", id="row 30, empty"
        ),
        pytest.param(one_input("dims: [ 4, 0 ]"), INVALID, f"model input 'IN0' {DIMENSION}", id="row 31"),
        pytest.param(one_input("dims: -2"), INVALID, f"model input 'IN0' {DIMENSION}", id="row 31, -2"),
        pytest.param(
            one_input("dims: [ 4, 4 ] format: FORMAT_NHWC"),
            INVALID,
            "model input NHWC/NCHW require 3 dims for m",
            id="row 32",
        ),
        pytest.param(
            one_input("dims: 4 is_shape_tensor: true"),
            INVALID,
            "shape tensors are only supported for TensorRT platform for m",
            id="row 33",
        ),
        pytest.param(
            one_input("dims: 4 reshape { shape: [ 2, 3 ] }"),
            INVALID,
            "model input 'IN0' has different size for dims and reshape for m",
            id="row 34",
        ),
        pytest.param(
            one_input("dims: 1 reshape { shape: [ ] }"),
            INVALID,
            "model input 'IN0' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
            id="row 35",
        ),
        pytest.param(
            one_input("dims: [ 2, -1, 6 ] reshape { shape: [ -1, 12 ] }"),
            INVALID,
            "model input 'IN0' has different size for dims and reshape for m",
            id="row 36",
        ),
        pytest.param(
            one_input("dims: [ 2, -1, 6, -1 ] reshape { shape: [ 2, -1, 6 ] }"),
            INVALID,
            "model input 'IN0' has different number of variable-size dimensions for dims and reshape for m",
            id="row 37",
        ),
        pytest.param(
            labelled("nope.txt"),
            "Internal",
            "failed to open text file for read {folder}/nope.txt: No such file or directory",
            id="row 40",
        ),
        pytest.param(
            PYTHON + TENSORS + 'batch_input { target_name: "X" data_type: TYPE_INT32 }',
            INVALID,
            "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for m",
            id="row 43",
        ),
        pytest.param(
            PYTHON + TENSORS + 'batch_output { target_name: "Q" source_input: "I" }',
            INVALID,
            "unknown target output name 'Q' for m",
            id="row 45",
        ),
        pytest.param(
            'backend: "nosuch"',
            INVALID,
            "unable to find backend library for backend 'nosuch', try specifying runtime on the model configuration.",
            id="row 46",
        ),
        pytest.param(
            parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe"),
            "Unsupported",
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'",
            id="row 78",
        ),
        pytest.param(
            parameter("TRITON_BATCH_STRATEGY_PATH", "/nope.so") + "sequence_batching { }",
            INVALID,
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy",
            id="row 79, sequences",
        ),
        pytest.param(
            parameter("TRITON_BATCH_STRATEGY_PATH", "/nope.so"),
            "Not found",
            "Batching library path not found: /nope.so",
            id="row 79",
        ),
        pytest.param(
            labelled("../x.txt"),
            "Unsupported",
            "label file path '../x.txt' for output 'O' in model 'm' is outside model directory",
            id="row 97",
        ),
        pytest.param(
            PYTHON + 'default_model_filename: "other.py"',
            "Internal",
            "Python model file not found in '{folder}/1/other.py'",
            id="row 99",
        ),
        pytest.param(
            PYTHON + 'metric_tags { key: "my-team" value: "b" }',
            INVALID,
            "metric_tags of model 'm': 'my-team' gives the label '_my-team', expected letters, digits and underscores, the "
            "first of them no underscore",
            id="section 7, a tag that kills Triton",
        ),
    ],
)
def test_what_is_refused_when_it_is_loaded(explicit: Explicit, name: str, config: str, code: str, detail: str) -> None:
    """The texts are those of Triton 2.51, but for rows 97 and 99, where it finds no such file and hangs."""
    folder = write_model(explicit.repository, name, CODE, config)
    detail = detail.format(folder=folder).replace("'m'", f"'{name}'")
    detail = re.sub(r"for m$", f"for {name}", detail)
    reply = explicit.load(name)
    assert (reply.status, reply.error) == (
        400,
        f"load failed for model '{name}': version 1 is at UNAVAILABLE state: {code}: {detail};\n",
    )
    entry = explicit.index_entry(name)
    assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", f"{code}: {detail}")
    finding = next(finding for finding in explicit.findings(name) if finding.is_error)
    assert finding.text == detail.replace(str(folder), str(explicit.singles / name / name))


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("latest { num_versions: 0 }", id="row 68, none"),
        pytest.param("specific { versions: 7 }", id="row 68, absent"),
    ],
)
def test_what_has_no_version(explicit: Explicit, name: str, policy: str) -> None:
    write_model(explicit.repository, name, CODE, PYTHON + f"version_policy {{ {policy} }}")
    detail = f"at least one version must be available under the version policy of model '{name}'"
    reply = explicit.load(name)
    assert (reply.status, reply.error) == (400, f"load failed for model '{name}': {detail}\n")
    assert name not in [entry["name"] for entry in explicit.server.post("/v2/repository/index").json]
    assert [finding.text for finding in explicit.findings(name) if finding.is_error] == [detail]


# What the directory and the model itself say -------------------------------------------------------------------------


def test_row_83_a_backend_that_nothing_tells(explicit: Explicit) -> None:
    (explicit.repository / "bare" / "1").mkdir(parents=True)
    assert explicit.load("bare").error == "failed to load 'bare', failed to poll from model repository"
    text = (
        "Invalid model name: Could not determine backend for model 'bare' with no backend in model configuration. Expected "
        "model name of the form 'model.<backend_name>'."
    )
    explicit.wait_for_poll_error("bare", text)
    assert [finding.text for finding in explicit.findings("bare")] == [text]


def test_row_84_a_backend_by_the_name(explicit: Explicit) -> None:
    (explicit.repository / "m.identity" / "1").mkdir(parents=True)
    text = "unable to find backend library for backend 'identity', try specifying runtime on the model configuration."
    assert explicit.load("m.identity").error.endswith(f"UNAVAILABLE state: Invalid argument: {text};\n")
    assert [finding.text for finding in explicit.findings("m.identity")] == [text]


def completing(body: str, more: str = "") -> str:
    """A model with *body* as its auto_complete_config."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return (
        "import triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n    @staticmethod\n"
        f"    def auto_complete_config(config):\n{lines}\n\n    def execute(self, requests):\n        return []\n{more}"
    )


def test_row_85_a_model_that_configures_itself(explicit: Explicit) -> None:
    code = completing(
        'config.add_input({"name": "I", "data_type": "TYPE_FP32", "dims": [4]})\n'
        'config.add_output({"name": "O", "data_type": "TYPE_FP32", "dims": [4]})\n'
        "config.set_max_batch_size(4)\nconfig.set_dynamic_batching()\nreturn config"
    )
    write_model(explicit.repository, "completes", code)
    assert explicit.load("completes").status == 200
    config = explicit.server.get("/v2/models/completes/config").json
    assert ([tensor["name"] for tensor in config["input"]], config["max_batch_size"]) == (["I"], 4)
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert explicit.findings("completes") == []


@pytest.mark.parametrize(
    ("config", "body", "reason"),
    [
        pytest.param(
            "",
            "return None",
            "Internal: auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.",
            id="row 86, None",
        ),
        pytest.param("", 'raise ValueError("oh")', "Internal: ValueError: oh\n\nAt:\n", id="row 86, an exception"),
        pytest.param(
            PYTHON + "max_batch_size: 6",
            "config.set_max_batch_size(4)\nreturn config",
            "configuration specified max_batch_size 6, but in auto-complete-config function for model 'm' specified "
            "max_batch_size 4",
            id="row 86, a smaller batch",
        ),
        pytest.param(
            PYTHON + "sequence_batching { }",
            "config.set_dynamic_batching()\nreturn config",
            "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for model "
            "'m' tries to set scheduling_choice as 'dynamic_batching'",
            id="row 86, another scheduler",
        ),
        pytest.param(
            "",
            'config.add_input({"name": "I"})\nreturn config',
            "input 'I' in auto-complete-config function for model 'm' is missing 'data_type' property.",
            id="row 86, no type",
        ),
        pytest.param(
            PYTHON + TENSORS,
            'config.add_input({"name": "I", "data_type": "TYPE_INT32", "dims": [4]})\nreturn config',
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'I', model provides TYPE_INT32",
            id="row 86, another type",
        ),
        pytest.param(
            PYTHON + TENSORS,
            'config.add_output({"name": "O", "data_type": "TYPE_FP32", "dims": [16]})\nreturn config',
            "model 'm', tensor 'O': the model expects dims [16] but the model configuration specifies dims [4]",
            id="row 86, other dims",
        ),
    ],
)
def test_a_model_that_fails_to_configure_itself(
    explicit: Explicit, name: str, config: str, body: str, reason: str
) -> None:
    write_model(explicit.repository, name, completing(body), config)
    reply = explicit.load(name)
    assert reply.status == 400
    assert reason.replace("'m'", f"'{name}'") in explicit.index_entry(name)["reason"]
    assert reason.replace("'m'", f"'{name}'") in reply.error


def test_row_87_a_model_may_ask_for_larger_batches(explicit: Explicit) -> None:
    write_model(
        explicit.repository,
        "larger",
        completing("config.set_max_batch_size(8)\nreturn config"),
        PYTHON + "max_batch_size: 2",
    )
    assert explicit.load("larger").status == 200
    assert explicit.server.get("/v2/models/larger/config").json["max_batch_size"] == 8


def test_row_88_only_what_a_model_may_complete_is_taken(explicit: Explicit) -> None:
    body = (
        "config._model_config['parameters'] = {'A': {'string_value': '1'}}\n"
        "config._model_config['response_cache'] = {'enable': True}\n"
        "config._model_config['max_batch_size'] = 3\nreturn config"
    )
    write_model(explicit.repository, "edits", completing(body), PYTHON)
    assert explicit.load("edits").status == 200
    config = explicit.server.get("/v2/models/edits/config").json
    assert (config["parameters"], config.get("response_cache"), config["max_batch_size"]) == ({}, None, 3)


# The JSON form -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    [
        pytest.param('{"backend": "python", "maxBatchSize": 4}', id="row 94, camelCase"),
        pytest.param('{"backend": "python", "max_batch_size": "4"}', id="row 94, a number in a string"),
        pytest.param('{backend: "python", max_batch_size: 4,}', id="row 94, no quotes, a comma at the end"),
        pytest.param(
            """{'backend': 'python', 'maxBatchSize': 4.0, 'input': {'name': 'I', 'dataType': 'type_fp32', 'dims': ['4']}}""",
            id="row 94, a type in small letters",
        ),
    ],
)
def test_an_override_may_be_written_loosely(explicit: Explicit, name: str, override: str) -> None:
    write_model(explicit.repository, name, CODE)
    assert explicit.load(name, override).status == 200
    config = explicit.server.get(f"/v2/models/{name}/config").json
    assert config["max_batch_size"] == 4
    assert [tensor["data_type"] for tensor in config["input"]] == ["TYPE_FP32"] * ("type_fp32" in override)


@pytest.mark.parametrize(
    ("override", "detail"),
    [
        pytest.param('{"backend": "python", "foo": 1}', "foo: Cannot find field.", id="row 95"),
        pytest.param(
            '{"max_batch_size": "x"}', '(max_batch_size): invalid value "x" for type TYPE_INT32', id="row 95, a value"
        ),
        pytest.param("[]", ": Root element must be a message.", id="row 95, no object"),
    ],
)
def test_an_override_that_is_none(explicit: Explicit, name: str, override: str, detail: str) -> None:
    write_model(explicit.repository, name, CODE)
    reply = explicit.load(name, override)
    assert (reply.status, reply.error) == (500, f"failed to load '{name}', failed to poll from model repository")
    explicit.wait_for_poll_error(name, f"Invalid config override: {detail}")


# Labels --------------------------------------------------------------------------------------------------------------


def test_row_41_labels_of_some_classes(explicit: Explicit) -> None:
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                out = np.array([1, 4, 2, 3], np.float32)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("O", out)]) for _ in requests]
    """
    config = 'input { name: "I" data_type: TYPE_FP32 dims: 1 }' + labelled("labels.txt")
    folder = write_model(explicit.repository, "labelled", code, config)
    (folder / "labels.txt").write_text("a\nb\nc\n")
    assert explicit.load("labelled").status == 200
    outputs = [{"name": "O", "parameters": {"classification": 3}}]
    reply = explicit.server.infer("labelled", [tensor("I", "FP32", [1], [0])], outputs=outputs)
    assert reply.json["outputs"][0]["data"] == ["4.000000:1:b", "3.000000:3", "2.000000:2:c"]
    assert explicit.findings("labelled") == []


# Options of the server -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explicit]:
    """One that completes nothing, and prefers files called h100."""
    folder = tmp_path_factory.mktemp("strict")
    (folder / "models").mkdir()
    flags = ("--model-control-mode=explicit", "--disable-auto-complete-config", "--model-config-name=h100")
    with RunningServer(folder / "models", flags=flags) as server:
        yield Explicit(server, folder / "models", folder / "singles")


def test_row_89_a_file_must_be_there(strict: Explicit) -> None:
    folder = write_model(strict.repository, "nofile", CODE)
    assert strict.load("nofile").error == "failed to load 'nofile', failed to poll from model repository"
    text = f"failed to open text file for read {folder}/config.pbtxt: No such file or directory"
    strict.wait_for_poll_error("nofile", text)
    (finding,) = check([strict.repository], Rules(strict_config=True))[0]
    assert (finding.file, finding.text) == (f"{folder}/config.pbtxt", text)


def test_row_90_tensors_are_checked_while_polling(strict: Explicit) -> None:
    write_model(strict.repository, "nodims", CODE, one_input(""))
    assert strict.load("nodims").error == "failed to load 'nodims', failed to poll from model repository"
    text = "model input 'IN0' must specify 'dims' for nodims"
    strict.wait_for_poll_error("nodims", text)


def test_row_96_a_named_configuration_is_used_where_there_is_one(strict: Explicit) -> None:
    for model in ("with_name", "without_name"):
        write_model(strict.repository, model, CODE, PYTHON + "max_batch_size: 1")
    (strict.repository / "with_name" / "configs").mkdir()
    (strict.repository / "with_name" / "configs" / "h100.pbtxt").write_text(PYTHON + "max_batch_size: 100")
    sizes = []
    for model in ("with_name", "without_name"):
        assert strict.load(model).status == 200
        sizes.append(strict.server.get(f"/v2/models/{model}/config").json["max_batch_size"])
    assert sizes == [100, 1]
