"""The models that are fuzzed, valid requests to each, and the control request."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.contract.wire_models import FAIL, IDENTITY, PARAMETERS, identity_config, tensors
from tests.harness import MODEL_REPOSITORY, write_model

Document = dict[str, Any]

VICTIM = "victim"
"""The only model that load and unload requests name; nobody else speaks of it."""

SEGMENT = "pytriton_lite_fuzz"
"""Of shared memory, which requests try to register, read and write."""

# Sends as many responses as its input says, 8 at most.
REPEAT = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                given = request.inputs()[0].as_numpy().reshape(-1)
                for n in range(max(0, min(8, int(given[0]) if given.size else 0))):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([n], np.int32))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

BATCHING = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 500 }"
SEQUENCE = """
    sequence_batching {
      max_sequence_idle_microseconds: 200000
      control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
      control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
    }
"""
SEQUENCE_CODE = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""
CLASSES = "cat\ndog\nbird\n"

_NUMBERS = {
    "FP32": "f",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT64": "Q",
    "FP64": "d",
    "INT8": "b",
    "UINT16": "H",
}


def write_fuzz_models(repository: Path) -> None:
    repository.mkdir(parents=True, exist_ok=True)
    (repository / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    for datatype in ("FP32", "INT64", "UINT8", "BOOL", "FP16"):
        config = identity_config(datatype, "-1", max_batch_size=4, more=BATCHING)
        write_model(repository, f"batch_{datatype.lower()}", IDENTITY, config)
    write_model(repository, "batch_bytes", IDENTITY, identity_config("STRING", "-1", max_batch_size=4, more=BATCHING))
    write_model(repository, "one_bytes", IDENTITY, identity_config("STRING", "1", max_batch_size=4))
    write_model(repository, "any_shape", IDENTITY, identity_config("FP32", "-1, -1"))
    write_model(repository, "fail", FAIL, identity_config("STRING", "1"))
    write_model(
        repository,
        "params",
        PARAMETERS,
        'backend: "python"\n'
        + tensors("input", ("INPUT0", "INT32", "1"))
        + tensors("output", ("OUTPUT0", "STRING", "1")),
    )
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "repeat", REPEAT, identity_config("INT32", "1", more=decoupled))
    write_model(repository, "sequence", SEQUENCE_CODE, identity_config("INT32", "1", max_batch_size=2, more=SEQUENCE))
    labelled = 'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]'
    classes = 'backend: "python"\n' + tensors("input", ("INPUT0", "FP32", "4")) + labelled
    (write_model(repository, "classes", IDENTITY, classes) / "labels.txt").write_text(CLASSES)
    write_model(repository, VICTIM, IDENTITY, identity_config("FP32", "4"))


@dataclass(frozen=True)
class Valid:
    """A request that is answered with 200, as JSON tensors."""

    model: str
    inputs: tuple[tuple[str, str, tuple[int, ...], tuple[Any, ...]], ...]
    """Of each: name, data type, shape, data."""
    parameters: Document = field(default_factory=dict)

    def document(self) -> Document:
        inputs = [
            {"name": name, "datatype": datatype, "shape": list(shape), "data": list(data)}
            for name, datatype, shape, data in self.inputs
        ]
        return {"inputs": inputs, **({"parameters": dict(self.parameters)} if self.parameters else {})}

    def binary(self) -> tuple[Document, bytes]:
        """The same with its data behind the JSON part."""
        document = self.document()
        data = b""
        for given, (_, datatype, _, values) in zip(document["inputs"], self.inputs):
            packed = pack(datatype, values)
            del given["data"]
            given["parameters"] = {"binary_data_size": len(packed)}
            data += packed
        return document, data


def pack(datatype: str, values: tuple[Any, ...]) -> bytes:
    """As raw data."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in values)
    if datatype == "BOOL":
        return bytes(values)
    return struct.pack(f"<{len(values)}{_NUMBERS[datatype]}", *values)


VALID = (
    Valid("add_sub", (("INPUT0", "FP32", (4,), (1.0, 2.0, 3.0, 4.0)), ("INPUT1", "FP32", (4,), (1.0, 2.0, 3.0, 4.0)))),
    Valid("batch_fp32", (("INPUT0", "FP32", (2, 2), (1.0, 2.0, 3.0, 4.0)),)),
    Valid("batch_int64", (("INPUT0", "INT64", (1, 3), (1, -2, 1 << 60)),)),
    Valid("batch_uint8", (("INPUT0", "UINT8", (4, 1), (0, 1, 2, 255)),)),
    Valid("batch_bool", (("INPUT0", "BOOL", (1, 2), (True, False)),)),
    Valid("batch_bytes", (("INPUT0", "BYTES", (2, 2), ("a", "", "\u00fc", "long" * 40)),)),
    Valid("one_bytes", (("INPUT0", "BYTES", (1, 1), ("a",)),)),
    Valid("any_shape", (("INPUT0", "FP32", (2, 3), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)),)),
    Valid("fail", (("INPUT0", "BYTES", (1,), ("nothing wrong",)),)),
    Valid("params", (("INPUT0", "INT32", (1,), (7,)),), {"a": 1, "b": "x", "priority": 1, "timeout": 10_000_000}),
    Valid(
        "sequence",
        (("INPUT0", "INT32", (1, 1), (7,)),),
        {"sequence_id": 5, "sequence_start": True, "sequence_end": True},
    ),
    Valid("classes", (("INPUT0", "FP32", (4,), (0.1, 0.5, 0.3, 9.0)),)),
)
REPEATING = Valid("repeat", (("INPUT0", "INT32", (1,), (3,)),))
FAILURES = ("raise", "no code", "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
            "ALREADY_EXISTS", "CANCELLED")  # fmt: skip
"""What the model ``fail`` takes for an order to fail."""


def http_request(
    method: str, path: str, body: bytes = b"", headers: tuple[tuple[str, str], ...] = (), *, framed: bool = True
) -> bytes:
    """The bytes of a request, with its Content-Length if *framed*."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if framed and (body or method == "POST"):
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def valid_http_requests() -> Iterator[bytes]:
    """Every valid request as JSON and in binary form, and one of every other kind."""
    for valid in (*VALID, REPEATING):
        yield http_request("POST", f"/v2/models/{valid.model}/infer", json.dumps(valid.document()).encode())
        document, data = valid.binary()
        document.setdefault("parameters", {})["binary_data_output"] = True
        head = json.dumps(document).encode()
        length = ("Inference-Header-Content-Length", str(len(head)))
        yield http_request("POST", f"/v2/models/{valid.model}/infer", head + data, (length,))
    for kind in ("generate", "generate_stream"):
        yield http_request("POST", f"/v2/models/repeat/{kind}", b'{"INPUT0": 1, "id": "g", "temperature": 0.5}')
    for path in ("/v2", "/v2/health/ready", "/v2/models/add_sub", "/v2/models/batch_fp32/versions/1/config",
                 "/v2/models/stats", "/v2/trace/setting", "/v2/logging", "/v2/systemsharedmemory/status"):  # fmt: skip
        yield http_request("GET", path)
    yield http_request("POST", "/v2/repository/index", b'{"ready": true}')
    yield http_request("POST", "/v2/trace/setting", b'{"trace_rate": "5"}')
    yield http_request("POST", "/v2/systemsharedmemory/region/r/register", b'{"key": "/none", "byte_size": 64}')


CONTROL = http_request("POST", "/v2/models/add_sub/infer", json.dumps(VALID[0].document()).encode())
CONTROL_ANSWER = [2.0, 4.0, 6.0, 8.0]
