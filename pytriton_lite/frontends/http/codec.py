"""Infer bodies to requests, and responses to infer bodies (HTTP spec, sections 7 and 8). Knows no connection.

What `decode` refuses, it refuses in the order of section 7.3 and with Triton's texts. The rules of the core (7.7) are
the engine's: a request that comes out of here is well formed, not yet known to suit its model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import orjson

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferenceRequest,
    InferenceResponse,
    ParameterValue,
)
from pytriton_lite.core.tensor import Buffer, PackedForm, PackedTensors, Tensor, element_count, format_shape
from pytriton_lite.engine.workers.intake import home_of
from pytriton_lite.frontends.http import json_dialect
from pytriton_lite.frontends.http.json_slices import LargeArray
from pytriton_lite.frontends.http.json_tensors import (
    INT64_END,
    NOT_ARRAY,
    NOT_BOOLEAN,
    NOT_STRING,
    NOT_UNSIGNED,
    UINT64_END,
    number_code,
    read_numbers,
    read_tensor,
    refuse,
    refuse_type,
    write_data,
    write_numbers,
)
from pytriton_lite.ipc.messages import form_of

if TYPE_CHECKING:
    from pytriton_lite.engine.workers.regions import Regions

_ABSENT: Any = object()
_MAX_CORRELATION_ID = 128
_MOST_TEMPLATES = 64
_MOST_KNOWN = 512
_LONGEST_NAMES = 2048
"""Bytes of what tensors of a document that is remembered have for names and shapes, at most."""
MAX_ENTRIES = 4096
"""Inputs, requested outputs and parameters that a request may have, each: every one of them takes its time on the loop."""


def check_limit(what: str, size: int, limit: int) -> None:
    """Refuse *what* of a request, of *size* bytes, beyond *limit*. Raises InferenceError(INVALID_ARG)."""
    if size > limit:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"request {what} size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. Use "
            "--http-max-input-size to increase the limit.",
        )


class OutputForms:
    """Forms of a response's outputs, whether they are binary: ``listed`` by name, ``default`` for the others.

    None stands for an output in shared memory, of which a response says only that it is there.
    """

    __slots__ = ("_templates", "default", "listed")

    def __init__(self, *, default: bool, listed: Mapping[str, bool | None]) -> None:
        self.default = default
        self.listed = listed
        self._templates: dict[PackedForm, _AnswerTemplate] = {}

    def template(self, form: PackedForm, response: InferenceResponse) -> _AnswerTemplate:
        """What answers like *response*, whose outputs have *form*, have in common."""
        found = self._templates.get(form)
        if found is None or found.version != response.version or found.model_name != response.model_name:
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            found = self._templates[form] = _AnswerTemplate(form, response, self)
        return found


class _AnswerTemplate:
    """A document, cut where the id of a request stands in it and where numbers do.

    Outputs are written in the usual order: their bytes behind the document, or their numbers in it.
    """

    __slots__ = ("_codes", "_texts", "model_name", "version")

    def __init__(self, form: PackedForm, response: InferenceResponse, forms: OutputForms) -> None:
        self.model_name = response.model_name
        self.version = response.version
        self._codes: list[str | None] = []
        """For each output the code of its numbers where they are written in the document, empty where its bytes follow that.

        None where neither can be said once for all.
        """
        self._texts: list[bytes] = []
        """What stands before the first numbers, between those of two outputs, and behind the last."""
        head = {"model_name": response.model_name, "model_version": str(response.version)}
        text = orjson.dumps(head)[1:-1] + b',"outputs":['
        for at, (name, datatype, shape) in enumerate(form.tensors):
            entry: dict[str, object] = {"name": name, "datatype": datatype.name, "shape": shape}
            is_binary = forms.listed.get(name, forms.default)
            code = number_code(datatype, form.sizes[at])
            text += b"," if at else b""
            if is_binary:
                entry["parameters"] = {"binary_data_size": form.sizes[at]}
                text += orjson.dumps(entry)
                self._codes.append("")
            elif is_binary is None or code is None or element_count(shape) * datatype.itemsize != form.sizes[at]:
                self._codes.append(None)
            else:
                self._texts.append(text + orjson.dumps(entry)[:-1] + b',"data":')
                text = b"}"
                self._codes.append(code)
        self._texts.append(text + b"]}")

    def encode(self, request_id: str, pieces: list[bytes]) -> tuple[bytes, list[Buffer]] | None:
        """The document and what follows it, of outputs whose bytes are *pieces*; None where that takes the long way."""
        texts = self._texts
        begin = b'{"id":' + orjson.dumps(request_id) + b"," if request_id else b"{"
        parts = [begin, texts[0]]
        behind: list[Buffer] = []
        written = 0
        for code, piece in zip(self._codes, pieces):
            if code:
                written += 1
                parts.append(write_numbers(code, piece))
                parts.append(texts[written])
            elif code is None:
                return None
            elif piece:
                behind.append(piece)
        return b"".join(parts), behind


class KnownDocuments:
    """Documents seen lately: forms of inputs whose numbers are all in them, and of the outputs that they want.

    A document whose inputs have the names, data types and shapes of an earlier one's is like it but for the numbers, and
    its outputs are written as that one's are. Emptied when full.
    """

    def __init__(self) -> None:
        self._inputs: dict[tuple[object, ...], tuple[PackedForm, list[int]]] = {}
        """Form, and number of elements of each input."""
        self._outputs: dict[tuple[object, ...], OutputForms] = {}

    def read(self, items: list[Any], alike: tuple[object, ...]) -> PackedTensors | None:
        """The inputs that *items* are, whose names, types and shapes are *alike*; None where no such ones were kept.

        Raises InferenceError.
        """
        known = self._inputs.get(alike)
        if known is None:
            return None
        form, counts = known
        pieces: list[Buffer] = []
        for at, (_, datatype, _) in enumerate(form.tensors):
            pieces.append(read_numbers(datatype, counts[at], items[at]["data"]))
        return form.pack(pieces)

    def keep(self, alike: tuple[object, ...], inputs: list[Tensor]) -> None:
        """Remember of which form *inputs* are, if others with what is *alike* can be read in one go."""
        counts: list[int] = []
        for tensor in inputs:
            count = element_count(tensor.shape) if tensor.shape else 0  # of none the data are not looked at
            if not count or number_code(tensor.datatype, tensor.nbytes) is None:
                return
            counts.append(count)
        form = form_of(inputs)
        if form is None or form.length - form.nbytes > _LONGEST_NAMES:
            return
        if len(self._inputs) >= _MOST_KNOWN:
            self._inputs.clear()
        self._inputs[alike] = form, counts

    def output_forms(self, model_name: str, default: bool, listed: dict[str, bool | None]) -> OutputForms:
        """Forms like those of an earlier document for *model_name*, which know what its answers have in common."""
        key = (model_name, default, *listed.items())
        found = self._outputs.get(key)
        if found is None:
            found = OutputForms(default=default, listed=listed)
            if sum(map(len, listed)) <= _LONGEST_NAMES:
                if len(self._outputs) >= _MOST_KNOWN:
                    self._outputs.clear()
                self._outputs[key] = found
        return found


def _what_is_alike(items: list[Any]) -> tuple[object, ...] | None:
    """Names, data types and shapes of *items*; None where one is unusual, or its data are elsewhere."""
    alike: list[object] = []
    for item in items:
        if type(item) is not dict or len(item) != 4:
            return None
        name, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape")
        if (
            type(name) is not str
            or type(datatype) is not str
            or type(shape) is not list
            or type(item.get("data")) is not list
        ):
            return None
        for dim in shape:
            if type(dim) is not int:  # True and 1.0 equal 1
                return None
        alike += name, datatype, tuple(shape)
    return tuple(alike)


def decode(
    document: Buffer,
    *,
    model_name: str,
    version: int | None,
    available: int | None,
    binary: memoryview | None,
    max_input_size: int,
    regions: Regions,
    known: KnownDocuments | None = None,
) -> tuple[InferenceRequest, OutputForms]:
    """The request in *document*, the JSON part of a body, and how its outputs are to be written.

    *available* is the number of bytes behind the JSON part, None where that is not known yet. *binary* are those
    bytes; where it is None, binary tensors get their declared ``nbytes`` and no data, until `attach` brings them.
    *regions* are the clients' shared memory. *known* are documents for which *max_input_size* was the same.
    Raises InferenceError.
    """
    root = json_dialect.loads(document)
    if type(root) is not dict:
        refuse_type("inputs", "attempt to access non-existing object member 'inputs'")
    request = InferenceRequest(model_name, version)
    request_id = root.get("id")
    if request_id is not None or "id" in root:
        if type(request_id) is not str:
            refuse_type("id", NOT_STRING)
        request.request_id = valid_text(request_id.partition("\0")[0])
    parameters = root.get("parameters", _ABSENT)
    default_binary = parameters is not _ABSENT and _read_parameters(parameters, request)
    items: Any = root.get("inputs")
    alike = _what_is_alike(items) if known is not None and type(items) is list and not available else None
    packed = known.read(items, alike) if known is not None and alike is not None else None
    if packed is not None:
        request.take_packed(packed)
    else:
        _read_inputs(root, request, available, binary, max_input_size, regions)
        if known is not None and alike is not None:
            known.keep(alike, request.inputs)
    outputs = root.get("outputs", _ABSENT)
    listed = {} if outputs is _ABSENT else _read_outputs(outputs, request, regions)
    if known is not None:
        return request, known.output_forms(model_name, default_binary, listed)
    return request, OutputForms(default=default_binary, listed=listed)


def attach(request: InferenceRequest, binary: memoryview) -> None:
    """Give the tensors that `decode` left without data their part of *binary*, which holds exactly what they need."""
    at = 0
    for tensor in request.inputs:
        if tensor.data is None and tensor.home is None:
            tensor.data = binary[at : at + tensor.nbytes]
            tensor.home = home_of(tensor.data)
            at += tensor.nbytes


def missing_bytes(request: InferenceRequest) -> int:
    """How many bytes `attach` would use."""
    return sum(tensor.nbytes for tensor in request.inputs if tensor.data is None and tensor.home is None)


def encode(response: InferenceResponse, forms: OutputForms) -> tuple[bytes, list[Buffer]]:
    """The JSON part of an infer body and the binary tensors behind it, empty ones left out.

    Raises InferenceError where an output cannot be written in the form that was asked for.
    """
    packed = response.packed
    if packed is not None and packed.form is not None and not response.parameters:
        form = packed.form
        encoded = forms.template(form, response).encode(response.request_id, form.pieces(packed.data))
        if encoded is not None:
            return encoded
    parts: list[Buffer] = []
    entries: list[dict[str, object]] = []
    large: dict[int, bytes] = {}
    for tensor in response.outputs:
        entry: dict[str, object] = {"name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape}
        data = tensor.data if tensor.data is not None else tensor.content()
        is_binary = forms.listed.get(tensor.name, forms.default)
        if is_binary:
            entry["parameters"] = {"binary_data_size": len(data)}
            if data:
                parts.append(data)
        elif is_binary is not None:
            written = write_data(tensor, data)
            if type(written) is bytes:
                large[len(entries)] = written
            else:
                entry["data"] = written
        entries.append(entry)
    head: dict[str, object] = {"id": response.request_id} if response.request_id else {}
    head["model_name"] = response.model_name
    head["model_version"] = str(response.version)
    if response.parameters:
        head["parameters"] = response.parameters
    if large:
        return _with_large(head, entries, large), parts
    head["outputs"] = entries
    return orjson.dumps(head), parts


def _with_large(head: dict[str, object], entries: list[dict[str, object]], large: Mapping[int, bytes]) -> bytes:
    """The document of *head* and *entries*, to some of which belong texts of data that orjson does not get."""
    pieces = [orjson.dumps(head)[:-1]]
    for index, entry in enumerate(entries):
        pieces += [b"," if index else b',"outputs":[', orjson.dumps(entry)]
        if index in large:
            pieces[-1:] = [pieces[-1][:-1], b',"data":', large[index], b"}"]
    return b"".join([*pieces, b"]}"])


def valid_text(value: str) -> str:
    """*value* as valid Unicode. Triton passes invalid UTF-8 on; a model's Python could not even print it."""
    if value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# Request parameters, section 7.6


def _read_parameters(parameters: object, request: InferenceRequest) -> bool:
    """Fill *request* from its ``parameters``; the value of ``binary_data_output``."""
    if type(parameters) is not dict:
        raise InferenceError(ErrorCode.INTERNAL, "failed to get request params.: attempt to get members for non-object")
    check_entries("parameters", len(parameters))
    default_binary = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            if type(value) is not bool:
                refuse_type(key, NOT_BOOLEAN)
            default_binary = value
        elif key in _SCHEDULING:
            _SCHEDULING[key](request, key, value)
        elif key.startswith("triton_"):
            refuse("parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.")
        else:
            name = valid_text(key)
            request.parameters[name] = custom_parameter(name, value)
    return default_binary


def check_entries(what: str, count: int) -> None:
    if count > MAX_ENTRIES:
        refuse(f"a request may have {MAX_ENTRIES} {what}, got {count}")


def custom_parameter(key: str, value: object) -> ParameterValue:
    if type(value) is str:
        return valid_text(value)
    if type(value) is int:
        return value if -INT64_END <= value < INT64_END else float(value)
    if type(value) is not bool and type(value) is not float:
        refuse(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
    return value


def _set_correlation_id(request: InferenceRequest, key: str, value: object) -> None:
    if type(value) is int and 0 <= value < UINT64_END:
        request.correlation_id = value
        return
    if type(value) is not str:
        refuse_type(key, NOT_STRING)
    if len(value) > _MAX_CORRELATION_ID:
        raise InferenceError(
            ErrorCode.UNSUPPORTED, f"string correlation ID cannot be longer than {_MAX_CORRELATION_ID} characters"
        )
    request.correlation_id = valid_text(value)


def _set_sequence_flag(request: InferenceRequest, key: str, value: object) -> None:
    if type(value) is not bool:
        refuse_type(key, NOT_BOOLEAN)
    if value:
        request.sequence_flags |= SEQUENCE_START if key == "sequence_start" else SEQUENCE_END


def _set_priority(request: InferenceRequest, key: str, value: object) -> None:
    request.priority = _unsigned(key, value)


def _set_timeout(request: InferenceRequest, key: str, value: object) -> None:
    request.timeout_us = _unsigned(key, value)


def _unsigned(field: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < UINT64_END:
        refuse_type(field, NOT_UNSIGNED)
    return value


_SCHEDULING: dict[str, Callable[[InferenceRequest, str, object], None]] = {
    "sequence_id": _set_correlation_id,
    "sequence_start": _set_sequence_flag,
    "sequence_end": _set_sequence_flag,
    "priority": _set_priority,
    "timeout": _set_timeout,
}


# Inputs, sections 7.4, 7.5 and 7.8


def _read_inputs(
    root: dict[str, Any],
    request: InferenceRequest,
    available: int | None,
    binary: memoryview | None,
    max_input_size: int,
    regions: Regions,
) -> None:
    items = root.get("inputs", _ABSENT)
    if type(items) is not list:
        if items is _ABSENT:
            refuse_type("inputs", "attempt to access non-existing object member 'inputs'")
        refuse_type("inputs", NOT_ARRAY)
    check_entries("inputs", len(items))
    at = 0
    for item in items:
        parameters = _one_source(item)
        name = _string_member(item, "name")
        datatype = dtypes.BY_NAME.get(_string_member(item, "datatype"), dtypes.INVALID)
        shape = _read_shape(item)
        if parameters is None:
            request.inputs.append(_read_json_tensor(name, datatype, shape, item["data"], max_input_size))
            continue
        size = parameters.get("binary_data_size", _ABSENT)
        if size is _ABSENT:
            region, offset, nbytes = _region(parameters)
            regions.add_input(request, name, datatype, shape, region=region, offset=offset, byte_size=nbytes)
            continue
        size = _unsigned("binary_data_size", size)
        if available is not None and at + size > available:
            refuse(
                f"unexpected size for input '{name}', expecting {at + size - available} additional bytes for model "
                f"'{request.model_name}'"
            )
        data = None if binary is None else binary[at : at + size]
        at += size
        request.inputs.append(Tensor(name, datatype, shape, data, size))
    if available is not None and at != available:
        refuse(f"unexpected additional input data for model '{request.model_name}'")


def _one_source(item: object) -> dict[str, Any] | None:
    """The parameters of an input whose data are not in the document; None where they are. There must be one source."""
    if type(item) is not dict:
        _refuse_sources([])
    has_data = "data" in item
    parameters = item.get("parameters")
    if type(parameters) is dict:
        sources = [key for key in ("binary_data_size", "shared_memory_region") if key in parameters]
        if len(sources) + has_data == 1:
            return None if has_data else parameters
        _refuse_sources(["data", *sources] if has_data else sources)
    if not has_data:
        _refuse_sources([])
    return None


def _refuse_sources(found: list[str]) -> NoReturn:
    what = f"set {' '.join(f'{chr(39)}{key}{chr(39)}' for key in found)}" if found else "no field is set"
    refuse(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {what}"
    )


def _region(parameters: dict[str, Any]) -> tuple[str, int, int]:
    """Region, offset in it and byte size of a tensor in shared memory (section 12)."""
    region = parameters["shared_memory_region"]
    if type(region) is not str:
        refuse_type("shared_memory_region", NOT_STRING)
    offset = _unsigned("shared_memory_offset", parameters.get("shared_memory_offset", 0))
    nbytes = _unsigned("shared_memory_byte_size", parameters.get("shared_memory_byte_size", 0))
    return valid_text(region), offset, nbytes


def _string_member(item: dict[str, Any], key: str) -> str:
    value = item.get(key, _ABSENT)
    if type(value) is not str:
        if value is _ABSENT:
            refuse_type(key, f"attempt to access non-existing object member '{key}'")
        refuse_type(key, NOT_STRING)
    return value if value.isascii() else valid_text(value)


def _read_shape(item: dict[str, Any]) -> tuple[int, ...]:
    shape = item.get("shape", _ABSENT)
    if type(shape) is not list:
        if type(shape) is LargeArray:
            refuse(f"invalid shape for input '{item.get('name')}': it has more dimensions than any tensor")
        if shape is _ABSENT:
            refuse_type("shape", "attempt to access non-existing object member 'shape'")
        refuse_type("shape", NOT_ARRAY)
    for dim in shape:
        if type(dim) is not int or dim < 0:
            refuse_type("shape", NOT_UNSIGNED)
    return tuple(shape)


def _read_json_tensor(
    name: str, datatype: DataType, shape: tuple[int, ...], data: object, max_input_size: int
) -> Tensor:
    count = _bounded_count(name, datatype, shape, max_input_size)
    if count == 0 or not shape:  # Triton does not look at the data then
        return Tensor(name, datatype, shape, b"")
    if type(data) is not list and type(data) is not LargeArray:
        refuse_type("data", NOT_ARRAY)
    tensor = read_tensor(name, datatype, shape, count, data)
    if tensor.nbytes > max_input_size:  # only the end of BYTES tells their size
        _refuse_size(name, tensor.nbytes, max_input_size)
    return tensor


def _bounded_count(name: str, datatype: DataType, shape: tuple[int, ...], max_input_size: int) -> int:
    """The element count of a JSON tensor, refused before anything of that size is allocated or multiplied out."""
    itemsize = datatype.itemsize
    if 0 in shape and max(shape) < INT64_END:
        return 0
    count = 1
    for dim in shape:
        if dim == UINT64_END - 1:  # -1 to Triton, which is "unknown": a count of -1
            _refuse_size(name, UINT64_END - max(itemsize, 1), max_input_size)
        if dim >= INT64_END:
            signed = [d - UINT64_END if d >= INT64_END else d for d in shape]
            refuse(
                f"invalid shape for input '{name}': shape {format_shape(signed)} contains one or more invalid dimensions"
            )
        count *= dim
        if count >= INT64_END:
            refuse(
                f"invalid shape for input '{name}': shape {format_shape(shape)} causes total element count to exceed "
                f"maximum size of {INT64_END - 1}"
            )
    size = count * itemsize
    if size >= INT64_END:
        refuse(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({itemsize}) exceeds "
            f"maximum allowed size ({INT64_END - 1})"
        )
    if size > max_input_size:
        _refuse_size(name, size, max_input_size)
    return count


def _refuse_size(name: str, size: int, max_input_size: int) -> NoReturn:
    refuse(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
        f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
    )


# Requested outputs, sections 7.8 and 10


def _read_outputs(items: object, request: InferenceRequest, regions: Regions) -> dict[str, bool | None]:
    """Fill what *request* says of its outputs; by name, the form of each (`OutputForms`)."""
    if type(items) is not list:
        refuse_type("outputs", NOT_ARRAY)
    check_entries("outputs", len(items))
    listed: dict[str, bool | None] = {}
    for item in items:
        if type(item) is not dict:
            refuse_type("name", "attempt to access non-existing object member 'name'")
        parameters = item.get("parameters")
        if type(parameters) is not dict:
            parameters = {}
        is_in_region = "shared_memory_region" in parameters
        if is_in_region:
            _refuse_region_conflicts(parameters)
        name = _string_member(item, "name")
        classes = _classes(parameters)
        binary: bool | None = None
        if is_in_region:
            region, offset, nbytes = _region(parameters)
            regions.add_window(request, name, region, offset, nbytes)
        else:
            said = parameters.get("binary_data", False)
            if type(said) is not bool:
                refuse_type("binary_data", NOT_BOOLEAN)
            binary = said
        if classes:
            request.classes = request.classes or {}
            request.classes[name] = classes
        request.requested_outputs.append(name)
        listed.setdefault(name, binary)
    return listed


def _refuse_region_conflicts(parameters: dict[str, Any]) -> None:
    if "classification" in parameters:
        refuse("Output can't set both 'shared_memory_region' and 'classification'")
    binary = parameters.get("binary_data", False)
    if type(binary) is not bool:
        raise InferenceError(ErrorCode.INTERNAL, f"Unable to set 'binary_data': {NOT_BOOLEAN}")
    if binary:
        refuse("Output can't set both 'shared_memory_region' and 'binary_data'")


def _classes(parameters: dict[str, Any]) -> int:
    """How many of its largest elements make up an output; 0 for all of them, as they are (section 10)."""
    classes = parameters.get("classification", 0)
    if type(classes) is not int or not 0 <= classes < UINT64_END:
        raise InferenceError(ErrorCode.INTERNAL, f"Unable to set 'classification': {NOT_UNSIGNED}")
    return classes % (1 << 32)  # Triton keeps 32 bits of it
