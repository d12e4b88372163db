"""What a client asks and what it is answered, free of any protocol."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple, Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import PackedTensors, Tensor, Window
from pytriton_lite.core.timeline import Timeline

ParameterValue = bool | int | float | str

_LEADING_NUMBER = re.compile(r"\s*[+-]?[0-9]+", re.ASCII)

SEQUENCE_START = 1
SEQUENCE_END = 2


class Origin(enum.Enum):
    """Sender of a request. What does not come from a client belongs to a request that was accepted before."""

    CLIENT = "client"
    MODEL = "model"
    """A call of a model that is executing (BLS)."""
    ENSEMBLE = "ensemble"
    """A step of a request to an ensemble."""


class DevicePlaces(NamedTuple):
    """Which outputs of a request need not be on the host: ``outputs``, or all where that is None.

    ``device`` is the UUID of the device that they are to be on; empty for the one that the model leaves them on.
    """

    outputs: frozenset[str] | None = None
    device: bytes = b""


class InferenceRequest:
    """One inference request. Front ends build it, the engine checks it and ends it exactly once.

    ``version`` is the version asked for, None for the newest ready one. ``requested_outputs`` empty means all.
    ``parameters`` are the custom ones only, in the client's order. ``timeout_us`` and ``priority`` are 0 when absent.
    ``output_windows`` says which outputs go into shared memory of the client, and where; ``classes`` of which outputs only so
    many of the largest elements are wanted (the classification extension). None where there are no such outputs. ``timeline``
    is there for a request that is traced or logged. ``on_device`` says whether an input, or the place of an output, is memory
    of a device; ``region_text_bytes``, how much was read of clients' shared memory for its BYTES inputs; ``device_outputs``,
    where it is not None, which outputs may stay on one. ``origin`` is `Origin.CLIENT` unless the engine made it itself.
    ``packed`` has the inputs as a message between processes has them, where they came so, or others like them are known; all
    of them are small.
    """

    __slots__ = (
        "_inputs",
        "classes",
        "correlation_id",
        "device_outputs",
        "model_name",
        "on_device",
        "origin",
        "output_windows",
        "packed",
        "parameters",
        "priority",
        "region_text_bytes",
        "request_id",
        "requested_outputs",
        "sequence_flags",
        "timeline",
        "timeout_us",
        "version",
    )

    def __init__(
        self,
        model_name: str,
        version: int | None,
        *,
        request_id: str = "",
        inputs: list[Tensor] | None = None,
        packed: PackedTensors | None = None,
        requested_outputs: list[str] | None = None,
        parameters: dict[str, ParameterValue] | None = None,
        correlation_id: int | str = 0,
        sequence_flags: int = 0,
        priority: int = 0,
        timeout_us: int = 0,
        output_windows: dict[str, Window] | None = None,
        classes: dict[str, int] | None = None,
        origin: Origin = Origin.CLIENT,
    ) -> None:
        self.model_name = model_name
        self.version = version
        self.request_id = request_id
        self.packed = packed
        self._inputs: list[Tensor] | None = [] if inputs is None and packed is None else inputs
        self.requested_outputs: list[str] = [] if requested_outputs is None else requested_outputs
        self.parameters: dict[str, ParameterValue] = {} if parameters is None else parameters
        self.correlation_id = correlation_id
        self.sequence_flags = sequence_flags
        self.priority = priority
        self.timeout_us = timeout_us
        self.output_windows = output_windows
        self.classes = classes
        self.origin = origin
        self.on_device = False
        self.region_text_bytes = 0
        self.device_outputs: DevicePlaces | None = None
        self.timeline: Timeline | None = None

    @property
    def inputs(self) -> list[Tensor]:
        """Its tensors, unpacked when they are asked for."""
        inputs = self._inputs
        if inputs is None:
            assert self.packed is not None
            inputs = self._inputs = self.packed.unpack()
        return inputs

    @inputs.setter
    def inputs(self, inputs: list[Tensor]) -> None:
        self._inputs = inputs
        self.packed = None

    def take_packed(self, packed: PackedTensors) -> None:
        """Have *packed* for its inputs."""
        self.packed = packed
        self._inputs = None

    @property
    def input_count(self) -> int:
        """How many inputs it has."""
        packed = self.packed
        return packed.count if packed is not None else len(self.inputs)

    def plain(self, inputs: list[Tensor]) -> InferenceRequest:
        """The same request for *inputs* in place of its own, wanting its outputs as they are."""
        copied = InferenceRequest(
            self.model_name,
            self.version,
            request_id=self.request_id,
            inputs=inputs,
            requested_outputs=self.requested_outputs,
            parameters=self.parameters,
            correlation_id=self.correlation_id,
            sequence_flags=self.sequence_flags,
            priority=self.priority,
            timeout_us=self.timeout_us,
            origin=self.origin,
        )
        copied.timeline = self.timeline
        return copied

    @property
    def text_length(self) -> int:
        """Characters of its id, and of the names and the texts of its parameters."""
        length = len(self.request_id)
        for key, value in self.parameters.items():
            length += len(key)
            if isinstance(value, str):
                length += len(value)
        return length

    @property
    def error_prefix(self) -> str:
        """``[request id: abc] ``, the way Triton's core starts most of its texts; an absent id prints ``<id_unknown>``."""
        return f"[request id: {self.request_id or '<id_unknown>'}] "


class InferenceResponse:
    """One answer. ``outputs`` keep the order in which the model produced them; ``parameters`` are the model's.

    An output that lies in the client's shared memory has type and shape here, and no data. ``packed`` has the outputs as the
    worker has sent them, where all of them are small.
    """

    __slots__ = ("_outputs", "model_name", "packed", "parameters", "request_id", "version")

    def __init__(
        self,
        model_name: str,
        version: int,
        request_id: str,
        outputs: list[Tensor] | None,
        parameters: dict[str, ParameterValue],
        packed: PackedTensors | None = None,
    ) -> None:
        """*outputs* is None where they are *packed*."""
        self.model_name = model_name
        self.version = version
        self.request_id = request_id
        self._outputs = outputs
        self.packed = packed
        self.parameters = parameters

    @property
    def outputs(self) -> list[Tensor]:
        """Its tensors, unpacked when they are asked for."""
        outputs = self._outputs
        if outputs is None:
            assert self.packed is not None
            outputs = self._outputs = self.packed.unpack()
        return outputs

    @outputs.setter
    def outputs(self, outputs: list[Tensor]) -> None:
        self._outputs = outputs
        self.packed = None


def only_response(response: InferenceResponse | InferenceError | None) -> InferenceResponse | InferenceError:
    """What a receiver of one response tells its client of *response*, the last it is given."""
    return InferenceError(ErrorCode.INTERNAL, "the request ended without a response") if response is None else response


class ResponseReceiver(Protocol):
    """A client's end of a request: it gets the responses. Called in the event loop; must not raise, and must not wait."""

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """A response, or an error in place of one, which ends the request only with *is_final*.

        None, always final, for a model that said with its last flag alone that nothing more comes.
        """


class PendingRequest(Protocol):
    """A request that was taken, in the hands of who has made it. Its `ResponseReceiver` hears nothing after `cancel`."""

    def consumed(self, count: int = 1) -> None:
        """Say that *count* responses more were passed on, so that a model may send its next ones."""

    def cancel(self) -> None:
        """Give up the responses. Nothing happens where the request has ended."""


def parse_version(text: str) -> int | None:
    """The model version that a client wrote; None for an empty text, the newest ready version.

    Reads a leading number as C's ``stol`` does: ``1abc`` is 1 (gRPC spec, section 2).
    Raises InferenceError(INVALID_ARG) with Triton's texts.
    """
    if not text:
        return None
    found = _LEADING_NUMBER.match(text)
    if found is None or not -(1 << 63) <= int(found.group()) < 1 << 63:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0",
        )
    version = int(found.group())
    if version < 0:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"invalid model version specified '{text}' , version should be an integral value > 0",
        )
    return version
