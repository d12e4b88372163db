"""Requests that differ from an earlier one in their tensors' bytes alone need not be parsed again."""

from __future__ import annotations

from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.http.codec import OutputForms

_MOST = 512
_LONGEST = 2048


class Template:
    """What the JSON part of a request says when all its inputs are binary."""

    __slots__ = ("_inputs", "_request", "forms", "nbytes")

    def __init__(self, request: InferenceRequest, forms: OutputForms) -> None:
        self.forms = forms
        self.nbytes = sum(tensor.nbytes for tensor in request.inputs)
        self._inputs = [(tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in request.inputs]
        self._request = _with_inputs(request, request.model_name, request.version, [])

    def request(self, model_name: str, version: int | None, binary: memoryview) -> InferenceRequest:
        """The request whose tensors are *binary*, of exactly ``nbytes`` bytes."""
        at = 0
        inputs: list[Tensor] = []
        for name, datatype, shape, nbytes in self._inputs:
            inputs.append(Tensor(name, datatype, shape, binary[at : at + nbytes], nbytes))
            at += nbytes
        return _with_inputs(self._request, model_name, version, inputs)


class Templates:
    """The JSON parts seen lately. Emptied when full: ids that differ from request to request must not stay for ever."""

    def __init__(self) -> None:
        self._by_document: dict[bytes, Template] = {}

    def get(self, document: bytes, nbytes: int) -> Template | None:
        """The template of *document* if *nbytes* behind it are what it asks for."""
        template = self._by_document.get(document)
        return template if template is not None and template.nbytes == nbytes else None

    def keep(self, document: bytes, request: InferenceRequest, forms: OutputForms) -> None:
        """Remember a decoded request, if it is of the kind that repeats. What a region is, may change."""
        if len(document) > _LONGEST or request.output_windows is not None:
            return
        if not all(type(tensor.data) is memoryview for tensor in request.inputs):
            return
        if len(self._by_document) >= _MOST:
            self._by_document.clear()
        self._by_document[document] = Template(request, forms)


def _with_inputs(
    request: InferenceRequest, model_name: str, version: int | None, inputs: list[Tensor]
) -> InferenceRequest:
    return InferenceRequest(
        model_name,
        version,
        request_id=request.request_id,
        inputs=inputs,
        requested_outputs=request.requested_outputs,
        parameters=dict(request.parameters) if request.parameters else None,
        correlation_id=request.correlation_id,
        sequence_flags=request.sequence_flags,
        priority=request.priority,
        timeout_us=request.timeout_us,
        classes=request.classes,
    )
