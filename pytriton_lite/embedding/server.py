"""`Server`: load, infer, stream, stop, from any thread and from any event loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytriton_lite import logs
from pytriton_lite.app import Composition, StartError
from pytriton_lite.binding.in_process import InProcess
from pytriton_lite.binding.specification import DynamicBatcher, Said, Specification, Tensor, specify
from pytriton_lite.binding.template import Template
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import ParameterValue
from pytriton_lite.core.standard_streams import hold_standard_descriptors
from pytriton_lite.embedding.loop_thread import LOOK_S, LoopThread
from pytriton_lite.embedding.options import read_options, writes_log
from pytriton_lite.embedding.requests import AsyncStream, Box, Calls, Response, SingleCall, Stream, Wanted, fulfiller
from pytriton_lite.embedding.transports import GrpcMethods, HttpApplication, OpenWork, outcome
from pytriton_lite.engine.models.store import PollFailed
from pytriton_lite.engine.server import Server as Engine
from pytriton_lite.engine.views import IndexEntry, ModelMetadata
from pytriton_lite.engine.workers.fork_server import BoundSource
from pytriton_lite.frontends.http.view_json import statistics_json
from pytriton_lite.repository.definition import Definition

if TYPE_CHECKING:
    from pytriton_lite.config.model_config import TensorSpec
    from pytriton_lite.frontends.grpc.carried import CarriedCalls
    from pytriton_lite.frontends.listener import AsgiApp

__all__ = ["IndexEntry", "ModelMetadata", "Server", "Waiting"]

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Work = Callable[[], Coroutine[Any, Any, Answer]]
"""What makes a coroutine for the server's loop, once it is known that this runs."""
Self = TypeVar("Self", bound="Server")

_LAST_S = 5.0
"""What the thread may take beyond the exit timeout: workers are killed, and what still runs is cancelled."""


class Waiting(NamedTuple):
    """Numbers of requests."""

    queued: int
    """In the queues of models, in no worker's hands."""
    unanswered: int
    """Accepted and not answered: those, and what workers have."""


class Server:
    """A model server in a thread of this process. Make it, start it once, stop it; or use it as a context manager.

    It installs no signal handlers, ends no process, leaves ``logging`` as it is, and listens to nobody unless a port is given.
    Models run in processes of their own, as always. Every method may be called from any thread, also where an event loop
    runs (a notebook); those that begin with ``a`` are for coroutines, of any loop. In a process that was forked from this one
    they raise RuntimeError.

    Methods raise `InferenceError`, with Triton's texts and an ``ErrorCode``, for whatever the server refuses or a model fails
    with, and RuntimeError before `start` and after `stop`.
    """

    def __init__(
        self,
        repository: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        **options: Any,
    ) -> None:
        """Read the options; nothing is started.

        *repository* is a folder of models, or several, or URLs (docs/remote-repositories.md); None for no folder at all. All
        models in it are loaded at the start, unless ``load_model`` names those that are.

        A port has the server listen there; 0 chooses one, which the attribute of the same name says then. *options* are those
        of ``pytriton-lite serve`` by the names that its flags have, with underscores: ``strict_readiness=False``,
        ``cache_config="local,size=1000000"``. A value is the option's own or its text. Other defaults than those of the
        command: ``model_control_mode="explicit"`` with all models loaded, addresses of 127.0.0.1, no console; and where an
        option of the log is given (``log_verbose``, ``log_file``, …) the server writes its log as the command does, until it
        is stopped. Otherwise its lines go to the loggers below ``pytriton_lite``.

        Raises TypeError for a name that is no option's, ValueError for a value that an option does not take.
        """
        given = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port, **options}
        self._settings = read_options(repository, given)
        self._writes_log = writes_log(options)
        self._pid = os.getpid()
        self._thread: LoopThread | None = None
        self._log: logs.Log | None = None
        self._parts: Composition | None = None
        self._calls: Calls | None = None
        self._work: OpenWork | None = None
        """What the program's transports have begun."""
        self._http_app: AsgiApp | None = None
        self._grpc_calls: CarriedCalls | None = None
        self._waiting_to_bind: dict[str, tuple[Definition, BoundSource]] = {}
        """Models that were bound and wait for the start, by name."""
        # One that its thread may take again: a signal's handler, which stops the server, interrupts `start` and `stop`, too.
        self._lock = threading.RLock()
        """Held by whoever starts or stops, or has something wait for the start."""
        self._has_started = False
        self._starting: asyncio.Task[Any] | None = None
        """What the loop does of the start."""
        self._given_up_s: float | None = None
        """What the end may take of a start that `stop` has come into."""
        self._has_stopped = False
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Has one item, from the end on. An Event has a lock, which `wait` holds now and then where a handler interrupts it."""
        self._ended_in_time = True
        self._at_exit: Callable[[], None] = _nothing

    def __repr__(self) -> str:
        state = "stopped" if self._has_stopped else "running" if self._calls is not None else "not started"
        ports = {name: self._port(name) for name in ("http", "grpc", "metrics")}
        told = ", ".join(f"{name}_port={port}" for name, port in ports.items() if port is not None)
        return f"<pytriton_lite.Server {state}{', ' if told else ''}{told}>"

    # ------------------------------------------------------------------------------------------ life

    def start(self: Self) -> Self:
        """Load the models of the start, and listen where that is wanted; the server serves when this returns, which is itself.

        Raises StartError, whose ``causes`` say what is to be mended, where a model does not load (``exit_on_error=False``
        serves the others), a port is taken or anything else fails, and RuntimeError where `stop` comes meanwhile; nothing is
        left running then.
        """
        self._check_process()
        with self._lock:
            if self._has_started:
                raise RuntimeError("a Server is started once; make another one")
            self._has_started = True
            try:
                self._begin_start().do(self._start())
                if self._given_up_s is not None:  # by a handler in this thread, when the loop had done all
                    raise asyncio.CancelledError
            except BaseException as error:
                # Models that have loaded are finalized, as when a server stops; but Ctrl-C waits for nobody.
                timeout_s = self._settings.exit_timeout_secs if isinstance(error, Exception) else 0.0
                self._stop(timeout_s if self._given_up_s is None else self._given_up_s)
                if self._given_up_s is not None and isinstance(error, asyncio.CancelledError):
                    raise RuntimeError("the server was stopped while it started") from None
                if isinstance(error, (InferenceError, OSError)):
                    raise StartError(str(error)) from error
                raise
        return self

    async def astart(self: Self) -> Self:
        """`start`, for a coroutine. Cancelling it ends what has begun, as Ctrl-C does."""
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._give_up_start(0.0)
            await asyncio.wait({starting})
            if starting.exception() is None:  # it had started before the loop heard of that
                await self.astop(0.0)
            raise
        return self

    def _begin_start(self) -> LoopThread:
        hold_standard_descriptors()
        self._log = logs.configure(self._settings) if self._writes_log else logs.pass_on(self._settings)
        self._thread = LoopThread("pytriton-lite")
        self._work = OpenWork(self._thread)
        self._at_exit = _stop_at_exit(self)
        return self._thread

    @property
    def _is_starting(self) -> bool:
        return self._has_started and self._calls is None and not self._has_stopped

    def _give_up_start(self, timeout_s: float) -> None:
        """Have `start` raise, and end within *timeout_s* what it has begun; nothing where it has returned."""
        self._given_up_s = timeout_s  # before the thread is looked at: the loop sees it, or there is one to be told
        if self._thread is not None:
            self._thread.post_if_alive(self._cancel_start)

    def _cancel_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()

    async def _start(self) -> None:
        assert self._log is not None and self._thread is not None
        self._starting = asyncio.current_task()
        if self._given_up_s is not None:
            raise asyncio.CancelledError
        self._parts = parts = Composition(self._settings, self._log)
        engine = await parts.open()
        for name in list(self._waiting_to_bind):
            await engine.bind_model(*self._waiting_to_bind.pop(name))
        await parts.prepare()
        if parts.listens_first:
            await parts.listen()
        await parts.load()
        if not parts.listens_first:
            await parts.listen()
        self._calls = Calls(self._thread, engine)

    def stop(self, timeout_s: float | None = None) -> bool:
        """Serve what has been accepted, end every model and process, and the thread. Whether all ended by itself in time.

        *timeout_s* is ``exit_timeout_secs`` by default; what has not ended by then is killed. Requests that are still open
        end with an error. Nothing happens when it has been stopped, or never started; a `start` that is under way raises, and
        ends all that it has begun.

        A signal's handler may call it. Where that has interrupted `start` or `stop`, in the same thread, it returns False at
        once, and those end the server when the handler has returned.
        """
        self._check_process()
        if self._thread is not None and self._thread.is_current:
            raise RuntimeError("stop waits for the server's own thread, and was called in it")
        if timeout_s is None:
            timeout_s = self._settings.exit_timeout_secs
        if self._is_starting:
            self._give_up_start(timeout_s)
        with self._lock:
            # Still, with the lock in hand: this has interrupted it.
            return False if self._is_starting else self._stop(timeout_s)

    async def astop(self, timeout_s: float | None = None) -> bool:
        """`stop`, for a coroutine."""
        return await asyncio.get_running_loop().run_in_executor(None, self.stop, timeout_s)

    def _stop(self, timeout_s: float) -> bool:
        self._forget_bound()
        if not self._has_started or self._has_stopped:
            return self._ended_in_time
        self._has_stopped = True  # with no call in between: a handler that comes here finds one or the other
        self._ended_in_time = False
        self._at_exit()
        in_time = self._thread is None or self._end_thread(self._thread, timeout_s)
        if self._calls is not None:
            self._calls.close()
        if self._log is not None:
            self._log.detach()
        self._starting = None  # a failure of it has this object in its traceback
        self._ended_in_time = in_time
        self._ended.put(None)
        return in_time

    def _end_thread(self, thread: LoopThread, timeout_s: float) -> bool:
        in_time = False
        try:
            in_time = thread.do(self._end(timeout_s), timeout_s + _LAST_S)
        except queue.Empty:
            logger.error("the server did not end within %g s", timeout_s + _LAST_S)
        except Exception:
            logger.exception("the server did not end as it should")
        if not thread.close(_LAST_S):
            logger.error("the server's thread has not ended, and is left to itself")
        return in_time

    def _forget_bound(self) -> None:
        while self._waiting_to_bind:
            self._waiting_to_bind.popitem()[1][1].close()

    async def _end(self, timeout_s: float) -> bool:
        parts = self._parts
        if parts is None:
            return True
        in_time = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            if parts.has_engine:
                in_time = await parts.end(deadline)
                if (
                    self._work is not None
                ):  # every request is answered; what of it is on its way to clients may get there
                    await self._work.wait(max(0.0, deadline - loop.time()))
        finally:
            await parts.close()
        return in_time

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until somebody stops the server; whether that was within *timeout_s*.

        Without *timeout_s* Ctrl-C ends the wait, too, which is False then: the server serves until it is stopped, as by the end
        of its ``with``. With *timeout_s* KeyboardInterrupt passes through, out of the loop that such a call stands in.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            if not self._has_stopped:
                self._running()
            while True:
                left_s = LOOK_S if end_s is None else min(LOOK_S, max(end_s - time.monotonic(), 0.0))
                try:
                    item = self._ended.get(timeout=left_s)
                    break
                except queue.Empty:
                    # Python calls handlers of signals here. One that came when this had begun to wait and did not sleep yet, or
                    # to another thread, wakes nobody.
                    if end_s is not None and time.monotonic() >= end_s:
                        return False
        except KeyboardInterrupt:
            if timeout_s is not None:
                raise
            return False
        self._ended.put(item)  # for whoever else waits
        return True

    def __enter__(self: Self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        if self._is_here:  # a process that was forked in the block leaves it, too, by sys.exit for instance
            self.stop()

    async def __aenter__(self: Self) -> Self:
        return await self.astart()

    async def __aexit__(self, *error: object) -> None:
        if self._is_here:
            await self.astop()

    @property
    def is_running(self) -> bool:
        """Whether it has started, and has not been stopped."""
        return self._calls is not None and not self._has_stopped

    # ------------------------------------------------------------------------------------------ infer

    def infer(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None = None,
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        request_id: str = "",
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout_us: int = 0,
        timeout_s: float | None = None,
    ) -> Response:
        """Ask *model*, and wait for its one response.

        *inputs* are arrays of numpy by name, with the batch dimension in front where the model has one; numbers, lists and
        texts become arrays of the type that the model wants, and are refused where that would change their values. They must
        not change before the answer is there. *version* None is the newest; *outputs* names those that are wanted, all by
        default; *parameters* are the request's own. *priority* and *timeout_us*, microseconds in the queue, are as in Triton's
        protocol, and so is what belongs to sequences. The request waits in the model's queue and is batched as any other.

        *timeout_s* bounds the wait: then the request is cancelled, and TimeoutError raised. Raises InferenceError, and
        TypeError or ValueError for what no request can say; a decoupled model wants `stream`.
        """
        calls = self._running()
        come: queue.SimpleQueue[Box | InferenceError] = queue.SimpleQueue()
        call = SingleCall(
            calls,
            Wanted(
                model,
                inputs,
                version=version,
                outputs=outputs,
                parameters=parameters,
                request_id=request_id,
                correlation_id=correlation_id,
                sequence_start=sequence_start,
                sequence_end=sequence_end,
                priority=priority,
                timeout_us=timeout_us,
                declared=self._declared,
            ),
            come.put,
        )
        calls.enter(call)
        try:
            return call.wait(come, timeout_s)
        except queue.Empty:
            raise TimeoutError(f"model '{model}' has not answered within {timeout_s:g} s") from None

    async def ainfer(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None = None,
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        request_id: str = "",
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout_us: int = 0,
    ) -> Response:
        """`infer`, for a coroutine. Cancelling it cancels the request."""
        calls = self._running()
        come: asyncio.Future[Box | InferenceError] = asyncio.get_running_loop().create_future()
        call = SingleCall(
            calls,
            Wanted(
                model,
                inputs,
                version=version,
                outputs=outputs,
                parameters=parameters,
                request_id=request_id,
                correlation_id=correlation_id,
                sequence_start=sequence_start,
                sequence_end=sequence_end,
                priority=priority,
                timeout_us=timeout_us,
                declared=self._declared,
            ),
            fulfiller(come),
        )
        calls.enter(call)
        return await call.come(come)

    def stream(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None = None,
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        request_id: str = "",
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout_us: int = 0,
    ) -> Stream:
        """Ask *model*, and iterate over its responses as they come; any model, of one response or of many.

        Arguments are those of `infer`. The iterator is a context manager: leaving it cancels what has not ended, and who does
        not take responses holds the model back.
        """
        return Stream(
            self._running(),
            Wanted(
                model,
                inputs,
                version=version,
                outputs=outputs,
                parameters=parameters,
                request_id=request_id,
                correlation_id=correlation_id,
                sequence_start=sequence_start,
                sequence_end=sequence_end,
                priority=priority,
                timeout_us=timeout_us,
                declared=self._declared,
            ),
        )

    def astream(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None = None,
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
        request_id: str = "",
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        priority: int = 0,
        timeout_us: int = 0,
    ) -> AsyncStream:
        """`stream`, for a coroutine: ``async for response in server.astream(...)``, in the loop that calls it."""
        return AsyncStream(
            self._running(),
            Wanted(
                model,
                inputs,
                version=version,
                outputs=outputs,
                parameters=parameters,
                request_id=request_id,
                correlation_id=correlation_id,
                sequence_start=sequence_start,
                sequence_end=sequence_end,
                priority=priority,
                timeout_us=timeout_us,
                declared=self._declared,
            ),
        )

    def _declared(self, model: str, version: int | None) -> Mapping[str, TensorSpec]:
        """The inputs of *model* by name. Raises InferenceError for one that does not serve."""
        return self._read(lambda: self._engine.find(model, version).config.inputs_by_name)

    # ------------------------------------------------------------------------------------------ functions

    def bind(
        self,
        function: Any,
        *,
        name: str | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        max_batch_size: int | None = None,
        batcher: DynamicBatcher | bool | None = None,
        decoupled: bool | None = None,
        response_cache: bool | None = None,
        instances: int | None = None,
        parameters: Mapping[str, str] | None = None,
        warm_up: Sequence[Mapping[str, Any]] | None = None,
        strict: bool | None = None,
        in_process: bool | None = None,
    ) -> None:
        """Serve a function, a class or a callable object as a model, which serves when this returns; before `start`, then.

        While `start` is under way, this waits for it.

        A list of functions is one for each instance. Arguments are those of `pytriton_lite.model`, and count more than what
        that has said; the name is the function's by default. Workers are forked from a process that is forked from this one
        here and now, so they have the function as it is, and all that it refers to. A class is made into an object in each
        worker. With *in_process* they are threads of this process, which nobody can kill and which share its interpreter.

        Raises TypeError or ValueError for what cannot be a model, ValueError for a name that there is, RuntimeError where no
        process can be forked or the server has been stopped, and InferenceError where the model does not load.
        """
        said = Said(
            name,
            inputs,
            outputs,
            max_batch_size,
            batcher,
            decoupled,
            response_cache,
            instances,
            parameters,
            warm_up,
            strict,
            in_process,
        )
        self.bind_specification(specify(function, said))

    def bind_specification(self, specification: Specification) -> None:
        """`bind` what `pytriton_lite.binding.specification.specify` has returned."""
        self._check_process()
        definition = Definition(specification.message(), specification.version)
        if self._calls is None and self._keep_for_start(specification, definition):
            return
        if self._has_stopped:
            raise RuntimeError("the server has been stopped")
        try:
            self._do(lambda: self._bind(definition, _source(specification)))
        except InferenceError as error:
            if error.code is ErrorCode.ALREADY_EXISTS:
                raise ValueError(error.message) from None
            raise

    async def _bind(self, definition: Definition, source: BoundSource) -> None:
        with _telling_why():
            await self._engine.bind_model(definition, source)

    def _keep_for_start(self, specification: Specification, definition: Definition) -> bool:
        """Whether the start is still to come. One that is under way has ended when this returns: it took what waited."""
        with self._lock:
            if self._has_started:
                return False
            if specification.name in self._waiting_to_bind:
                raise ValueError(f"there is a model '{specification.name}' already; unbind it, or choose another name")
            self._waiting_to_bind[specification.name] = (definition, _source(specification))
            return True

    def unbind(self, name: str) -> None:
        """Unload a model that was bound, and forget it; requests inside it are served. Raises ValueError for another name."""
        self._check_process()
        if self._calls is None:
            with self._lock:  # behind a start that is under way, as in `_keep_for_start`
                if name in self._waiting_to_bind:
                    self._waiting_to_bind.pop(name)[1].close()
                    return
        try:
            self._do(lambda: self._engine.unbind_model(name))
        except InferenceError as error:
            if error.code is ErrorCode.NOT_FOUND:
                raise ValueError(error.message) from None
            raise

    # ------------------------------------------------------------------------------------------ models

    def load(
        self,
        model: str,
        *,
        config: Mapping[str, Any] | str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load a model, or load it anew where something has changed; it serves when this returns.

        *config* takes the place of its config.pbtxt: a dict, or the text of one in JSON. *files* are then the whole model:
        their contents by path, ``{"1/model.py": b"…"}``. Raises InferenceError with the reason; what was served before is
        served on.
        """
        self._do(lambda: self._load(model, config, files))

    async def aload(
        self,
        model: str,
        *,
        config: Mapping[str, Any] | str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """`load`, for a coroutine."""
        await self._ado(lambda: self._load(model, config, files))

    async def _load(
        self, model: str, config: Mapping[str, Any] | str | None, files: Mapping[str, bytes] | None
    ) -> None:
        text = config if config is None or isinstance(config, str) else json.dumps(config)
        for path, content in (files or {}).items():
            if not isinstance(path, str) or not isinstance(content, (bytes, bytearray, memoryview)):
                kind = type(content).__name__
                raise TypeError(f"files of model '{model}' are bytes by path, not {kind} for {path!r}")
        with _telling_why():
            await self._engine.load_model(model, text, dict(files or {}))

    def unload(self, model: str, *, unload_dependents: bool = False) -> None:
        """Have new requests not find a model any more; those inside are served. One that is not loaded is no error.

        *unload_dependents* unloads what was loaded only because the model is made of it, too.
        """
        self._do(lambda: self._engine.unload_model(model, unload_dependents))

    async def aunload(self, model: str, *, unload_dependents: bool = False) -> None:
        """`unload`, for a coroutine."""
        await self._ado(lambda: self._engine.unload_model(model, unload_dependents))

    def models(self) -> list[str]:
        """Names of the models that serve, sorted."""
        return self._read(lambda: self._engine.served_names())

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """The repository index: every model that there is, each version with its state and the reason; *ready* ones only."""
        return self._do(lambda: self._engine.repository_index(ready=ready))

    def metadata(self, model: str, version: int | None = None) -> ModelMetadata:
        """Names, types and shapes of what goes in and comes out. Raises InferenceError for what does not serve."""
        return self._read(lambda: self._engine.model_metadata(model, version))

    def config(self, model: str, version: int | None = None) -> dict[str, Any]:
        """The complete configuration of a model, in the JSON form of the protocol. The caller's own."""
        return self._read(lambda: json.loads(self._engine.model_config(model, version).json_text))

    # ------------------------------------------------------------------------------------------ health

    def is_ready(self, model: str = "", version: int | None = None) -> bool:
        """Whether the server, or *model*, would serve a request now. False before `start` and after `stop`; never raises.

        A model is asked itself where it has ``is_ready``, for which it has five seconds.
        """
        if not self.is_running:
            return False
        try:
            return self._do(lambda: self._is_ready(model, version))
        except RuntimeError:  # stopped at this moment
            return False

    async def ais_ready(self, model: str = "", version: int | None = None) -> bool:
        """`is_ready`, for a coroutine."""
        if not self.is_running:
            return False
        try:
            return await self._ado(lambda: self._is_ready(model, version))
        except RuntimeError:
            return False

    async def _is_ready(self, model: str, version: int | None) -> bool:
        return await self._engine.is_model_ready(model, version) if model else self._engine.is_ready()

    def statistics(self, model: str = "", version: int | None = None) -> list[dict[str, Any]]:
        """What was counted, a row for each ready version, of *model* or of all, in the JSON form of the protocol's statistics.

        Times are nanoseconds. Raises InferenceError for a model that has none.
        """
        return self._read(lambda: [statistics_json(row) for row in self._engine.statistics(model, version)])

    def waiting(self, model: str = "") -> Waiting:
        """What has been accepted and not answered at this moment, of *model* or of all: what to scale by."""
        return self._read(lambda: self._waiting(model))

    def _waiting(self, model: str) -> Waiting:
        rows = [row for row in self._engine.loaded_statistics() if model in ("", row.name)]
        return Waiting(sum(row.queued for row in rows), sum(row.unanswered for row in rows))

    def metrics_text(self) -> str:
        """The page for Prometheus, as the listener for metrics would answer with."""
        return self._do(self._metrics_text)

    async def _metrics_text(self) -> str:
        assert self._parts is not None
        return await self._parts.metrics_page().text()

    # ------------------------------------------------------------------------------------------ listeners

    @property
    def http_port(self) -> int | None:
        """The port of HTTP; None where nobody listens."""
        return self._port("http")

    @property
    def grpc_port(self) -> int | None:
        """The port of gRPC; None where nobody listens."""
        return self._port("grpc")

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics; None where nobody listens."""
        return self._port("metrics")

    def _port(self, name: str) -> int | None:
        if self._parts is None or self._has_stopped or name not in self._parts.addresses:
            return None
        return self._parts.addresses[name][1] or None

    # ------------------------------------------------------------------------------------------ transports of the program

    def asgi(self) -> HttpApplication:
        """The HTTP front end as an ASGI application, for a web server or a framework of the program's own, of any event loop.

        It answers what the listener of HTTP would. It may be mounted before `start`, and says 503 while the server does not
        run; a stop cuts off none of the answers that have begun.
        """
        return HttpApplication(self._http_work)

    def grpc_methods(self) -> GrpcMethods:
        """The methods of the gRPC front end as functions from bytes to bytes, for a transport of the program's own.

        Raises ImportError without grpcio (``pip install 'pytriton-lite[grpcio]'``), whose status codes it needs.
        """
        try:
            import grpc  # noqa: F401
        except ImportError:
            raise ImportError(
                "grpc_methods needs the package grpcio; install it with: pip install 'pytriton-lite[grpcio]'"
            ) from None
        return GrpcMethods(self._grpc_work)

    def _http_work(self) -> tuple[OpenWork, AsgiApp]:
        self._running()
        assert self._work is not None and self._parts is not None
        if self._http_app is None:
            self._http_app = self._parts.http_application()
        return self._work, self._http_app

    def _grpc_work(self) -> tuple[OpenWork, CarriedCalls]:
        self._running()
        assert self._work is not None and self._parts is not None
        if self._grpc_calls is None:
            self._grpc_calls = self._parts.grpc_calls()
        return self._work, self._grpc_calls

    # ------------------------------------------------------------------------------------------ into the loop

    @property
    def _engine(self) -> Engine:
        assert self._parts is not None
        return self._parts.engine

    @property
    def _is_here(self) -> bool:
        """Whether it is of this process, and not of one from which this was forked."""
        return os.getpid() == self._pid

    def _check_process(self) -> None:
        if not self._is_here:
            raise RuntimeError(
                "this Server is in another process, from which this one was forked: make one here, or ask it over HTTP or gRPC"
            )

    def _running(self) -> Calls:
        self._check_process()
        calls = self._calls
        if calls is None or self._has_stopped:
            text = (
                "has been stopped" if self._has_stopped else "is not running: use it as a context manager, or start it"
            )
            raise RuntimeError(f"the server {text}")
        return calls

    def _running_thread(self) -> LoopThread:
        """The loop's thread. Raises RuntimeError where it does not run, or cannot be waited for."""
        thread = self._running().thread
        if thread.is_current:
            raise RuntimeError("a method that waits for the server's own thread was called in it")
        return thread

    def _do(self, work: Work[Answer]) -> Answer:
        """Do *work* in the loop, and wait. Raises what it raises."""
        try:
            return self._running_thread().do(work())
        except asyncio.CancelledError:
            raise RuntimeError("the server has been stopped") from None

    async def _ado(self, work: Work[Answer]) -> Answer:
        """`_do`, for a coroutine."""
        return await outcome(asyncio.wrap_future(self._running_thread().begin(work())))

    def _read(self, read: Callable[[], Answer]) -> Answer:
        """*read* the engine's state, in the loop that it belongs to."""

        async def soon() -> Answer:
            return read()

        return self._do(soon)


def _source(specification: Specification) -> BoundSource:
    return InProcess(specification) if specification.in_process else Template(specification)


@contextlib.contextmanager
def _telling_why() -> Iterator[None]:
    """Tell the program, whose models these are, what a client would not be told: why one cannot be read."""
    try:
        yield
    except PollFailed as error:
        raise InferenceError(error.code, f"{error.message}: {error.detail}") from None


def _nothing() -> None:
    """Nothing is to be undone."""


def _stop_at_exit(server: Server) -> Callable[[], None]:
    """Have *server* stopped when the interpreter ends, while threads can still be started. What undoes it.

    Until then it is held here: one that runs, and that nobody has any more, would have nobody to stop it.
    """

    def stop() -> None:
        if server._is_here:
            with contextlib.suppress(Exception):
                server.stop()

    atexit.register(stop)
    return lambda: atexit.unregister(stop)
