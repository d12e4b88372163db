"""Send the same HTTP requests to a real Triton and to us, and print where the answers differ.

    python -m tests.differential --write-models DIR
    tritonserver --model-repository=DIR --exit-on-error=false ...
    pytriton-lite serve DIR --exit-on-error=false ...
    python tests/differential.py --peer-http HOST:PORT --ours-http HOST:PORT

Both servers serve the same models (`tests/contract/wire_models.py`), both allowing for those that fail to load. The requests
are made from a fixed seed: every one that is written down here, and ``--count`` more that take a valid request and spoil it
in one or two places. Compared are the status, the kind of the answer (JSON, binary tensors, error, empty) and its content:
the error text, or the document and the bytes behind it.

A difference for which `EXPECTED` has a reason is counted; any other is printed with the request, and the exit code is 1.
Shapes that overflow are left out: some crash Triton 2.51 or the worker of the model. So is the model without a file, for
which it waits for ever when it starts.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import http.client
import json
import random
import re
import shutil
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEED = 2
LENGTH = "Inference-Header-Content-Length"
FP32_4 = struct.pack("<4f", 1, 2, 3, 4)

Document = dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """A request: what it is about, and what goes over the wire."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What of an answer is compared."""

    status: int
    kind: str
    content: str


# Where the two may differ, searched in "STATUS KIND CONTENT": (of Triton's answer, of ours, why). What is newer than Triton
# 2.51 is marked so in the spec; the rest is in docs/compatibility.md.
EXPECTED = [
    (r'^200 json \{"extensions"', r'^200 json \{"extensions"', "only the extensions that are served are named"),
    (r"add%5Fsub' is not found|^400 error Model version not ready", r"add_sub|^200 empty", "a path is percent-decoded"),
    (r"non-boolean as boolean", r"^400 error Invalid value for 'ready'", "newer: text for the option of the index"),
    (r"^500 error failed to parse the request JSON", r"explicit model load / unload", "a load is refused unread"),
    (r"^200 json .*OUTPUT_B", r"missing required input\(s\) \['INPUT_A'\]", "a required input may not be missing"),
    (r'^200 json .*000\.0\}"', r'^200 json .*e\+1[89]\}"', "form of a large number in the parameters' JSON"),
    (r"^400 error", r"Unable to parse Inference-Header-Content-Length", "newer: texts for the header length"),
    (r"^\d+ error", r"exceed maximum size of|exceeds maximum allowed size", "newer: texts for shapes that overflow"),
    (r"already exists in request", r"^[45]00 error", "two faults: which one is found first"),
    (r"^400 error .*unexpected shape .*got \[0", r"batch size does not match", "two faults: which one is found first"),
]


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


def spoilt_requests(count: int) -> Iterator[Sent]:
    rng = random.Random(SEED)
    for model, document in VALID:
        yield infer("valid", model, document)
    for _ in range(count):
        model, valid = rng.choice(VALID)
        document = copy.deepcopy(valid)
        done = [spoil(document, rng) for _ in range(rng.choice([1, 1, 1, 2]))]
        yield infer("spoilt: " + ", ".join(done), model, document)


# ---------------------------------------------------------------------------------------------------- comparing


def ask(address: str, sent: Sent) -> Answer:
    """The answer of the server at *address*; its going away is an answer too."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(sent.method, sent.path, sent.body or None, sent.headers)
        reply = connection.getresponse()
        body = reply.read()
        encoding = reply.headers.get("Content-Encoding", "")
        if encoding:
            body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
        return _answer(reply.status, encoding, reply.headers.get(LENGTH), body)
    except (http.client.HTTPException, OSError) as error:
        return Answer(0, "no answer", type(error).__name__)
    finally:
        connection.close()


# Left out of what is compared: Triton's order of received inputs is unspecified, and it shows frames of the import machinery.
_GOT_LIST = re.compile(r"(?<=Got input\(s\) \[).*?(?=\])")
_IMPORTLIB_FRAME = re.compile(r"  <frozen importlib[^>]*>\(\d+\): \w+\\n")


def _in_order(names: re.Match[str]) -> str:
    return ",".join(sorted(names.group().split(",")))


def _answer(status: int, encoding: str, length: str | None, body: bytes) -> Answer:
    text = body[: int(length)] if length is not None else body
    try:
        document = json.loads(text)
    except ValueError:
        return Answer(status, "empty" if not body else "no JSON", repr(text[:500]))
    if isinstance(document, dict) and set(document) == {"error"}:
        return Answer(status, "error", _GOT_LIST.sub(_in_order, str(document["error"])))
    kind = "json" if length is None else "binary"
    data = b"" if length is None else body[int(length) :]
    written = _IMPORTLIB_FRAME.sub("", json.dumps(document, sort_keys=True))
    return Answer(status, f"{kind} {encoding}".strip(), f"{written} {data.hex()}".strip())


def reason(peer: Answer, ours: Answer) -> str | None:
    """Why these two may differ."""
    left, right = (f"{answer.status} {answer.kind} {answer.content}" for answer in (peer, ours))
    for theirs, of_us, why in EXPECTED:
        if re.search(theirs, left, re.DOTALL) and re.search(of_us, right, re.DOTALL):
            return why
    return None


def compare(peer: str, ours: str, count: int, show: Callable[[str], None]) -> int:
    """Ask both; returns the number of differences that nobody expected."""
    explained: Counter[str] = Counter()
    unexplained = total = 0
    for requests in (plain_requests(), written_requests(), binary_requests(), spoilt_requests(count)):
        for sent in requests:
            total += 1
            theirs, of_us = ask(peer, sent), ask(ours, sent)
            if theirs == of_us:
                continue
            why = reason(theirs, of_us)
            if why is not None:
                explained[why] += 1
                continue
            unexplained += 1
            show(f"{sent.name}: {sent.method} {sent.path} {sent.headers or ''} {sent.body[:400]!r}")
            show(f"    peer {theirs.status} {theirs.kind} {theirs.content[:600]}")
            show(f"    ours {of_us.status} {of_us.kind} {of_us.content[:600]}")
    show(f"{total} requests, {unexplained} unexpected differences, {sum(explained.values())} expected:")
    for why, times in explained.most_common():
        show(f"    {times:4d}  {why}")
    return unexplained


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the HTTP answers of two servers.")
    parser.add_argument("--peer-http", metavar="HOST:PORT", help="a real Triton")
    parser.add_argument("--ours-http", metavar="HOST:PORT")
    parser.add_argument("--count", type=int, default=200, help="how many spoilt requests (default 200)")
    parser.add_argument(
        "--write-models", type=Path, metavar="DIR", help="write the models that both must serve, and end"
    )
    arguments = parser.parse_args()
    if arguments.write_models is not None:
        from tests.contract.wire_models import write_wire_models

        write_wire_models(arguments.write_models)
        shutil.rmtree(arguments.write_models / "nofile")
        return 0
    if not arguments.peer_http or not arguments.ours_http:
        parser.error("--peer-http and --ours-http are needed")
    for address in (arguments.peer_http, arguments.ours_http):
        answer = ask(address, Sent("live", "GET", "/v2/health/live"))
        if answer.status != 200:
            parser.error(f"no live server at {address}: {answer.kind} {answer.content}")
    return 1 if compare(arguments.peer_http, arguments.ours_http, arguments.count, print) else 0


if __name__ == "__main__":
    sys.exit(main())
