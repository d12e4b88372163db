"""Messages that differ from an earlier one in their id and their tensors' bytes alone: neither parsed nor made anew.

A message is cut at these places, in protobuf's wire form, and what is left of it is looked up. Whatever is not as most clients
send it goes the long way, by protobuf, which says what is wrong with it. Tensors in regions of clients are looked up anew for
each request: what a region is may change, and so may what lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Buffer, PackedForm
from pytriton_lite.frontends.grpc.parameters import RegionPlace, region_place
from pytriton_lite.frontends.grpc.parsing import field_header
from pytriton_lite.ipc.messages import form_of
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest, ModelInferResponse

if TYPE_CHECKING:
    from pytriton_lite.engine.workers.regions import Regions

_MOST = 512
_LONGEST = 2048
_RESPONSES = 64

_LENGTH_DELIMITED = 2
# Fields of ModelInferRequest.
_ID, _PARAMETERS, _RAW_INPUT_CONTENTS = 0x1A, 0x22, 0x3A
# Fields of ModelInferResponse.
_RESPONSE_ID, _RAW_OUTPUT_CONTENTS = 0x1A, 0x32


class _PackedTemplate:
    """What a request says beside its id and its tensors' bytes, which are raw contents."""

    __slots__ = ("_classes", "_form", "_headers", "_model_name", "_requested", "_version")

    def __init__(self, request: InferenceRequest, form: PackedForm) -> None:
        self._model_name = request.model_name
        self._version = request.version
        self._requested = request.requested_outputs
        self._classes = request.classes
        self._form = form
        self._headers = [field_header(_RAW_INPUT_CONTENTS, nbytes) for nbytes in form.sizes]

    def request(self, request_id: str, data: bytes, at: int, end: int) -> InferenceRequest | None:
        """The request whose tensors fill ``data[at:end]``; None where they have other sizes."""
        pieces: list[Buffer] = []
        for header, nbytes in zip(self._headers, self._form.sizes):
            if not data.startswith(header, at):
                return None
            at += len(header)
            pieces.append(data[at : at + nbytes])
            at += nbytes
        if at != end:
            return None
        return InferenceRequest(
            self._model_name,
            self._version,
            request_id=request_id,
            packed=self._form.pack(pieces),
            requested_outputs=self._requested,
            classes=self._classes,
        )


class _PlacedTemplate:
    """What a request says beside its id whose inputs all lie in regions."""

    __slots__ = ("_classes", "_inputs", "_model_name", "_regions", "_requested", "_version", "_windows")

    def __init__(
        self,
        request: InferenceRequest,
        regions: Regions,
        inputs: Sequence[RegionPlace],
        windows: Sequence[tuple[str, RegionPlace]],
    ) -> None:
        """*inputs* are the places of the request's, *windows* those of outputs by name."""
        self._model_name = request.model_name
        self._version = request.version
        self._requested = request.requested_outputs
        self._classes = request.classes
        self._regions = regions
        self._inputs = [
            (given.name, given.datatype, given.shape, place) for given, place in zip(request.inputs, inputs)
        ]
        self._windows = windows

    def request(self, request_id: str, data: bytes, at: int, end: int) -> InferenceRequest | None:
        """The request, with what the regions are now; None where ``data[at:end]`` has contents, or a region is gone or smaller.

        Then the long way tells which of several errors Triton tells.
        """
        if at != end:
            return None
        regions = self._regions
        request = InferenceRequest(
            self._model_name,
            self._version,
            request_id=request_id,
            requested_outputs=self._requested,
            classes=self._classes,
        )
        try:
            for name, datatype, shape, place in self._inputs:
                regions.add_input(
                    request,
                    name,
                    datatype,
                    shape,
                    region=place.region,
                    offset=place.offset,
                    byte_size=place.byte_size,
                )
            for name, place in self._windows:
                regions.add_window(request, name, place.region, place.offset, place.byte_size)
        except InferenceError:
            return None
        return request


class RequestTemplates:
    """Requests seen lately, without their ids. Emptied when full: what never comes again must not stay for ever."""

    def __init__(self, regions: Regions) -> None:
        """*regions* are the clients' shared memory."""
        self._regions = regions
        self._by_rest: dict[bytes, _PackedTemplate | _PlacedTemplate] = {}

    def read(self, data: bytes, begin: int, end: int) -> InferenceRequest | None:
        """The request that is the message ``data[begin:end]``; None where no such message has been kept."""
        id_at, id_begin, id_end, raw_at = _cut(data, begin, end)
        if raw_at < 0 or raw_at - begin - (id_end - id_at) > _LONGEST:
            return None
        rest = data[begin:id_at] + data[id_end:raw_at]
        template = self._by_rest.get(rest)
        if template is None:
            return None
        try:
            request_id = data[id_begin:id_end].decode()
        except UnicodeDecodeError:
            return None
        return template.request(request_id, data, raw_at, end)

    def keep(self, data: bytes, message: ModelInferRequest, request: InferenceRequest) -> None:
        """Remember *request*, that *message* was, whose bytes are *data*, if it is of the kind that repeats."""
        end = len(data)
        id_at, _, id_end, raw_at = _cut(data, 0, end)
        if raw_at < 0 or raw_at - (id_end - id_at) > _LONGEST:
            return
        template = self._placed(message, request) if raw_at == end else _packed(message, request)
        if template is None:
            return
        if raw_at < end and template.request(request.request_id, data, raw_at, end) is None:
            return  # numbers that lie elsewhere in it
        if len(self._by_rest) >= _MOST:
            self._by_rest.clear()
        self._by_rest[data[:id_at] + data[id_end:raw_at]] = template

    def _placed(self, message: ModelInferRequest, request: InferenceRequest) -> _PlacedTemplate | None:
        inputs: list[RegionPlace] = []
        for given in message.inputs:
            place = region_place(given.name, given.parameters)
            if place is None:
                return None
            inputs.append(place)
        if not inputs:
            return None
        places = [(wanted.name, region_place(wanted.name, wanted.parameters)) for wanted in message.outputs]
        windows = [(name, place) for name, place in places if place is not None]
        return _PlacedTemplate(request, self._regions, inputs, windows)


def _packed(message: ModelInferRequest, request: InferenceRequest) -> _PackedTemplate | None:
    if request.output_windows is not None or any(given.parameters for given in message.inputs):
        return None
    if not all(tensor.datatype.itemsize for tensor in request.inputs):
        return None
    form = form_of(request.inputs)
    return None if form is None else _PackedTemplate(request, form)


def _cut(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Where in a ModelInferRequest its id's field begins, the id itself, where that ends, and where raw contents begin.

    Without an id the first three are where all begins. The last is *end* where there are no raw contents, and -1 for a message
    that has parameters, or is unusual.
    """
    id_at = id_begin = id_end = at
    has_id = False
    while at < end:
        tag = data[at]
        if tag == _RAW_INPUT_CONTENTS:
            return id_at, id_begin, id_end, at
        if tag & 7 != _LENGTH_DELIMITED or tag == _PARAMETERS or at + 3 > end:
            break
        begin = at
        nbytes = data[at + 1]
        at += 2
        if nbytes > 0x7F:
            more = data[at]
            if more > 0x7F:
                break
            nbytes += (more - 1) << 7
            at += 1
        if tag == _ID:
            if has_id:
                break
            has_id = True
            id_at, id_begin, id_end = begin, at, at + nbytes
        at += nbytes
    return (id_at, id_begin, id_end, end) if at == end else (0, 0, 0, -1)


class _ResponseTemplate:
    """What a response says beside its id, its parameters and its tensors' bytes."""

    __slots__ = ("_begin", "_end", "_headers", "_nbytes", "model_name", "version")

    def __init__(self, form: PackedForm, response: InferenceResponse) -> None:
        self.model_name = response.model_name
        self.version = response.version
        message = ModelInferResponse(model_name=response.model_name, model_version=str(response.version))
        self._begin = message.SerializeToString()
        described = ModelInferResponse()
        for name, datatype, shape in form.tensors:
            described.outputs.add(name=name, datatype=datatype.name, shape=shape)
        self._end = described.SerializeToString()
        self._headers = [field_header(_RAW_OUTPUT_CONTENTS, nbytes) for nbytes in form.sizes]
        self._nbytes = len(self._begin) + len(self._end) + form.nbytes + sum(map(len, self._headers))

    def parts(self, request_id: str, parameters: bytes, pieces: list[bytes]) -> tuple[list[bytes], int]:
        """The message in pieces, and its size. *parameters* are fields of the message."""
        nbytes = self._nbytes + len(parameters)
        parts = [self._begin]
        if request_id:
            raw_id = request_id.encode()
            header = field_header(_RESPONSE_ID, len(raw_id))
            nbytes += len(header) + len(raw_id)
            parts.append(header)
            parts.append(raw_id)
        parts.append(parameters)
        parts.append(self._end)
        for header, piece in zip(self._headers, pieces):
            parts.append(header)
            parts.append(piece)
        return parts, nbytes


class ResponseTemplates:
    """Responses seen lately, by the form of their outputs. Emptied when full."""

    def __init__(self) -> None:
        self._by_form: dict[PackedForm, _ResponseTemplate] = {}

    def parts(self, response: InferenceResponse, parameters: bytes) -> tuple[list[bytes], int] | None:
        """The serialized ModelInferResponse in pieces, and its size; None where it has to be made by protobuf.

        *parameters* are fields of it, to stand where the response's own would.
        """
        packed = response.packed
        if packed is None or packed.form is None or response.parameters:
            return None
        form = packed.form
        template = self._by_form.get(form)
        if template is None or template.version != response.version or template.model_name != response.model_name:
            if len(self._by_form) >= _RESPONSES:
                self._by_form.clear()
            template = self._by_form[form] = _ResponseTemplate(form, response)
        return template.parts(response.request_id, parameters, form.pieces(packed.data))
