"""``load_model``, ``unload_model``, ``is_model_ready`` on the model's side: model_api.md, sections 2.1 and 4.8."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.worker import model_loading, pb_utils, process
from pytriton_lite.worker.process import Host, Phase


class Asked(Host):
    """Keeps what it was asked, and answers with what the test says."""

    phase = Phase.SERVING
    instance_name = "m_0"

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answer: object = None

    def ask(self, operation: str, **arguments: Any) -> Any:
        self.asked.append((operation, arguments))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def host() -> Iterator[Asked]:
    asked = Asked()
    previous = process.install(asked)
    yield asked
    process.install(previous)


def test_what_is_asked_reaches_the_server(host: Asked) -> None:
    pb_utils.load_model("x")
    pb_utils.load_model(model_name="x", config="{}", files={"file:1/model.py": b"\0\xff"})
    pb_utils.unload_model("x")
    pb_utils.unload_model("x", 1)
    encoded = base64.b64encode(b"\0\xff").decode()
    assert host.asked == [
        ("model.load", {"model_name": "x", "config": "", "files": {}}),
        ("model.load", {"model_name": "x", "config": "{}", "files": {"file:1/model.py": encoded}}),
        ("model.unload", {"model_name": "x", "unload_dependents": False}),
        ("model.unload", {"model_name": "x", "unload_dependents": True}),
    ]


def test_files_that_no_message_could_carry_are_refused_and_not_sent(
    host: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loading, "LARGEST_FRAME", 100_000)
    pb_utils.load_model("x", files={"file:1/model.py": bytes(70_000)})
    host.asked.clear()
    with pytest.raises(pb_utils.TritonModelException) as refused:
        pb_utils.load_model("x", files={"file:1/model.py": bytes(40_000), "file:1/weights": bytes(40_000)})
    assert str(refused.value) == (
        "failed to load model 'x', its files and configuration are 106718 bytes in base64, expected at most 98976"
    )
    with pytest.raises(pb_utils.TritonModelException):
        pb_utils.load_model("x", config="x" * 100_000)
    assert host.asked == []


@pytest.mark.parametrize("ready", [True, False])
def test_readiness_is_what_the_server_says(host: Asked, ready: bool) -> None:
    host.answer = ready
    assert pb_utils.is_model_ready("x", "2") is ready
    assert host.asked == [("model.is_ready", {"model_name": "x", "model_version": "2"})]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("load_model", (5,)),
        ("load_model", ("x", None)),
        ("unload_model", (5,)),
        ("unload_model", ("x", None)),
        ("is_model_ready", (5,)),
        ("is_model_ready", ("x", 1)),
    ],
)
def test_arguments_of_a_wrong_type_are_a_type_error(host: Asked, function: str, arguments: tuple[Any, ...]) -> None:
    """ARGS of model_api.md."""
    with pytest.raises(TypeError, match=rf"^{function}\(\): incompatible function arguments\."):
        getattr(pb_utils, function)(*arguments)
    assert host.asked == []


def test_files_must_be_a_dictionary(host: Asked) -> None:
    text = "^failed to load model 'x', files should be a dictionary of file paths and file contents$"
    with pytest.raises(pb_utils.TritonModelException, match=text):
        pb_utils.load_model("x", files=[b""])


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"file:1/model.py": "text"}, "Object of type 'str' is not an instance of 'bytes'"),
        ({"file:1/model.py": bytearray()}, "Object of type 'bytearray' is not an instance of 'bytes'"),
        ({5: b""}, "Object of type 'int' is not an instance of 'str'"),
    ],
)
def test_files_must_be_bytes_by_name(host: Asked, files: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"^{text}$"):
        pb_utils.load_model("x", files=files)


@pytest.mark.parametrize(
    ("function", "failure"),
    [
        ("load_model", "Failed to load model"),
        ("unload_model", "Failed to unload model"),
        ("is_model_ready", "Failed to check model readiness"),
    ],
)
def test_a_refusal_of_the_server_names_the_instance(host: Asked, function: str, failure: str) -> None:
    host.answer = InferenceError(ErrorCode.UNAVAILABLE, "the server's reason")
    with pytest.raises(pb_utils.TritonModelException) as raised:
        getattr(pb_utils, function)("x")
    assert str(raised.value) == (
        f"{failure}: Failed to process the request for model 'm_0', message: the server's reason"
    )


@pytest.mark.parametrize("function", ["load_model", "unload_model", "is_model_ready"])
@pytest.mark.parametrize("phase", [Phase.AUTO_COMPLETE, Phase.FINALIZE])
def test_where_the_server_cannot_answer_it_is_not_asked(host: Asked, function: str, phase: Phase) -> None:
    """Triton hangs."""
    host.phase = phase
    with pytest.raises(pb_utils.TritonModelException, match=f"not in {phase.value}$"):
        getattr(pb_utils, function)("x")
    assert host.asked == []


def test_without_a_server_the_text_says_so() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="needs a server"):
        pb_utils.load_model("x")
