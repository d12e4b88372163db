"""Send the same requests to a real Triton and to us, and print where the answers differ.

    python -m tests.differential.wire --peer-command 'tritonserver --model-repository={models} --http-port={http_port} \\
        --grpc-port={grpc_port} --metrics-port={metrics_port}' --requests 3000 --seed 1

Starts both with the same models (`tests/contract/wire_models.py` and a few more), asks, and ends both. With ``--peer-http`` and
``--ours-http``, and the same for gRPC, it asks servers that run already; ``--write-models DIR`` writes what they must serve,
and they must allow for models that fail to load.

First come the requests that are written down here, then ``--requests`` that are made from the seed: valid ones of every kind,
spoilt in one or two places, over HTTP and gRPC (`tests/differential/wire_grpc.py`). Compared are the status, the kind of the
answer (JSON, binary tensors, error, empty) and its content: the error text, or the document and the bytes behind it. What
cannot be the same, times above all, is left out of it.

A difference that `tests/differential/expected.py` explains, by a row of docs/compatibility.md, is counted; any other is
printed with the request, and the exit code is 1. Shapes that overflow are left out of HTTP: some crash Triton 2.51 or the
worker of the model. So is the model without a file, for which it waits for ever when it starts.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
import shutil
import signal
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.contract.wire_models import IDENTITY
from tests.differential.asked_peers import LENGTH, Peer, Sent, Server, Tally, ask, told
from tests.differential.wire_grpc import compare_grpc

SEED = 2
FP32_4 = struct.pack("<4f", 1, 2, 3, 4)

Document = dict[str, Any]


def infer(name: str, model: str, document: Document | bytes, data: bytes = b"", **headers: str) -> Sent:
    """An infer request; with *data* behind its JSON part there is a header that tells its length."""
    head = document if isinstance(document, bytes) else json.dumps(document).encode()
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    if data and LENGTH not in sent:
        sent[LENGTH] = str(len(head))
    return Sent(name, "POST", f"/v2/models/{model}/infer", head + data, sent)


def json_input(name: str, datatype: str, shape: list[Any], data: list[Any]) -> Document:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def binary_input(name: str, datatype: str, shape: list[Any], size: int) -> Document:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


# ---------------------------------------------------------------------------------------------------- written down


def plain_requests() -> Iterator[Sent]:
    """Everything but infer."""
    models = ("add_sub", "ident_b", "multi", "loadfail", "nope", "decoupled", "optional", "add%5Fsub", "..")
    for model in models:
        for tail in ("", "/ready", "/config", "/versions/1", "/versions/1/ready", "/versions/9", "/versions/abc/ready"):
            yield Sent("model", "GET", f"/v2/models/{model}{tail}")
    for path in (
        "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/health", "/v2/models", "/v2/models/", "/",
        "/v2/models/add_sub?x=1", "/v2//models/add_sub", "/v2/models/add_sub/versions/99999999999999999999",
        "/v2/models/add_sub/versions/001", "/v2/models/add_sub/versions/0", "/v2/models/nope/stats",
        "/v2/models/add_sub/versions/9/stats", "/metrics", "/v2/models/add_sub/infer", "/v2/repository/index",
        "/v2/repository/models/add_sub/load", "/v2/models/add_sub/versions/-1",
    ):  # fmt: skip
        yield Sent("path", "GET", path)
    for path in (
        "/v2",
        "/v2/health/live",
        "/v2/models/add_sub",
        "/v2/models/add_sub/config",
        "/v2/models/stats",
        "/nope",
    ):
        yield Sent("method", "POST", path)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        yield Sent("method", method, "/v2/models/add_sub/infer")
        yield Sent("method", method, "/v2/health/ready")
    for body in (b"", b"{}", b'{"ready":true}', b'{"ready":false}', b"[]", b'"x"', b"{", b'{"ready":1}'):
        yield Sent("index", "POST", "/v2/repository/index", body)
    yield Sent("index", "POST", "/v2/repository/foo/index")
    for action in ("load", "unload"):
        for body in (b"", b"{}", b"{"):
            yield Sent("repository", "POST", f"/v2/repository/models/add_sub/{action}", body)
        yield Sent("repository", "POST", f"/v2/repository/foo/models/add_sub/{action}")


def written_requests() -> Iterator[Sent]:
    """Infer requests whose point is not a spoilt field."""
    for text in (
        "", "{", "[]", "null", "7", '"x"', "{}", '{"inputs":null}', '{"inputs":{}}', '{"inputs":[]}', '{"inputs":[1]}',
        '{"inputs":[null]}', '{"inputs":["INPUT0"]}', '{"inputs":[{}]}', '{"inputs":[],"outputs":null}',
        '{"id":null,"inputs":[]}', '{"inputs":[],}', '{"inputs":[]} x', "\ufeff{}", "// no\n{}", '{"a" 1}', "{'a':1}",
        '{"inputs":[]', '{"inputs":[tru]}', '{"inputs":["\\ud800"]}', '{"inputs":[01]}', '{"id":"a\\u0000b","inputs":[]}',
    ):  # fmt: skip
        yield infer("JSON", "add_sub", text.encode())
    for value in (
        "NaN",
        "Inf",
        "-Inf",
        "Infinity",
        "-Infinity",
        "1e40",
        "-0.0",
        "0.1",
        "1e-50",
        "true",
        '"1"',
        "null",
        "[1]",
    ):
        text = '{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[%s]}]}' % value  # noqa: UP031
        yield infer("FP32 value", "ident_b", text.encode())
    for value in ("256", "-1", "1.0", "true", "18446744073709551615", "18446744073709551616", '"1"', "null", "[[7]]"):
        text = '{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[1],"data":[%s]}]}' % value  # noqa: UP031
        yield infer("UINT8 value", "ident_u8", text.encode())
    for value in ("true", "false", "1", "0", '"true"', "null"):
        text = '{"inputs":[{"name":"INPUT0","datatype":"BOOL","shape":[1],"data":[%s]}]}' % value  # noqa: UP031
        yield infer("BOOL value", "ident_bool", text.encode())
    for value in ('"a"', '""', '"\\u00df\\u0000"', "1", "null", '["x"]', '"\\ud83d\\ude00"'):
        text = '{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":[%s]}]}' % value  # noqa: UP031
        yield infer("BYTES value", "ident_bytes", text.encode())
    for what in ("raise", "no code", "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
                 "ALREADY_EXISTS", "CANCELLED", "nothing wrong"):  # fmt: skip
        yield infer("model error", "fail", {"id": "e", "inputs": [json_input("INPUT0", "BYTES", [1], [what])]})
    parameters: list[Document] = [
        {"a": value} for value in (1, -1, 1.5, True, "x", None, [], {}, 1 << 62, 1 << 63, 1 << 64, -(1 << 63), "")
    ]
    parameters += [{key: value} for key in ("priority", "timeout") for value in (0, 1, -1, "1", 1.5, None, True)]
    parameters += [{"sequence_id": value} for value in (0, 5, -1, "s", "", "x" * 129, None, True, 1.5)]
    parameters += [{"sequence_start": value} for value in (True, False, 1, "x", None)]
    parameters += [{"binary_data_output": value} for value in (True, False, 1, "x", None)]
    parameters += [{"triton_x": 1}, {"triton_enable_empty_final_response": True}, {"headers": "h"}, {"a": 1, "b": "x"}]
    for given in parameters:
        document = {"inputs": [json_input("INPUT0", "INT32", [1], [0])], "parameters": given}
        yield infer("parameters", "params", document)
    for given_otherwise in (None, [], 1, "x"):
        document = {"inputs": [json_input("INPUT0", "INT32", [1], [0])], "parameters": given_otherwise}
        yield infer("parameters", "params", document)
    for names in ([], ["INPUT_A"], ["INPUT_A", "INPUT_C"], ["INPUT_B", "INPUT_A"], ["INPUT_B"], ["INPUT_A", "X"],
                  ["INPUT_A", "INPUT_B", "INPUT_C", "X"]):  # fmt: skip
        yield infer("optional", "optional", {"inputs": [json_input(name, "FP32", [1], [1]) for name in names]})
    yield infer("other output", "other_output", {"inputs": [json_input("INPUT0", "INT32", [1], [0])]})
    yield infer("decoupled", "decoupled", {"inputs": [json_input("INPUT0", "INT32", [1], [0])]})
    for model in (
        "nope",
        "loadfail",
        "loadfail/versions/1",
        "multi/versions/1",
        "multi/versions/2",
        "multi/versions/003",
    ):
        yield infer("version", model, {"inputs": [json_input("INPUT0", "INT32", [1], [0])]})


def two_binary(**fields: Any) -> Document:
    return {"inputs": [binary_input(f"INPUT{at}", "FP32", [4], 16) for at in (0, 1)], **fields}


def binary_requests() -> Iterator[Sent]:
    """The binary extension, raw bodies, compression."""
    data = FP32_4 * 2
    both: list[Document] = [{"name": f"OUTPUT{at}"} for at in (0, 1)]
    for outputs in ([], both[:1], both, [{**both[0], "parameters": {"binary_data": True}}, both[1]],
                    [{**both[1], "parameters": {"binary_data": True}}], [{**both[0], "parameters": {"binary_data": 1}}],
                    [{**both[0], "parameters": {"classification": 0}}], [{"name": 1}], [{}], ["OUTPUT0"], [{"name": "NO"}],
                    [{**both[0], "parameters": {"shared_memory_region": "none", "shared_memory_byte_size": 16}}],
                    [{**both[0], "parameters": {"other": None}}]):  # fmt: skip
        for default in (True, False):
            parameters = {"binary_data_output": default}
            yield infer("outputs", "add_sub", two_binary(outputs=outputs, parameters=parameters), data)
    for cut in (data[:-4], data + b"xx", b"", data[:16]):
        yield infer("binary size", "add_sub", two_binary(), cut, **{LENGTH: str(len(json.dumps(two_binary())))})
    for value in ("0", "1", "10", "-1", "99999", "12abc", "", " 12", "2147483648", "99999999999"):
        yield infer("header length", "add_sub", two_binary(), data, **{LENGTH: value})
    for size in (0, 12, 17, -1, 16.0, "16", None, True):
        document = two_binary()
        document["inputs"][0]["parameters"]["binary_data_size"] = size
        yield infer("binary_data_size", "add_sub", document, data)
    document = two_binary()
    document["inputs"][0]["data"] = [1, 2, 3, 4]
    yield infer("two sources", "add_sub", document, data)
    for region in ("nope", 1, None):
        document = two_binary()
        document["inputs"][0]["parameters"] = {"shared_memory_region": region, "shared_memory_byte_size": 16}
        yield infer("region", "add_sub", document, FP32_4)
    empty = {"inputs": [binary_input("INPUT0", "UINT8", [0], 0)], "parameters": {"binary_data_output": True}}
    yield infer("no bytes", "ident_u8", empty)
    fp16 = {"inputs": [binary_input("INPUT0", "FP16", [2], 4)]}
    yield infer("FP16", "ident_fp16", fp16, b"\0\x3c\0\x40")
    yield infer("FP16", "ident_fp16", {**fp16, "parameters": {"binary_data_output": True}}, b"\0\x3c\0\x40")
    yield infer("FP16", "ident_fp16", {"inputs": [json_input("INPUT0", "FP16", [1], [1])]})
    yield infer("BOOL bytes", "ident_bool", {"inputs": [binary_input("INPUT0", "BOOL", [3], 3)]}, b"\0\1\2")
    strings = [b"\1\0\0\0a", b"\3\0\0\0\xff\xfe\0", b"", b"\1\0", b"\x0a\0\0\0abc", b"\1\0\0\0a\1\0\0\0b", b"\0\0\0\0"]
    for string in strings:
        for shape in ([1], [2], [0]):
            document = {"inputs": [binary_input("INPUT0", "BYTES", shape, len(string))]}
            head = json.dumps(document)
            yield infer("BYTES", "ident_bytes", head.encode(), string, **{LENGTH: str(len(head))})
    for model, body in (("ident_b", FP32_4), ("ident_b", b""), ("ident_b", b"abc"), ("ident_fixed", FP32_4 + b"x"),
                        ("one_bytes", b"hello"), ("one_bytes", b""), ("ident_bytes", b"x"), ("ident_2d", FP32_4),
                        ("add_sub", FP32_4), ("ident_u8", b"\1\2")):  # fmt: skip
        yield infer("raw", model, body, **{LENGTH: "0"})
    head = json.dumps(two_binary()).encode()
    packed = {"gzip": gzip.compress(head + data), "deflate": zlib.compress(head + data)}
    for encoding, body in (*packed.items(), ("identity", head + data), ("GZIP", packed["gzip"]), ("br", b"x"),
                           ("deflate", packed["gzip"]), ("gzip", b""), ("", head + data)):  # fmt: skip
        yield infer("compressed", "add_sub", body, **{LENGTH: str(len(head)), "Content-Encoding": encoding})
    for accept in ("gzip", "deflate", "gzip, deflate, br", "gzip;q=0.5, deflate;q=0.8", "gzip;q=0", "*", "GZIP", "identity",
                   "gzip;q=x", "br, deflate;q=0.1", ""):  # fmt: skip
        yield infer("accept", "add_sub", two_binary(), data, **{"Accept-Encoding": accept})


# ---------------------------------------------------------------------------------------------------- spoilt


VALID: list[tuple[str, Document]] = [
    ("add_sub", {"inputs": [json_input(f"INPUT{at}", "FP32", [4], [1, 2, 3, 4]) for at in (0, 1)]}),
    ("ident_b", {"inputs": [json_input("INPUT0", "FP32", [2, 2], [1, 2, 3, 4])]}),
    ("ident_fixed", {"inputs": [json_input("INPUT0", "FP32", [1, 4], [[1, 2], [3, 4]])]}),
    ("ident_bytes", {"inputs": [json_input("INPUT0", "BYTES", [2], ["a", "b"])]}),
    ("one_bytes", {"inputs": [json_input("INPUT0", "BYTES", [1, 1], ["a"])]}),
    ("ident_u8", {"inputs": [json_input("INPUT0", "UINT8", [3], [1, 2, 3])]}),
    ("ident_bool", {"inputs": [json_input("INPUT0", "BOOL", [2], [True, False])]}),
    ("ident_2d", {"inputs": [json_input("INPUT0", "FP32", [2, 1], [1, 2])]}),
    ("two_inputs", {"inputs": [json_input(f"INPUT{at}", "FP32", [1, 2], [1, 2]) for at in (0, 1)]}),
    ("multi", {"inputs": [json_input("INPUT0", "INT32", [1], [1])]}),
]
ODD: list[Any] = [None, 0, -1, 1.5, "x", "", True, [], {}, [1], [[1, 2], [3]], ["a"], {"a": 1}, 1 << 31]
DATATYPES = ["FP32", "INT32", "UINT8", "BOOL", "BYTES", "FP16", "BF16", "FP64", "INT64", "fp32", "FOO", ""]
SHAPES: list[list[Any]] = [
    [], [0], [1], [4], [1, 4], [4, 1], [2, 2], [5, 1], [0, 4], [1, 0], [1, 1, 4], [-1], [4.0], ["4"], [3], [None], [[4]],
]  # fmt: skip


def spoil(document: Document, rng: random.Random) -> str:
    """Change one thing of *document*; says what."""
    inputs = document.get("inputs")
    given = rng.choice(inputs) if isinstance(inputs, list) and inputs else None
    if not isinstance(given, dict):
        document["id"] = rng.choice(ODD)
        return "id"
    what = rng.choice(["drop", "odd", "datatype", "shape", "data", "name", "again", "fewer", "more", "id", "outputs"])
    if what == "drop":
        given.pop(rng.choice(["name", "datatype", "shape", "data"]), None)
    elif what == "odd":
        given[rng.choice(["name", "datatype", "shape", "data", "parameters"])] = rng.choice(ODD)
    elif what == "datatype":
        given["datatype"] = rng.choice(DATATYPES)
    elif what == "shape":
        given["shape"] = copy.deepcopy(rng.choice(SHAPES))
    elif what == "data" and isinstance(given.get("data"), list):
        given["data"] = [*given["data"], rng.choice(ODD)][rng.choice([0, 1]) :]
    elif what == "name":
        given["name"] = rng.choice(["FOO", "", "INPUT1", "INPUT0 ", "OUTPUT0"])
    elif what == "again":
        document["inputs"].append(copy.deepcopy(given))
    elif what == "fewer":
        document["inputs"].remove(given)
    elif what == "more":
        document["inputs"].append(json_input("FOO", "FP32", [1], [1]))
    elif what == "id":
        document["id"] = rng.choice([*ODD, "an id", "ü"])
    elif what == "outputs":
        document["outputs"] = rng.choice(
            [[], None, [{"name": "OUTPUT0"}], [{"name": "FOO"}], [{"name": 1}], [1], {}, "x"]
        )
    return what


def spoilt_requests(count: int, rng: random.Random) -> Iterator[Sent]:
    for model, document in VALID:
        yield infer("valid", model, document)
    for _ in range(count):
        model, valid = rng.choice(VALID)
        document = copy.deepcopy(valid)
        done = [spoil(document, rng) for _ in range(rng.choice([1, 1, 1, 2]))]
        yield infer("spoilt: " + ", ".join(done), model, document)


# ---------------------------------------------------------------------------------------------------- other routes


def class_requests() -> Iterator[Sent]:
    """Classification (HTTP spec, section 10)."""
    one = json_input("INPUT0", "FP32", [4], [0.5, -1, 7.25, 3])
    rows = json_input("INPUT0", "FP32", [2, 3], [1, 2, 3, 9.5, 8, 7])
    for model, given in (("classes", one), ("classes_b", rows)):
        for wanted in (0, 1, 2, 3, 100, 1 << 32, -1, "2", True, None, 1.5):
            for binary in ({}, {"binary_data": True}):
                output = {"name": "OUTPUT0", "parameters": {"classification": wanted, **binary}}
                yield infer("classification", model, {"inputs": [given], "outputs": [output]})
    for model, datatype, data in (("ident_u8", "UINT8", [3, 9, 1]), ("ident_bool", "BOOL", [True, False])):
        output = {"name": "OUTPUT0", "parameters": {"classification": 2}}
        document = {"inputs": [json_input("INPUT0", datatype, [len(data)], data)], "outputs": [output]}
        yield infer("classification", model, document)


TRACE = "/v2/trace/setting"
LOGGING = "/v2/logging"
SETTINGS: list[tuple[str, Document]] = [
    *((TRACE, {key: value}) for key in ("trace_rate", "trace_count", "log_frequency")
      for value in ("5", "0", "-1", "-2", "x", "", "99999999999", 5, None, [], True)),
    *((TRACE, {"trace_level": value})
      for value in (["OFF"], [], None, "OFF", ["OFF", "TIMESTAMPS"], ["TIMESTAMPS"], ["NO"], [1])),
    (TRACE, {"trace_file": "x"}), (TRACE, {"trace_mode": "triton"}), (TRACE, {"other": 1}), (TRACE, {}),
    ("/v2/models/add_sub/trace/setting", {"trace_rate": "7"}), ("/v2/models/add_sub/trace/setting", {"trace_rate": None}),
    ("/v2/models/nope/trace/setting", {"trace_rate": "7"}), ("/v2/models/add_sub/versions/1/trace/setting", {}),
    *((LOGGING, {key: value}) for key in ("log_info", "log_warning") for value in (True, 1, "x", None)),
    *((LOGGING, {"log_verbose_level": value}) for value in (0, -1, "1", True, None, 1.5)),
    *((LOGGING, {"log_format": value}) for value in ("default", "x", 1, None)),
    (LOGGING, {"log_file": "x"}), (LOGGING, {"log_file": None}), (LOGGING, {"other": 1}), (LOGGING, {}),
]  # fmt: skip


def setting_requests() -> Iterator[Sent]:
    """Trace and log settings, each looked at after it was changed, and put back in the end (HTTP spec, section 14)."""
    for path in (TRACE, LOGGING, "/v2/models/add_sub/trace/setting", "/v2/models/nope/trace/setting"):
        yield Sent("settings", "GET", path)
        yield Sent("settings", "PUT", path)
        for body in (b"", b"{", b"[]", b"null"):
            yield Sent("settings", "POST", path, body)
    for path, document in SETTINGS:
        yield Sent("settings", "POST", path, json.dumps(document).encode())
        if not {"-1", "-2"} & set(map(str, document.values())):
            yield Sent("settings", "GET", path)
        # What one of them takes and the other does not would show in all that comes behind it.
        for key in set(document) & {"trace_rate", "trace_count", "log_frequency", "trace_level"}:
            yield Sent("settings", "POST", TRACE, json.dumps({key: None}).encode())


SEGMENT = "differential_segment"
REGION = "/v2/systemsharedmemory/region/r"


@contextmanager
def regions() -> Iterator[None]:
    """A segment that both may register: FP32 1, 2, 3, 4 and room for as much behind it."""
    segment = SharedMemory(SEGMENT, create=True, size=64)
    try:
        segment.buf[:16] = FP32_4
        yield
    finally:
        segment.close()
        segment.unlink()


def region_requests() -> Iterator[Sent]:
    """Register, status, infer and unregister (HTTP spec, section 12). Offsets of regions are left out: 2.51 adds them twice."""
    status = Sent("region", "GET", "/v2/systemsharedmemory/status")
    good: Document = {"key": "/" + SEGMENT, "offset": 0, "byte_size": 64}
    yield status
    for body in (b"", b"{", b"[]", b"{}"):
        yield Sent("region", "POST", f"{REGION}/register", body)
        yield Sent("region", "POST", "/v2/systemsharedmemory/register", body)
        yield Sent("region", "POST", "/v2/cudasharedmemory/register", body)
    for key in ("key", "byte_size", "offset"):
        for value in (None, "x", 1, -1, 1.5, [], True, "/none_of_that_name", 0, 65, 1 << 40):
            yield Sent("region", "POST", f"{REGION}/register", json.dumps({**good, key: value}).encode())
            yield Sent("region", "POST", f"{REGION}/unregister")
    for kind in ("system", "cuda"):
        for path in ("status", "region/nope/status", "region/r/status"):
            yield Sent("region", "GET", f"/v2/{kind}sharedmemory/{path}")
        yield Sent("region", "POST", f"/v2/{kind}sharedmemory/region/nope/unregister")
    yield Sent("region", "POST", f"{REGION}/register", json.dumps(good).encode())
    yield Sent("region", "POST", f"{REGION}/register", json.dumps(good).encode())
    yield status
    yield Sent("region", "GET", f"{REGION}/status")
    yield Sent("region", "GET", "/v2/cudasharedmemory/region/r/status")
    for size, offset in (
        (16, None),
        (16, 0),
        (16, 4),
        (12, 0),
        (0, 0),
        (16, 64),
        (16, 49),
        (1 << 40, 0),
        ("16", 0),
        (None, 0),
    ):
        given: Document = {"shared_memory_region": "r", "shared_memory_byte_size": size}
        if offset is not None:
            given["shared_memory_offset"] = offset
        other = json_input("INPUT1", "FP32", [4], [1, 2, 3, 4])
        inputs = [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "parameters": given}, other]
        yield infer("input in a region", "add_sub", {"inputs": inputs})
        output = {"name": "OUTPUT0", "parameters": {**given, "shared_memory_offset": 32 if offset == 0 else offset}}
        both = [json_input(f"INPUT{at}", "FP32", [4], [1, 2, 3, 4]) for at in (0, 1)]
        if offset is not None:
            yield infer("output in a region", "add_sub", {"inputs": both, "outputs": [output]})
    yield Sent("region", "POST", "/v2/systemsharedmemory/unregister")
    yield status


def generate(model: str, document: Document | bytes, kind: str = "generate", **headers: str) -> Sent:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Sent(kind, "POST", f"/v2/models/{model}/{kind}", body, sent)


def generate_requests() -> Iterator[Sent]:
    """The generate extension (HTTP spec, section 15)."""
    for kind in ("generate", "generate_stream"):
        for number in (0, 1, 2, [1], [3], [1, 2], [], [[1]], "1", None, True, 1.5, {}):
            yield generate("repeat", {"INPUT0": number, "id": "g"}, kind)
        for body in (b"", b"{", b"[]", b"null", b"7", b"{}"):
            yield generate("repeat", body, kind)
        for model in ("nope", "loadfail", "multi/versions/1", "multi/versions/9", "add_sub"):
            yield generate(model, {"INPUT0": 1}, kind)
        nested = ({"INPUT0": 1}, {"x": None}, {"a": "b"}, 1)
        for extra in ({"id": 1}, {"x": None}, {"x": []}, {"x": {}}, {"sequence_id": 5, "priority": "x"}):
            yield generate("params", {"INPUT0": 1, **extra}, kind)
        for parameters in nested:
            yield generate("params", {"INPUT0": 1, "parameters": parameters}, kind)
        for value in ("hello", ["hello"], [["hello"]], ["a", "b"], 1, "raise", "NOT_FOUND", ""):
            yield generate("fail", {"INPUT0": value}, kind)
        yield generate("ident_2d", {"INPUT0": [1, 2, 3, 4]}, kind)
        yield generate("ident_fp16", {"INPUT0": [1]}, kind)
        yield generate("ident_b", {"INPUT0": [1, 2, 3]}, kind)
        yield generate("ident_bytes", {"INPUT0": ["a", "\u00fc"]}, kind)
        yield generate("ident_bool", {"INPUT0": [True, 1]}, kind)
        yield generate("repeat", {"INPUT0": 1}, kind, Content_Encoding="gzip")
        yield generate("repeat", {"INPUT0": 1}, kind, Content_Encoding="identity")
        yield Sent(kind, "GET", f"/v2/models/repeat/{kind}")


def statistics_requests() -> Iterator[Sent]:
    """Their form; times and counts are left out of what is compared."""
    for path in ("/v2/models/stats", "/v2/models/add_sub/stats", "/v2/models/repeat/versions/1/stats"):
        yield Sent("statistics", "GET", path)
    yield Sent("index", "POST", "/v2/repository/index", b'{"ready":true}')


def spoilt_others(count: int, rng: random.Random) -> Iterator[Sent]:
    """Bodies of generate, of settings and of regions with a member or two that are odd."""
    bodies: list[tuple[str, Document]] = [
        ("/v2/models/repeat/generate", {"INPUT0": 1}), ("/v2/models/repeat/generate_stream", {"INPUT0": 2}),
        ("/v2/models/fail/generate", {"INPUT0": "x", "temperature": 1.5}),
        ("/v2/models/params/generate", {"INPUT0": 1, "p": "q"}),
        ("/v2/models/add_sub/generate", {"INPUT0": [1, 2, 3, 4], "INPUT1": [1, 2, 3, 4]}),
        (TRACE, {"trace_rate": "5", "trace_count": "3"}), (LOGGING, {"log_info": True, "log_format": "default"}),
        (f"{REGION}/register", {"key": "/" + SEGMENT, "byte_size": 64}),
    ]  # fmt: skip
    for _ in range(count):
        path, valid = rng.choice(bodies)
        document: Document = copy.deepcopy(valid)
        for _ in range(rng.choice([0, 1, 1, 2])):
            key = rng.choice([*document, "id", "parameters", "x"])
            if rng.random() < 0.2:
                document.pop(key, None)
            else:
                document[key] = rng.choice([odd for odd in ODD if not (path == LOGGING and odd is False)])
        yield Sent("spoilt", "POST", path, json.dumps(document).encode())
        if path == f"{REGION}/register":
            yield Sent("spoilt", "POST", f"{REGION}/unregister")
        elif path in (TRACE, LOGGING):
            yield Sent("spoilt", "GET", path)


# ---------------------------------------------------------------------------------------------------- comparing


def compare_http(peer: str, ours: str, requests: Iterable[Sent], tally: Tally) -> None:
    for sent in requests:
        theirs, of_us = ask(peer, sent), ask(ours, sent)
        asked = f"{sent.name}: {sent.method} {sent.path} {sent.headers or ''} {sent.body!r}"
        tally.note(asked, told(theirs), told(of_us))


def write_models(folder: Path) -> None:
    """What both serve."""
    from tests.contract.wire_models import tensors, write_wire_models
    from tests.fuzz.fuzz_models import REPEAT, identity_config
    from tests.harness import write_model

    write_wire_models(folder)
    shutil.rmtree(folder / "nofile")
    # A link to a model of this checkout, whose code may need what the peer's interpreter does not have.
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(folder, "repeat", REPEAT, identity_config("INT32", "1", more=decoupled))
    labels = "cat\ndog\nbird\n"
    for name, batch, dims in (("classes", 0, "4"), ("classes_b", 4, "3")):
        config = f'backend: "python" max_batch_size: {batch}\n' + tensors("input", ("INPUT0", "FP32", dims))
        config += f'output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ {dims} ] label_filename: "labels.txt" }}'
        (write_model(folder, name, IDENTITY, config) / "labels.txt").write_text(labels)


@contextmanager
def both_started(command: str, port: int) -> Iterator[tuple[Peer, Server]]:
    """The peer, by its command, and ours, with the same models; both are ended behind."""
    from tests.harness import RunningServer

    with TemporaryDirectory(prefix="differential-") as folder:
        models = Path(folder) / "models"
        write_models(models)
        flags = ("--exit-on-error=false", "--strict-readiness=true", "--allow-client-shm=true")
        with Peer(command, models, port) as peer, RunningServer(models, flags=flags) as ours:
            yield peer, Server(ours.http_url, ours.grpc_url)


def compare(peer: Server, ours: Server, count: int, seed: int, process: Peer | None = None) -> Tally:
    """Ask both everything; *process* is the peer's, where it is ours to start again."""
    tally = Tally(peer=process)
    rng = random.Random(seed)
    with regions():
        written = [plain_requests(), written_requests(), binary_requests(), class_requests(), setting_requests()]
        written += [region_requests(), generate_requests(), statistics_requests()]
        for requests in written:
            compare_http(peer.http, ours.http, requests, tally)
        compare_http(peer.http, ours.http, spoilt_requests(count // 2, rng), tally)
        compare_http(peer.http, ours.http, spoilt_others(count // 6, rng), tally)
        compare_grpc(peer.grpc, ours.grpc, count - count // 2 - count // 6, rng, tally.note)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the answers of two servers.")
    parser.add_argument(
        "--peer-command", help="starts a Triton; {models}, {http_port}, {grpc_port} and {metrics_port} are filled in"
    )
    parser.add_argument("--peer-port", type=int, default=18500, help="its first; two more follow (default 18500)")
    for whose, of_whom in (("peer", "a Triton that runs already"), ("ours", "one of this project")):
        for kind in ("http", "grpc"):
            parser.add_argument(f"--{whose}-{kind}", metavar="HOST:PORT", help=of_whom)
    parser.add_argument("--requests", type=int, default=1000, help="how many made from the seed (default 1000)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--write-models", type=Path, metavar="DIR", help="write the models that both must serve, and end"
    )
    given = parser.parse_args()
    if given.write_models is not None:
        write_models(given.write_models)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers end with us
    if given.peer_command:
        with both_started(given.peer_command, given.peer_port) as (process, ours):
            tally = compare(process.server, ours, given.requests, given.seed, process)
    elif given.peer_http and given.ours_http and given.peer_grpc and given.ours_grpc:
        servers = (Server(given.peer_http, given.peer_grpc), Server(given.ours_http, given.ours_grpc))
        tally = compare(*servers, given.requests, given.seed)
    else:
        parser.error("--peer-command, or --peer-http, --peer-grpc, --ours-http and --ours-grpc, are needed")
    tally.show(print)
    return 1 if tally.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
