"""The shipped backend ``pytorch``: TorchScript and torch.export. Needs PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.testing import ModelUnderTest, Request
from tests.harness import RunningServer, tensor, write_model

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings(r"ignore:.torch\.jit\.:DeprecationWarning")  # it is still what people have


class Net(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: Any, scale: Any) -> Any:
        return self.linear(x) * scale, x + 1


NET = Net().eval()
GIVEN = (torch.ones(2, 3), torch.ones(2, 1))
BATCHED = """max_batch_size: 8 instance_group { kind: KIND_CPU }
    input [ { name: "x" data_type: TYPE_FP32 dims: 3 }, { name: "scale" data_type: TYPE_FP32 dims: 1 } ]
    output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 2 }, { name: "OUTPUT__1" data_type: TYPE_FP32 dims: 3 } ]"""


def write(repository: Path, name: str, config: str = BATCHED) -> Path:
    return write_model(repository, name, config=config) / "1"


def scripted(path: Path) -> None:
    torch.jit.trace(NET, GIVEN).save(str(path))


def rows(count: int) -> dict[str, Any]:
    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    return {"x": x, "scale": np.full((count, 1), 2, np.float32)}


def expected(given: dict[str, Any]) -> tuple[Any, Any]:
    with torch.no_grad():
        first, second = NET(torch.from_numpy(given["x"]), torch.from_numpy(given["scale"]))
    return first.numpy(), second.numpy()


def test_torchscript_is_found_by_its_file_and_batches(tmp_path: Path) -> None:
    scripted(write(tmp_path, "m") / "model.pt")
    with ModelUnderTest(tmp_path / "m") as model:
        assert model.config["backend"] == "pytorch"
        parts = [rows(1), rows(4), rows(2)]
        for part, outcome in zip(parts, model.execute([Request(part) for part in parts])):
            first, second = expected(part)
            assert np.allclose(outcome.response["OUTPUT__0"], first, atol=1e-6)
            assert np.array_equal(outcome.response["OUTPUT__1"], second)


def test_names_with_indices_are_those_of_triton(tmp_path: Path) -> None:
    config = BATCHED.replace('"x"', '"IN__0"').replace('"scale"', '"IN__1"')
    scripted(write(tmp_path, "m", config) / "model.pt")
    with ModelUnderTest(tmp_path / "m") as model:
        given = rows(2)
        found = model.infer({"IN__1": given["scale"], "IN__0": given["x"]})
        assert np.allclose(found["OUTPUT__0"], expected(given)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"OUTPUT__1"', '"OUTPUT__2"', "output names end with __<index>, and the indices are [0, 2], expected 0 to 1"),
        ('"OUTPUT__1"', '"other"', "some output names end with __<index>, expected all or none of them"),
        (
            "TYPE_FP32 dims: 2",
            "TYPE_STRING dims: 2",
            "'OUTPUT__0' of model 'm' is TYPE_STRING, expected one of TYPE_BOOL",
        ),
    ],
)
def test_configurations_that_cannot_be_meant_are_refused(tmp_path: Path, old: str, new: str, text: str) -> None:
    scripted(write(tmp_path, "m", BATCHED.replace(old, new)) / "model.pt")
    with pytest.raises(InferenceError) as refused:
        ModelUnderTest(tmp_path / "m")
    assert text in refused.value.message


def test_a_pickle_is_no_torchscript(tmp_path: Path) -> None:
    torch.save(NET, write(tmp_path, "m") / "model.pt")
    with pytest.raises(InferenceError, match=r"is no TorchScript .* write it with torch\.jit\.save"):
        ModelUnderTest(tmp_path / "m")


def test_torchscript_without_inputs_in_its_configuration_says_what_is_missing(tmp_path: Path) -> None:
    scripted(write(tmp_path, "m", 'backend: "pytorch"') / "model.pt")
    with pytest.raises(InferenceError, match="TorchScript says nothing of shapes"):
        ModelUnderTest(tmp_path / "m")


def test_an_exported_program_is_code_and_is_completed_where_it_is_allowed(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch")
    program = torch.export.export(NET, GIVEN, dynamic_shapes={"x": {0: batch}, "scale": {0: batch}})
    torch.export.save(program, write(tmp_path, "m", 'backend: "pytorch"') / "model.pt2")
    with pytest.raises(InferenceError, match="--backend-config=pytorch,allow-pickle=true"):
        ModelUnderTest(tmp_path / "m")
    with RunningServer(tmp_path, flags=("--backend-config=pytorch,allow-pickle=true",)) as server:
        given = rows(3)
        inputs = [tensor(name, "FP32", list(array.shape), array.ravel().tolist()) for name, array in given.items()]
        reply = server.infer("m", inputs)
        assert reply.status == 200, reply.body
        found = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in reply.json["outputs"]}
        assert np.allclose(found["OUTPUT__0"], expected(given)[0], atol=1e-5)
        assert np.allclose(found["OUTPUT__1"], expected(given)[1])
        assert server.get("/v2/models/m/config").json["max_batch_size"] == 4


class Means(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(self, x: Any, weight: Any) -> Any:
        return torch.stack([x.mean(-1), weight], -1), x.mean(-1) * weight


def test_an_exported_program_has_tensors_of_batches_alone_and_scalars(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch")
    ones = (torch.ones(3, 4), torch.ones(3))
    program = torch.export.export(Means(), ones, dynamic_shapes={"x": {0: batch}, "weight": {0: batch}})
    torch.export.save(program, write(tmp_path, "batches", 'backend: "pytorch"') / "model.pt2")
    program = torch.export.export(Means(), (ones[0][0], torch.tensor(1.0)))
    torch.export.save(program, write(tmp_path, "scalars", 'backend: "pytorch"') / "model.pt2")
    with RunningServer(tmp_path, flags=("--backend-config=pytorch,allow-pickle=true",)) as server:
        for name, before in (("batches", [2]), ("scalars", [])):
            described = server.get(f"/v2/models/{name}").json
            open_batch = [-1] * len(before)
            shapes = [(each["name"], each["shape"]) for each in (*described["inputs"], *described["outputs"])]
            assert shapes == [
                ("x", [*open_batch, 4]),
                ("weight", [*open_batch, 1]),
                ("OUTPUT__0", [*open_batch, 2]),
                ("OUTPUT__1", [*open_batch, 1]),
            ]
            count = 2 if before else 1
            values, means, weights = np.arange(4.0 * count).tolist(), [1.5, 5.5][:count], [2.0, 3.0][:count]
            inputs = [tensor("x", "FP32", [*before, 4], values), tensor("weight", "FP32", [*before, 1], weights)]
            reply = server.infer(name, inputs)
            assert reply.status == 200, reply.body
            assert [(each["shape"], each["data"]) for each in reply.json["outputs"]] == [
                ([*before, 2], [each for pair in zip(means, weights) for each in pair]),
                ([*before, 1], [mean * weight for mean, weight in zip(means, weights)]),
            ]


class Shifted(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(
        self,
        x: torch.Tensor,
        shift: Optional[torch.Tensor] = None,  # noqa: UP045  # TorchScript
        scale: Optional[torch.Tensor] = None,  # noqa: UP045
    ) -> torch.Tensor:
        if shift is not None:
            x = x + shift
        return x if scale is None else x * scale


def test_an_input_is_the_argument_of_its_name_though_one_before_it_is_left_out(tmp_path: Path) -> None:
    config = BATCHED.partition("output")[0] + 'output { name: "y" data_type: TYPE_FP32 dims: 3 }'
    torch.jit.script(Shifted()).save(str(write(tmp_path, "m", config) / "model.pt"))
    with ModelUnderTest(tmp_path / "m") as model:
        given = rows(2)
        assert np.array_equal(model.infer(given)["y"], given["x"] * given["scale"])


class Scaled(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(self, x: torch.Tensor, scale: Optional[torch.Tensor] = None) -> torch.Tensor:  # noqa: UP045  # TorchScript
        return x if scale is None else x * scale


OPTIONAL = """max_batch_size: 8
    input [ { name: "x" data_type: TYPE_BF16 dims: 3 }, { name: "scale" data_type: TYPE_BF16 dims: 1 optional: true } ]
    output { name: "y" data_type: TYPE_BF16 dims: 3 }"""


def test_bf16_passes_and_an_optional_argument_may_be_left_out(tmp_path: Path) -> None:
    torch.jit.script(Scaled()).save(str(write(tmp_path, "m", OPTIONAL) / "model.pt"))
    x, scale = torch.ones(1, 3, dtype=torch.bfloat16), torch.full((1, 1), 2.5, dtype=torch.bfloat16)
    with RunningServer(tmp_path) as server:
        for given in ({"x": x}, {"x": x, "scale": scale}):
            parts = [each.view(torch.uint8).numpy().tobytes() for each in given.values()]
            inputs = [
                {
                    "name": name,
                    "datatype": "BF16",
                    "shape": list(each.shape),
                    "parameters": {"binary_data_size": len(part)},
                }
                for (name, each), part in zip(given.items(), parts)
            ]
            head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
            length = {"Inference-Header-Content-Length": str(len(head))}
            reply = server.post("/v2/models/m/infer", b"".join([head, *parts]), length)
            assert reply.status == 200, reply.body
            returned = reply.body[int(reply.headers["inference-header-content-length"]) :]
            assert (
                torch.frombuffer(bytearray(returned), dtype=torch.bfloat16).tolist()
                == [given.get("scale", x)[0, 0]] * 3
            )


class Nested(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(self, pair: Any, factor: int, *, shift: Any, unused: Any = None) -> Any:
        return {"sum": (pair[0] + pair[1]) * factor, "shifted": pair[0] + shift}


def test_an_exported_program_is_called_as_it_was_exported(tmp_path: Path) -> None:
    first, second, shift = torch.rand(3, 2)  # what is the same tensor twice is exported as one
    program = torch.export.export(Nested(), ([first, second], 3), {"shift": shift, "unused": None})
    torch.export.save(program, write(tmp_path, "m", 'backend: "pytorch"') / "model.pt2")
    lacking = 'backend: "pytorch" input { name: "pair_0" data_type: TYPE_FP32 dims: 2 }'
    torch.export.save(program, write(tmp_path, "lacking", lacking) / "model.pt2")
    flags = ("--backend-config=pytorch,allow-pickle=true", "--exit-on-error=false")
    with RunningServer(tmp_path, flags=flags) as server:
        values = {"pair_0": [1.0, 2.0], "pair_1": [3.0, 4.0], "shift": [5.0, 6.0]}
        reply = server.infer("m", [tensor(name, "FP32", [2], data) for name, data in values.items()])
        assert reply.status == 200, reply.body
        assert [each["data"] for each in reply.json["outputs"]] == [[12.0, 18.0], [6.0, 8.0]]
        text = "its configuration has 1 inputs, and 'model.pt2' takes 3: pair_0, pair_1, shift"
        assert text in server.log


def test_what_pytorch_raises_is_the_error_of_its_request(tmp_path: Path) -> None:
    scripted(
        write(tmp_path, "m", BATCHED.replace('dims: 3 }, { name: "scale"', 'dims: -1 }, { name: "scale"')) / "model.pt"
    )
    with ModelUnderTest(tmp_path / "m") as model:
        wrong = {"x": np.zeros((1, 5), np.float32), "scale": np.ones((1, 1), np.float32)}
        bad, good = model.execute([Request(wrong), Request(rows(1))])
        assert bad.response.error is not None
        assert "PyTorch execute failure: " in bad.response.error.message()
        assert np.allclose(good.response["OUTPUT__0"], expected(rows(1))[0], atol=1e-6)
