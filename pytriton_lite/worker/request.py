"""``pb_utils.InferenceRequest``, and what it is made with (model API, sections 2.4 and 4.9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, overload

from pytriton_lite.worker.api_errors import COMPILED, NumberedEnum, TritonModelException, refuse_arguments, refuse_copy
from pytriton_lite.worker.arguments import Unfit, integer, items, text, truth
from pytriton_lite.worker.pending_call import ResponseIterator
from pytriton_lite.worker.process import host
from pytriton_lite.worker.response import InferenceResponse, Windows, parameters_text
from pytriton_lite.worker.response_sender import Answering, InferenceResponseSender
from pytriton_lite.worker.tensor import Tensor
from pytriton_lite.worker.trace_context import is_opentelemetry

RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2

_LARGEST_U64 = (1 << 64) - 1


class MemoryType(NumberedEnum):
    """Where PreferredMemory wants tensors."""

    __module__ = COMPILED

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Where the outputs of a BLS call shall lie; without it, where the callee leaves them.

    A preference for a GPU that there is not, or that has no room, falls back to the CPU.
    """

    __module__ = COMPILED
    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        try:
            if not isinstance(preferred_memory_type, MemoryType):
                raise Unfit
            device_id = integer(preferred_device_id, bits=64, is_signed=True)
        except Unfit:
            refuse_arguments(
                "__init__",
                "PreferredMemory(preferred_memory_type: MemoryType, preferred_device_id: int = 0)",
                (preferred_memory_type, preferred_device_id),
            )
        self._memory_type = preferred_memory_type
        self._device_id = device_id

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)


class InferenceTrace:
    """What a BLS request passes on so that its call shows as part of the trace of the request that caused it."""

    __module__ = COMPILED
    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text = ""
        """What the server said of the trace; empty for a request that is not traced."""

    @classmethod
    def _of(cls, text: str) -> InferenceTrace:
        trace = cls()
        trace._text = text
        return trace

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def get_context(self) -> str | None:
        """The OpenTelemetry context as JSON text; None for a request that is not traced so."""
        return self._text if is_opentelemetry(self._text) else None


class InferenceRequest:
    """A request as ``execute`` gets it, or one that the model builds to call another model (BLS).

    For the latter: *inputs* and *requested_output_names* may be empty lists (no names: all outputs), ``model_version`` -1
    lets the server choose, ``correlation_id`` is a number or a text, ``timeout`` is microseconds and counts only where the
    callee's queue policy allows it, ``flags`` are those of a sequence. Raises TritonModelException or TypeError for what
    can be seen to be wrong at once; everything else is told by the response.
    """

    __module__ = COMPILED
    __slots__ = (
        "__weakref__",
        "_answering",
        "_answering_of",
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_parameters",
        "_preferred_memory",
        "_release_flags",
        "_request_id",
        "_requested_outputs",
        "_sender",
        "_timeout_us",
        "_trace",
        "_windows",
    )

    _answering: Answering | None
    _answering_of: Callable[[], Answering] | None
    _correlation_id: int | str
    _inputs: list[Tensor]
    _sender: InferenceResponseSender | None
    _requested_outputs: frozenset[str]
    _windows: Windows | None

    def __init__(
        self,
        request_id: str | bytes = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,  # required, this and the next two; on Triton, too, they stand here
        requested_output_names: Sequence[str | bytes] | set[str] | None = None,
        model_name: str | bytes | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, bool | int | str] | None = None,
    ) -> None:
        given = (
            request_id,
            correlation_id,
            inputs,
            requested_output_names,
            model_name,
            model_version,
            flags,
            timeout,
            preferred_memory,
            trace,
            parameters,
        )
        try:
            self._request_id = text(request_id)
            self._inputs = _tensors(inputs)
            self._requested_outputs = _names(requested_output_names)
            self._model_name = text(model_name)
            self._model_version = integer(model_version, bits=64, is_signed=True)
            self._flags = integer(flags, bits=32)
            self._timeout_us = integer(timeout, bits=64)
            if correlation_id is None:
                raise Unfit
            if not isinstance(preferred_memory, (PreferredMemory, type(None))):
                raise Unfit
            if not isinstance(trace, (InferenceTrace, type(None))):
                raise Unfit
        except Unfit:
            refuse_arguments("__init__", _REQUEST_SIGNATURE, given)
        which = f"for request with id '{self._request_id}' and model name '{self._model_name}' should not be empty."
        if any(tensor is None for tensor in self._inputs):
            raise TritonModelException(f"Input tensor {which}")
        if not all(self._requested_outputs):
            raise TritonModelException(f"Requested output name {which}")
        self._correlation_id = _checked_correlation_id(correlation_id)
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._parameters = "" if parameters is None else parameters_text(parameters)
        self._release_flags = RELEASE_ALL
        self._answering = None
        self._answering_of = None
        self._sender = None

    @classmethod
    def _received(
        cls,
        *,
        model_name: str,
        model_version: int,
        request_id: str,
        correlation_id: int | str,
        flags: int,
        timeout_us: int,
        parameters: str,
        requested_outputs: frozenset[str],
        inputs: list[Tensor],
        answering_of: Callable[[], Answering] | None = None,
        windows: Windows | None = None,
        trace_context: str = "",
    ) -> InferenceRequest:
        """A request of a client. *answering_of* makes what its responses go through, once somebody asks for it.

        *windows* are the outputs that go into the client's memory, and where. The model may execute it, too, and calls itself
        then.
        """
        request = cls.__new__(cls)
        request._model_name = model_name
        request._model_version = model_version
        request._request_id = request_id
        request._correlation_id = correlation_id
        request._flags = flags
        request._timeout_us = timeout_us
        request._parameters = parameters
        request._requested_outputs = requested_outputs
        request._inputs = inputs
        request._release_flags = RELEASE_ALL
        request._answering = None
        request._answering_of = answering_of
        request._sender = None
        request._windows = windows
        request._trace = InferenceTrace._of(trace_context) if trace_context else None
        return request

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def inputs(self) -> list[Tensor]:
        """A new list of the same tensors, in the order of the client's request; omitted optional ones are not in it."""
        return list(self._inputs)

    def request_id(self) -> str:
        """The client's id, "" if it gave none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """The id of the client's sequence, as it sent it; 0 if it did not."""
        return self._correlation_id

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and …_END, combined."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = _flags_of("set_flags", flags)

    def timeout(self) -> int:
        """Microseconds from the client's ``timeout`` parameter, 0 if none; enforced by the scheduler, not here."""
        return self._timeout_us

    def parameters(self) -> str:
        """The custom parameters as JSON text, ``"{}"`` if none."""
        return self._parameters or "{}"

    def requested_output_names(self) -> set[str]:
        """The outputs the client asked for; all configured ones if it named none."""
        return set(self._requested_outputs)

    def trace(self) -> InferenceTrace:
        """The trace, to be given to the requests that the model makes on behalf of this one."""
        return self._trace if self._trace is not None else InferenceTrace()

    def get_response_sender(self) -> InferenceResponseSender:
        """What sends responses to this request; always the same object."""
        if self._sender is None:
            self._sender = InferenceResponseSender._of(self._answer())
        return self._sender

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more. False for a request that the model built."""
        answering = self._answer()
        return answering is not None and answering.poll_cancelled()

    def set_release_flags(self, flags: int) -> None:
        """TRITONSERVER_REQUEST_RELEASE_RESCHEDULE wants this request in a later ``execute`` again (4.5)."""
        self._release_flags = _flags_of("set_release_flags", flags)

    def _answer(self) -> Answering | None:
        if self._answering is None and self._answering_of is not None:
            self._answering = self._answering_of()
        return self._answering

    # ------------------------------------------------------------------------------------------ BLS

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...
    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator: ...
    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Call the model and wait for its response, which may be an error; with *decoupled*, for the first of them."""
        decoupled = _truth_of("exec", decoupled)
        call = host().call(self, decoupled=decoupled)
        try:
            call.wait(1)
        except BaseException:  # of a signal handler of the model's, a time limit say: nobody can ask for the responses
            call.is_discarded = True
            call.abandon()
            raise
        return ResponseIterator(call) if decoupled else call.only_response()

    @overload
    def async_exec(self, decoupled: Literal[False] = False) -> asyncio.Future[InferenceResponse]: ...
    @overload
    def async_exec(self, decoupled: Literal[True]) -> asyncio.Future[ResponseIterator]: ...
    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """`exec`, to be awaited in a coroutine. The call begins here and now, so that several run side by side.

        Raises RuntimeError where no event loop runs.
        """
        decoupled = _truth_of("async_exec", decoupled)
        loop = asyncio.get_running_loop()
        call = host().call(self, decoupled=decoupled)
        future: asyncio.Future[Any] = loop.create_future()

        def resolve() -> None:
            if future.done():
                return
            try:
                call.wait(1)  # for nothing any more, but it raises for a call that is lost
            except TritonModelException as error:
                future.set_exception(error)
            else:
                future.set_result(ResponseIterator(call) if decoupled else call.only_response())

        def on_first_response() -> None:
            try:
                loop.call_soon_threadsafe(resolve)
            except RuntimeError:
                pass  # the loop was closed, so nobody awaits it

        def on_done(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                call.is_discarded = True
                call.abandon()

        call.notify(on_first_response)
        future.add_done_callback(on_done)
        return future


def _tensors(value: object) -> list[Tensor]:
    """None may be among them, and has a text of its own."""
    tensors = list(items(value))
    if not all(isinstance(tensor, (Tensor, type(None))) for tensor in tensors):
        raise Unfit
    return tensors


def _names(value: object) -> frozenset[str]:
    """Sets, too, as `InferenceRequest.requested_output_names` gives one."""
    return frozenset(map(text, value if isinstance(value, (set, frozenset)) else items(value)))


def _checked_correlation_id(value: object) -> int | str:
    if isinstance(value, str):
        return str(value)
    if not isinstance(value, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= value <= _LARGEST_U64:
        raise RuntimeError(f"correlation_id must be from 0 to 2**64 - 1, got {value}")
    return int(value)


def _flags_of(method: str, value: object) -> int:
    try:
        return integer(value, bits=32)
    except Unfit:
        refuse_arguments(method, "(self: InferenceRequest, flags: int) -> None", (value,))


def _truth_of(method: str, value: object) -> bool:
    try:
        return truth(value)
    except Unfit:
        refuse_arguments(method, "(self: InferenceRequest, decoupled: bool = False) -> object", (value,))


_REQUEST_SIGNATURE = (
    "InferenceRequest(request_id: str = '', correlation_id: object = 0, inputs: list[Tensor], "
    "requested_output_names: list[str], model_name: str, model_version: int = -1, flags: int = 0, timeout: int = 0, "
    "preferred_memory: PreferredMemory = <default>, trace: InferenceTrace = <empty>, parameters: object = None)"
)
