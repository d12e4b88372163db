"""A process that has loaded a model once, for all instances of it (INSTANCE_SHARING; docs/instances.md).

    fork      an instance is a process that is forked from here, with the model as ``initialize`` left it. Nothing is executed
              here, so that the memory of the model stays as it is, one for all
    threads   an instance is a thread here, and ``execute`` of one model object runs in all of them

It is started as workers are, by START with `Task.SHARE`, initialises the model and says READY. Then BRANCH asks for an
instance, whose five descriptors came before; BRANCHED answers. The instance speaks over its own channel from then on, as any
worker does. The end of a thread is told by ENDED, before its channel ends. STOP ends this process; where instances are
threads, its model is finalized then.

A forked instance is to outlive this process, and to die with the fork server, as workers do. So it is forked twice: the one in
between ends at once, and the fork server, which adopts orphans (bootstrap.py), is the parent.
"""

from __future__ import annotations

import gc
import mmap
import os
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.libc import libc
from pytriton_lite.core.sharing import InstanceSharing
from pytriton_lite.ipc import cuda, messages
from pytriton_lite.ipc.channel import socket_of, wait_descriptor
from pytriton_lite.ipc.line_mark import LineMark
from pytriton_lite.ipc.messages import CONTROL_BYTES, CONTROL_LINE_MARK, STACKS_SIGNAL, Kind
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.worker import beginning, forked, stdio
from pytriton_lite.worker.api_errors import TritonModelException
from pytriton_lite.worker.bls import Call
from pytriton_lite.worker.conversation import Work
from pytriton_lite.worker.process import BLS_ONLY_IN_EXECUTE, Host, Phase, enter, host, install
from pytriton_lite.worker.request import InferenceRequest
from pytriton_lite.worker.serving import Worker

_DESCRIPTORS = 5
_PID = struct.Struct("<i")

_THREAD_ENDS_S = 0.5
"""How long a thread that Python has joined may still be seen by the kernel. Microseconds, on a machine that has time."""


class SharedProcess(Worker):
    """The host of ``initialize``, and of threads of the model that no instance has begun. `serve` makes instances."""

    def __init__(
        self,
        channel: socket.socket,
        descriptors: socket.socket,
        control: memoryview,
        start: ModelStart,
        *,
        path: str,
    ) -> None:
        super().__init__(channel, descriptors, control, start, path=path)
        self._start = start
        self._channel = channel
        self._descriptors = descriptors
        self._fork_server = os.getppid()
        self._threads: dict[int, Worker] = {}
        """The instances that are threads and serve, by number."""
        self._streams: tuple[stdio.SharedStream, stdio.SharedStream] = stdio.share(LineMark(control[CONTROL_LINE_MARK]))
        self._threads_before = frozenset(_name_of(each) for each in _thread_ids() if each != os.getpid())
        """The names that other threads had before ``initialize``.

        In a process that was forked itself, a library's handlers of a fork have made them, as gRPC's do, and will again.
        """

    # ------------------------------------------------------------------------------------------ host

    def ask(self, operation: str, **arguments: Any) -> Any:
        here = host()
        return super().ask(operation, **arguments) if here is self else here.ask(operation, **arguments)

    def tell(self, operation: str, **arguments: Any) -> None:
        # A family that was made in ``initialize`` goes with this process; copies of it that instances drop are nothing.
        here = self if operation == "metric.drop_family" else host()
        if here is self:
            super().tell(operation, **arguments)
        else:
            here.tell(operation, **arguments)

    def call(self, request: InferenceRequest, *, decoupled: bool) -> Call:
        """A call by a thread of the model is one of any instance. Raises TritonModelException where none serves."""
        for instance in list(self._threads.values()):
            if instance.phase is Phase.SERVING:
                return instance.call(request, decoupled=decoupled)
        raise TritonModelException(BLS_ONLY_IN_EXECUTE)

    # ------------------------------------------------------------------------------------------ life

    def check(self) -> None:
        """Raises InferenceError where the model, which is initialised, cannot be forked."""
        if self._start.instance_sharing is InstanceSharing.FORK:
            refusal = _why_not_fork(self._threads_before)
            if refusal:
                text = f"INSTANCE_SHARING 'fork' of model '{self._start.model}': {refusal}"
                raise InferenceError(ErrorCode.UNSUPPORTED, text)

    def prepare_probe(self, model: Any) -> bool:
        """Its instances are asked."""
        return False

    def serve(self, model: Any, *, finalizes: bool = True) -> None:
        """Make instances until STOP."""
        if self._start.instance_sharing is InstanceSharing.FORK:
            gc.collect()
            gc.freeze()  # a collection in an instance would write into every object of the model, and copy its memory
            finalizes = False  # what has never served: each instance finalizes its own
        super().serve(model, finalizes=finalizes)

    def _on_frame(self, kind: int, body: memoryview) -> None:
        if kind == Kind.BRANCH:
            self._conversation.on_work([Work(kind, messages.read_branch(body))])
        else:
            super()._on_frame(kind, body)

    def _handle(self, work: Work) -> bool:
        if work.kind != Kind.BRANCH:
            return super()._handle(work)
        descriptors = [wait_descriptor(self._descriptors) for _ in range(_DESCRIPTORS)]
        begin = self._fork if self._start.instance_sharing is InstanceSharing.FORK else self._begin_thread
        pid, refusal = 0, ""
        try:
            pid = begin(work.number, descriptors)
        except (OSError, RuntimeError) as error:  # no processes or threads left
            refusal = str(error)
        self.outbox.send(messages.branched_frame(work.number, pid, refusal))
        return True

    # ------------------------------------------------------------------------------------------ threads

    def _begin_thread(self, number: int, descriptors: list[int]) -> int:
        # No daemon: threads that the model starts in it would be daemons, too, whose work is lost when the process ends.
        thread = threading.Thread(target=self._live, args=(number, descriptors), name=f"instance {number}")
        try:
            thread.start()
        except RuntimeError:
            for fd in descriptors:
                os.close(fd)
            raise
        return os.getpid()

    def _live(self, number: int, descriptors: list[int]) -> None:
        """The life of an instance that is a thread."""
        channel_fd, descriptors_fd, control_fd, *stdio_fds = descriptors
        status = 1
        with socket_of(channel_fd) as channel, socket_of(descriptors_fd) as more:
            try:
                control = memoryview(mmap.mmap(control_fd, CONTROL_BYTES)).cast("Q")
                os.close(control_fd)
                mark = LineMark(control[CONTROL_LINE_MARK])
                own = [stdio.MarkedStream(fd, mark, owns=True) for fd in stdio_fds]
                for shared, stream in zip(self._streams, own):
                    shared.enter(stream)
                beginning.run_branch(
                    channel,
                    more,
                    control,
                    self._model,
                    enter=lambda worker: self._enter(number, worker),
                    finalizes=False,
                )
                for stream in own:
                    stream.close()
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            worker = self._threads.pop(number, None)
            # Before the channel ends: who hears of that first takes it for the end of the process.
            self.outbox.send(messages.ended_frame(number, status << 8))
            if worker is not None:
                with suppress(OSError):  # it may be shut down already
                    channel.shutdown(socket.SHUT_RDWR)
                worker.close()

    def _enter(self, number: int, worker: Host) -> None:
        assert isinstance(worker, Worker)
        enter(worker)
        self._threads[number] = worker

    # ------------------------------------------------------------------------------------------ fork

    def _fork(self, number: int, descriptors: list[int]) -> int:
        """Fork an instance; its pid. Raises OSError where there can be no more processes."""
        forked.flush_streams()  # what lies in buffers would be written by both
        for stream in self._streams:
            with suppress(ValueError):  # the model has closed or detached it, and has another one in its place
                stream.flush()
        libc().fflush(None)
        with ExitStack() as ours, ExitStack() as theirs:
            for fd in descriptors:
                theirs.callback(os.close, fd)
            go_read, go_write = os.pipe()
            theirs.callback(os.close, go_read)
            ours.callback(os.close, go_write)  # last: the parent of the instance is the fork server by then
            pid_read, pid_write = os.pipe()
            theirs.callback(os.close, pid_write)
            ours.callback(os.close, pid_read)
            between = os.fork()
            if between == 0:
                self._fork_again(descriptors, go_read, pid_write, ours=(go_write, pid_read))
            theirs.close()
            _wait_for(between)
            pid = os.read(pid_read, _PID.size)
        if not pid:
            raise OSError("no process can be forked")
        return int(_PID.unpack(pid)[0])

    def _fork_again(self, descriptors: list[int], go_read: int, pid_write: int, *, ours: tuple[int, int]) -> None:
        """Never returns. In the process between: fork the instance, and end."""
        try:
            pid = os.fork()
            if pid == 0:
                self._become_instance(descriptors, go_read, unused=(*ours, pid_write))
            os.write(pid_write, _PID.pack(pid))
        finally:
            os._exit(0)

    def _become_instance(self, descriptors: list[int], go_read: int, unused: tuple[int, ...]) -> None:
        """Never returns. In the instance: leave what is the shared process's behind, and live as a worker."""
        status, background_s = 1, 0.0
        try:
            os.setpgid(0, 0)
            for fd in unused:
                os.close(fd)
            os.read(go_read, 1)  # end-of-file: the one in between has ended
            os.close(go_read)
            forked.die_with(self._fork_server)
            forked.disregard_signals()
            self._channel.close()
            self._descriptors.close()
            channel_fd, descriptors_fd, control_fd, stdout_fd, stderr_fd = descriptors
            control = memoryview(mmap.mmap(control_fd, CONTROL_BYTES)).cast("Q")
            os.close(control_fd)
            stdio.redirect_fork(self._streams, stdout_fd, stderr_fd, LineMark(control[CONTROL_LINE_MARK]))
            stdio.show_stacks_on(STACKS_SIGNAL)
            background_s = beginning.run_branch(
                socket_of(channel_fd),
                socket_of(descriptors_fd),
                control,
                self._model,
                enter=install,
                finalizes=True,
            )
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            forked.exit_process(status, background_s)


def _wait_for(pid: int) -> None:
    """Wait for the end of a process that was forked from this one."""
    with suppress(ChildProcessError):  # a model may ignore SIGCHLD: then the kernel says that it has ended, but not how
        os.waitpid(pid, 0)


def _why_not_fork(before: frozenset[str]) -> str:
    """Why an instance that is forked from this process, as ``initialize`` has left it, would not work; empty if it would.

    *before* are the names that threads had before ``initialize``.
    """
    user = cuda.user_here()
    if user:
        return (
            f"CUDA was initialised by initialize ({user}), and does not work in processes that are forked afterwards. "
            "Initialise it in the first execute, or use 'threads'"
        )
    names = _threads(before)
    if names:
        return (
            f"threads are running after initialize, which processes that are forked afterwards lack: {', '.join(names)}. "
            "End them in initialize and start them in execute, or use 'threads'"
        )
    return ""


def _threads(before: frozenset[str]) -> list[str]:
    """The names of the threads beside this one that a fork would lose; a library's with a name of *before* come back.

    A library that sees to its own threads, as OpenBLAS does, ends them when the process forks, and starts them anew when it
    needs them. So what is left after a fork counts.
    """
    if len(_thread_ids()) > 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        _wait_for(pid)
    until = time.monotonic() + _THREAD_ENDS_S
    while len(ids := _thread_ids()) > 1 and threading.active_count() == 1 and time.monotonic() < until:
        time.sleep(0.001)  # there is nothing to wait for the kernel with
    own = {thread.native_id: thread.name for thread in threading.enumerate()}
    of_libraries = {each: _name_of(each) for each in ids if each not in own}
    return [
        f"'{own[each]}'" if each in own else f"'{of_libraries[each]}' (of a library)"
        for each in sorted(ids)
        if each != threading.get_native_id() and of_libraries.get(each) not in before
    ]


def _thread_ids() -> list[int]:
    """What the kernel knows; elsewhere than on Linux, what Python knows."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return [thread.native_id for thread in threading.enumerate() if thread.native_id is not None]


def _name_of(thread: int) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:
        return str(thread)
