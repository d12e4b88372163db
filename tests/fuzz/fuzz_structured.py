"""Requests that know what they are: valid ones with some fields spoilt, made by hypothesis, which shrinks what it finds."""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from typing import Any

from hypothesis import strategies as st

from pytriton_lite.proto import grpc_service_pb as pb
from tests.fuzz.fuzz_models import FAILURES, REPEATING, SEGMENT, VALID, VICTIM, Document, http_request, pack
from tests.fuzz.fuzz_wire import Case, Ending, data_frames, unary_call

LENGTH = "Inference-Header-Content-Length"
SERVICE = "/inference.GRPCInferenceService/"
MODELS = [*(valid.model for valid in VALID), "repeat", "batch_fp16", "nope", ""]
DATATYPES = ["FP32", "INT32", "INT64", "UINT8", "BOOL", "BYTES", "FP16", "BF16", "FP64", "UINT64", "fp32", "FOO", ""]
PARAMETERS = ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "triton_x",
              "triton_enable_empty_final_response", "headers", "a", "", "binary_data_size", "classification",
              "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "binary_data"]  # fmt: skip
KEYS = ["id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", *PARAMETERS]

numbers = st.sampled_from(
    [0, 1, -1, 2, 4, 5, 16, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64]
)
texts = st.one_of(
    st.sampled_from(
        ["", "x", "INPUT0", "OUTPUT0", "\u00fc", "a\0b", "\U0001f600", "x" * 129, "../../x", "%s", "\ud800"]
    ),
    st.text(max_size=8),
)
leaves = st.one_of(
    st.none(), st.booleans(), numbers, texts, st.sampled_from([1.5, -0.0, 1e40, float("nan"), float("-inf"), 4.0])
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(KEYS), texts), inner, max_size=3)
    ),
    max_leaves=6,
)
shapes = st.lists(numbers, max_size=4)


@st.composite
def spoilt(draw: st.DrawFn, valid: Any) -> Any:
    """A copy of *valid* in which up to three nodes are replaced, left out, renamed or doubled."""
    document = copy.deepcopy(valid)
    for _ in range(draw(st.integers(0, 3))):
        nodes = list(_nodes(document))
        if not nodes:
            return draw(values)
        place, key = draw(st.sampled_from(nodes))
        kind = draw(st.sampled_from(["replace", "replace", "drop", "rename", "again", "wrap"]))
        if kind == "replace":
            place[key] = draw(_replacement(key))
        elif kind == "drop":
            del place[key]
        elif kind == "wrap":
            place[key] = [place[key]]
        elif isinstance(place, list):
            place.insert(key, copy.deepcopy(place[key]))
        else:
            place[draw(st.sampled_from(KEYS))] = place.pop(key) if kind == "rename" else copy.deepcopy(place[key])
    return document


def _replacement(key: object) -> st.SearchStrategy[Any]:
    known: dict[object, st.SearchStrategy[Any]] = {
        "shape": shapes,
        "datatype": st.sampled_from(DATATYPES),
        "name": texts,
        "parameters": st.dictionaries(st.sampled_from(PARAMETERS), leaves, max_size=4),
        "outputs": st.lists(st.fixed_dictionaries({"name": texts, "parameters": values}), max_size=3),
        "data": st.lists(leaves, max_size=6),
    }
    return st.one_of(known[key], values) if key in known else values


def _nodes(document: Any) -> Any:
    """Every (container, key) in it."""
    if isinstance(document, dict):
        pairs: list[tuple[Any, Any]] = list(document.items())
    elif isinstance(document, list):
        pairs = list(enumerate(document))
    else:
        return
    for key, value in pairs:
        yield document, key
        yield from _nodes(value)


def dumps(document: Any) -> bytes:
    """As JSON, with whatever bare words and lone surrogates it has."""
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


# ------------------------------------------------------------------------------------------------------------ HTTP


@st.composite
def infer_documents(draw: st.DrawFn) -> tuple[str, bytes, bytes]:
    """Model, JSON part and what stands behind it."""
    valid = draw(st.sampled_from([*VALID, REPEATING]))
    model = valid.model if draw(st.integers(0, 19)) else draw(st.sampled_from(MODELS))
    data = b""
    if not draw(st.integers(0, 9)):
        document: Document = valid.document()
        given = document["inputs"][0]
        del given["data"]
        given["parameters"] = {"shared_memory_region": "r", "shared_memory_byte_size": draw(numbers)}
    elif model == "fail" and draw(st.booleans()):
        document = {
            "inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": [draw(st.sampled_from(FAILURES))]}]
        }
    elif draw(st.booleans()):
        document = valid.document()
    else:
        document, data = valid.binary()
        if not draw(st.integers(0, 3)):
            data = draw(st.one_of(st.just(data[:-1]), st.just(data + b"x"), st.binary(max_size=40), st.just(b"")))
    if draw(st.booleans()):
        document["outputs"] = [{"name": "OUTPUT0", "parameters": draw(output_parameters)}]
    if draw(st.booleans()):
        document["id"] = draw(texts)
    return model, dumps(draw(spoilt(document))), data


output_parameters = st.fixed_dictionaries(
    {},
    optional={
        "binary_data": st.booleans(),
        "classification": numbers,
        "shared_memory_region": st.one_of(st.just("r"), texts),
        "shared_memory_byte_size": numbers,
        "shared_memory_offset": numbers,
    },
)
header_lists = st.lists(
    st.one_of(
        st.tuples(st.just("Content-Type"), st.sampled_from(["application/json", "text/plain", "application/octet-stream"])),
        st.tuples(st.just("Accept-Encoding"), st.sampled_from(["gzip", "deflate", "gzip;q=0, *", "br, gzip;q=x", "identity"])),
        st.tuples(st.just("Expect"), st.just("100-continue")),
        st.tuples(st.just("Connection"), st.sampled_from(["close", "keep-alive", "Upgrade", "x"])),
        st.tuples(st.just("Upgrade"), st.sampled_from(["h2c", "websocket"])),
        st.tuples(st.just("traceparent"), st.sampled_from(["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x"])),
        st.tuples(st.just("endpoint-load-metrics-format"), st.sampled_from(["json", "text", "x"])),
        st.tuples(st.sampled_from(["X-A", "triton-x", "sequence_id"]), st.sampled_from(["", "a", "\u00fc", "1" * 300])),
    ),
    max_size=2,
)  # fmt: skip
versions = st.sampled_from(["", "", "", "", "/versions/1", "/versions/1", "/versions/01", "/versions/9", "/versions/x",
                            "/versions/-1", "/versions/99999999999999999999"])  # fmt: skip


@st.composite
def infer_cases(draw: st.DrawFn) -> Case:
    model, head, data = draw(infer_documents())
    headers = draw(header_lists)
    length = str(len(head)) if data else None
    if not draw(st.integers(0, 9)):
        odd = [None, "", "0", "-1", "1", "abc", "12abc", str(len(head) + 1), "99999999999", str(len(head + data)), " 7"]
        length = draw(st.sampled_from(odd))
    if length is not None:
        headers = [*headers, (LENGTH, length)]
    body = head + data
    encoding = draw(st.sampled_from([None] * 12 + ["gzip", "deflate", "identity", "br", "GZIP", ""]))
    if encoding is not None:
        headers = [*headers, ("Content-Encoding", encoding)]
        if draw(st.integers(0, 3)):
            body = gzip.compress(body) if encoding.lower() == "gzip" else zlib.compress(body)
    path = f"/v2/models/{model}{draw(versions)}/infer"
    return _http_case(http_request("POST", path, body, tuple(headers)), model)


@st.composite
def generate_cases(draw: st.DrawFn) -> Case:
    valid = draw(st.sampled_from([*VALID, REPEATING, REPEATING, REPEATING]))
    document: Document = {name: list(data) for name, _, _, data in valid.inputs}
    document |= draw(st.dictionaries(st.sampled_from([*PARAMETERS, "id", "parameters"]), values, max_size=2))
    body = dumps(draw(spoilt(document)))
    path = f"/v2/models/{valid.model}{draw(versions)}/{draw(st.sampled_from(['generate', 'generate_stream']))}"
    headers = [(name, value) for name, value in draw(header_lists)]
    if not draw(st.integers(0, 9)):
        headers.append(("Content-Encoding", draw(st.sampled_from(["identity", "gzip", "x"]))))
    return _http_case(http_request("POST", path, body, tuple(headers)))


SETTINGS: list[tuple[str, Any]] = [
    (
        "/v2/trace/setting",
        {"trace_level": ["TIMESTAMPS"], "trace_rate": "5", "trace_count": "-1", "log_frequency": "0"},
    ),
    ("/v2/models/add_sub/trace/setting", {"trace_level": ["OFF"], "trace_rate": None, "trace_file": None}),
    ("/v2/models/nope/trace/setting", {"trace_rate": "1"}),
    ("/v2/logging", {"log_info": True, "log_warning": True, "log_verbose_level": 0, "log_format": "default"}),
    ("/v2/systemsharedmemory/region/r/register", {"key": "/" + SEGMENT, "offset": 0, "byte_size": 64}),
    ("/v2/systemsharedmemory/register", {"key": "/" + SEGMENT, "byte_size": 64}),
    ("/v2/systemsharedmemory/region/r/unregister", {}),
    ("/v2/systemsharedmemory/unregister", {}),
    ("/v2/cudasharedmemory/region/r/register", {"raw_handle": {"b64": "QUFB"}, "device_id": 0, "byte_size": 64}),
    ("/v2/cudasharedmemory/region/r/unregister", {}),
    ("/v2/repository/index", {"ready": True}),
    ("/v2/repository/r/index", {}),
    ("/v2/repository/r/models/victim/load", {}),
    ("/v2/repository/models/nope/load", {"parameters": {"config": "{}", "file:1/model.py": "eA=="}}),
    ("/v2/repository/models/nope/unload", {"parameters": {"unload_dependents": True}}),
    ("/v2/repository/models/../load", {"parameters": {"config": "{}"}}),
]
"""What settings and administration take; loading the victim is a strategy of its own, because each takes long."""


@st.composite
def setting_cases(draw: st.DrawFn) -> Case:
    path, document = draw(st.sampled_from(SETTINGS))
    document = draw(spoilt(document))
    if isinstance(document, dict):
        document.pop("log_error", None)  # the log is looked through for faults
        if "log_verbose_level" in document and document["log_verbose_level"] != 0:
            document["log_verbose_level"] = draw(st.sampled_from([1, -1, "1", None, 1.5]))
    body = dumps(document) if draw(st.integers(0, 9)) else draw(st.sampled_from([b"", b"{", b"[]", b"null", b"\xff"]))
    return _http_case(http_request("POST", path, body))


@st.composite
def load_cases(draw: st.DrawFn) -> Case:
    """Load and unload of the one model that may go."""
    document: Document = {"parameters": {}}
    config = {"name": VICTIM, "backend": "python", "max_batch_size": 3}
    if draw(st.booleans()):
        document["parameters"]["config"] = json.dumps(draw(spoilt(config)))
    if not draw(st.integers(0, 3)):
        name = draw(
            st.sampled_from(
                ["1/model.py", "../x", "/x", "1/../../x", "1/" + "d/" * 40 + "x", "", ".", "1/\0", "x" * 300]
            )
        )
        document["parameters"][f"file:{name}"] = draw(st.sampled_from(["", "eA==", "!", "cGFzcw=="]))
    action = draw(st.sampled_from(["load", "unload"]))
    return _http_case(http_request("POST", f"/v2/repository/models/{VICTIM}/{action}", dumps(draw(spoilt(document)))))


@st.composite
def plain_cases(draw: st.DrawFn) -> Case:
    """Any method on any path."""
    parts = st.sampled_from(["v2", "models", "add_sub", "versions", "1", "9", "x", "stats", "config", "ready", "health",
                             "live", "infer", "generate", "generate_stream", "repository", "index", "load", "trace",
                             "setting", "logging", "systemsharedmemory", "cudasharedmemory", "region", "r", "register",
                             "status", "unregister", "metrics", "openapi.json", "docs", "", "..", ".", "%2e%2e", "%2F",
                             "a%5Fb", "%", "%zz", "%ff", "%00", "\u00fc"])  # fmt: skip
    known = ["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/add_sub/stats",
             "/v2/models/batch_fp32/config", "/v2/models/add_sub/versions/1/ready", "/v2/logging", "/v2/trace/setting",
             "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/r/status", "/openapi.json",
             "/v2/models/add_sub/versions/1", "/v2/models/add_sub/trace/setting"]  # fmt: skip
    path = draw(st.one_of(st.sampled_from(known), st.lists(parts, max_size=7).map(lambda found: "/" + "/".join(found))))
    path += draw(st.sampled_from(["", "", "", "/", "?x=1", "?", "#x", "?a=%zz"]))
    method = draw(st.sampled_from(["GET", "GET", "GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"]))
    if "/load" in path or "/unload" in path:
        method = "GET"
    body = draw(st.sampled_from([b"", b"", b"{}", b"x"]))
    return _http_case(http_request(method, path, body, tuple(draw(header_lists))), method=method)


def _http_case(request: bytes, model: str = "", method: str = "POST") -> Case:
    return Case("structured", "http", (request,), Ending.ANSWERED, methods=(method,), model=model)


http_cases = st.one_of(
    infer_cases(), infer_cases(), infer_cases(), infer_cases(), generate_cases(), setting_cases(), plain_cases()
)

# ------------------------------------------------------------------------------------------------------------ gRPC

metadata = st.lists(
    st.sampled_from(
        [
            ("grpc-timeout", "1S"), ("grpc-timeout", "1n"), ("grpc-timeout", "x"), ("grpc-timeout", "99999999H"),
            ("grpc-timeout", "-1S"), ("grpc-encoding", "identity"), ("grpc-encoding", "gzip"), ("grpc-encoding", "br"),
            ("grpc-accept-encoding", "gzip, deflate"), ("triton_grpc_error", "true"), ("x-bin", "!!"), ("x", "\u00fc"),
            ("content-length", "7"), ("traceparent", "00-x"), ("te", "x"), ("grpc-message-type", "x"),
        ]
    ),
    max_size=2,
)  # fmt: skip
int64 = st.sampled_from([0, 1, -1, 5, 1 << 31, (1 << 63) - 1, -(1 << 63)])
dims = st.sampled_from([0, 1, 2, 3, 4, 5, -1, -5, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63)])
plain_texts = texts.map(lambda text: text.encode("utf-8", "replace").decode())


@st.composite
def infer_parameters(draw: st.DrawFn) -> pb.InferParameter:
    kind = draw(st.sampled_from(["bool_param", "int64_param", "string_param", "double_param", "uint64_param", ""]))
    given = {
        "bool_param": st.booleans(),
        "int64_param": int64,
        "string_param": plain_texts,
        "double_param": st.floats(),
        "uint64_param": st.sampled_from([0, 1, (1 << 64) - 1]),
    }
    return pb.InferParameter(**{kind: draw(given[kind])}) if kind else pb.InferParameter()


def _fill(draw: st.DrawFn, place: Any) -> None:
    for key in draw(st.lists(st.sampled_from(PARAMETERS), max_size=3)):
        place[key].CopyFrom(draw(infer_parameters()))


@st.composite
def infer_messages(draw: st.DrawFn) -> tuple[str, pb.ModelInferRequest]:
    """A valid message, with up to three of its fields spoilt."""
    valid = draw(st.sampled_from([*VALID, REPEATING]))
    message = pb.ModelInferRequest(model_name=valid.model)
    for name, datatype, shape, data in valid.inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(pack(datatype, data))
    for key, value in valid.parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[key], kind, value)
    for _ in range(draw(st.integers(0, 3))):
        _spoil(draw, message)
    return message.model_name, message


def _spoil(draw: st.DrawFn, message: pb.ModelInferRequest) -> None:
    given = draw(st.sampled_from(list(message.inputs))) if message.inputs else message.inputs.add(name="INPUT0")
    kind = draw(st.sampled_from(["model", "version", "id", "name", "datatype", "shape", "raw", "contents", "parameters",
                                 "input parameters", "outputs", "again", "no raw", "no inputs"]))  # fmt: skip
    if kind == "model":
        message.model_name = draw(st.sampled_from(MODELS))
    elif kind == "version":
        message.model_version = draw(st.sampled_from(["1", "9", "x", "-1", "1.5", "99999999999999999999", " 1"]))
    elif kind == "id":
        message.id = draw(plain_texts)
    elif kind == "name":
        given.name = draw(plain_texts)
    elif kind == "datatype":
        given.datatype = draw(st.sampled_from(DATATYPES))
    elif kind == "shape":
        given.shape[:] = draw(st.lists(dims, max_size=5))
    elif kind == "raw":
        message.raw_input_contents.append(draw(st.binary(max_size=20)))
    elif kind == "contents":
        _fill_contents(draw, given.contents)
    elif kind == "parameters":
        _fill(draw, message.parameters)
    elif kind == "input parameters":
        _fill(draw, given.parameters)
    elif kind == "outputs":
        _fill(draw, message.outputs.add(name=draw(st.sampled_from(["OUTPUT0", "OUTPUT1", "NO", ""]))).parameters)
    elif kind == "again":
        message.inputs.add().CopyFrom(given)
    elif kind == "no raw":
        del message.raw_input_contents[:]
    else:
        del message.inputs[:]


def _fill_contents(draw: st.DrawFn, contents: pb.InferTensorContents) -> None:
    fields = {
        "bool_contents": st.booleans(),
        "int_contents": st.integers(-(1 << 31), (1 << 31) - 1),
        "int64_contents": int64,
        "uint_contents": st.integers(0, (1 << 32) - 1),
        "uint64_contents": st.integers(0, (1 << 64) - 1),
        "fp32_contents": st.floats(width=32),
        "fp64_contents": st.floats(),
        "bytes_contents": st.binary(max_size=5),
    }
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        getattr(contents, name).extend(draw(st.lists(fields[name], max_size=5)))


@st.composite
def other_messages(draw: st.DrawFn) -> tuple[str, bytes]:
    """A method that does not infer, and its message."""
    name, version = draw(st.sampled_from(MODELS)), draw(st.sampled_from(["", "1", "9", "x", "-1"]))
    setting = pb.TraceSettingRequest(model_name=draw(st.sampled_from(["", "add_sub", "nope"])))
    for key in draw(
        st.lists(st.sampled_from(["trace_level", "trace_rate", "trace_count", "log_frequency", "x"]), max_size=2)
    ):
        setting.settings[key].value.extend(
            draw(st.lists(st.sampled_from(["OFF", "TIMESTAMPS", "5", "-2", "x"]), max_size=2))
        )
    index = pb.RepositoryIndexRequest(repository_name=draw(st.sampled_from(["", "r"])), ready=draw(st.booleans()))
    load = pb.RepositoryModelLoadRequest(model_name="nope")
    load.parameters[draw(st.sampled_from(["config", "file:1/model.py", "file:../x", "x"]))].string_param = draw(
        plain_texts
    )
    key = draw(st.one_of(st.just("/" + SEGMENT), plain_texts))
    size, offset = draw(st.sampled_from([0, 64, 4096, 4097, 1 << 62])), draw(st.sampled_from([0, 1, 64, 1 << 63]))
    region = pb.SystemSharedMemoryRegisterRequest(name=draw(plain_texts), key=key, offset=offset, byte_size=size)
    cuda = pb.CudaSharedMemoryRegisterRequest(name="c", raw_handle=draw(st.binary(max_size=65)), byte_size=1)
    chosen: tuple[str, Any] = draw(
        st.sampled_from(
            [
                ("ServerLive", pb.ServerLiveRequest()),
                ("ServerReady", pb.ServerReadyRequest()),
                ("ServerMetadata", pb.ServerMetadataRequest()),
                ("ModelReady", pb.ModelReadyRequest(name=name, version=version)),
                ("ModelMetadata", pb.ModelMetadataRequest(name=name, version=version)),
                ("ModelConfig", pb.ModelConfigRequest(name=name, version=version)),
                ("ModelStatistics", pb.ModelStatisticsRequest(name=name, version=version)),
                ("RepositoryIndex", index),
                ("RepositoryModelLoad", load),
                ("SystemSharedMemoryRegister", region),
                ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest(name=draw(plain_texts))),
                ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=draw(plain_texts))),
                ("CudaSharedMemoryRegister", cuda),
                ("TraceSetting", setting),
                ("NoSuchMethod", setting),
            ]
        )
    )
    method, message = chosen
    return method, message.SerializeToString()


@st.composite
def grpc_cases(draw: st.DrawFn, stream: int) -> Case:
    """One call on *stream*: unary, or a stream of up to four requests."""
    kind = draw(st.sampled_from(["infer", "infer", "infer", "stream", "other"]))
    headers = tuple(draw(metadata))
    if kind == "stream":
        given = [message for _, message in draw(st.lists(infer_messages(), max_size=4))]
        return grpc_stream_case(stream, given, headers)
    if kind == "infer":
        model, message = draw(infer_messages())
        data = message.SerializeToString()
        method = "ModelInfer"
    else:
        method, data = draw(other_messages())
        model = ""
    if not draw(st.integers(0, 9)):
        data = draw(st.one_of(st.binary(max_size=40), st.just(data[:-1])))
    flag = draw(st.sampled_from([0] * 12 + [1, 255]))
    pieces = (unary_call(stream, SERVICE + method, data, headers, flag=flag),)
    return Case("structured", "grpc", pieces, Ending.ANSWERED, stream=stream, model=model)


def grpc_stream_case(stream: int, messages: list[pb.ModelInferRequest], headers: tuple[tuple[str, str], ...]) -> Case:
    call = unary_call(stream, SERVICE + "ModelStreamInfer", b"", headers)
    head = call[: len(call) - 14]  # without the DATA frame of an empty message
    payload = b"".join(
        b"\0" + len(data).to_bytes(4, "big") + data for data in (message.SerializeToString() for message in messages)
    )
    return Case("structured", "grpc", (head, data_frames(stream, payload)), Ending.ANSWERED, stream=stream)
