"""The front ends of an embedded server on transports of the program, in whatever event loop they have.

    the program's loop                        the server's loop
      __call__(scope, receive, send)  ──▶     the HTTP application
      receive, send                   ◀──     awaited there, called here
      unary, stream                   ──▶     the methods of gRPC
      a queue of few messages         ◀──     write: waits until there is room

A body is copied where it leaves the server's loop: it may lie in a model's memory, which is given back there.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton_lite.embedding.loop_thread import LoopThread
from pytriton_lite.frontends.grpc.errors import RpcError, Status
from pytriton_lite.frontends.http.infer import send_error
from pytriton_lite.frontends.listener import AsgiApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from pytriton_lite.frontends.grpc.carried import CarriedCalls

Answer = TypeVar("Answer")

_MOST_AHEAD = 16
"""Messages of a stream that wait for whoever reads it; beyond them the model waits."""
STOPPED = "the server has been stopped"


class OpenWork:
    """What transports have begun in the server's loop, so that a stop can wait for it."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, function: Callable[..., Awaitable[Answer]], *arguments: Any) -> asyncio.Future[Answer]:
        """Have *function* awaited in the server's loop: a future of the running one, whose cancelling cancels it.

        Raises RuntimeError when the server's loop has ended.
        """
        return asyncio.wrap_future(self.thread.begin(self._counted(function, arguments)))

    async def _counted(self, function: Callable[..., Awaitable[Answer]], arguments: tuple[Any, ...]) -> Answer:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await function(*arguments)
        finally:
            self._tasks.discard(task)

    async def wait(self, timeout_s: float) -> None:
        """Wait for what has begun, in the server's loop. Nothing is ended that has not ended in time."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)


class _Caller:
    """The loop of whoever asks, and the context in which it does."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()

    async def do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Have *work* done there, from the server's loop. Raises RuntimeError when that loop has ended."""
        try:
            future = self._context.run(asyncio.run_coroutine_threadsafe, work, self._loop)
        except RuntimeError:
            work.close()
            raise
        return await asyncio.wrap_future(future)


async def outcome(future: asyncio.Future[Answer]) -> Answer:
    """The result of *future*. Raises RuntimeError where the server's end has cancelled it, and not whoever waits."""
    try:
        await asyncio.wait({future})
    except asyncio.CancelledError:
        future.cancel()
        raise
    if future.cancelled():
        raise RuntimeError(STOPPED)
    return future.result()


class HttpApplication:
    """The HTTP front end as an ASGI application for any event loop: ``application(scope, receive, send)``.

    It answers what the listener of HTTP would, below whatever ``root_path`` the scope has. It may be mounted before the server
    has started, and answers 503 while it does not run. Bodies are bytes.
    """

    def __init__(self, work: Callable[[], tuple[OpenWork, AsgiApp]]) -> None:
        """*work* raises RuntimeError where the server does not run."""
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": f"{scope['type']}.close"})  # of a websocket: it is not accepted
            return
        exchange = _Exchange(receive, send)
        try:
            work, app = self._work()
            await exchange.begin(work.thread)
            await outcome(work.begin(app, _below_root(scope), exchange.receive, exchange.send))
            await exchange.finish()
        except RuntimeError as error:
            if exchange.has_begun:
                raise
            await send_error(send, 503, str(error))
        finally:
            exchange.close()


async def _live(receive: Receive, send: Send) -> None:
    """Take part in the life of the program's server; ours has its own."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _below_root(scope: Scope) -> Scope:
    """*scope* as it is where the application is mounted at the root."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or path.encode()
    root: str = scope.get("root_path", "")
    if root and path.startswith(root):
        path, raw = path[len(root) :], raw[len(root.encode()) :]
    return {**scope, "path": path or "/", "raw_path": raw or b"/", "root_path": "", "extensions": {}}


class _Exchange:
    """One request. `receive` and `send` are awaited in the server's loop, everything else in the caller's.

    Each wake-up of a thread costs as much as a small request. So the first message goes with the request, and the last one
    comes with its end; in between there is one for each.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self.has_begun = False
        """Whether an answer has begun."""
        self._caller = _Caller()
        self._receive = receive
        self._send = send
        self._thread: LoopThread | None = None
        self._first: Message | None = None
        self._is_whole = False
        """The request's body has come to its end: what may come now is that the client goes."""
        self._gone = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._start: Message | None = None
        self._last: Message | None = None

    async def begin(self, thread: LoopThread) -> None:
        """Wait for the first message."""
        self._thread = thread
        self._first = await self._received()

    async def receive(self) -> Message:
        first, self._first = self._first, None
        if first is not None:
            return first
        if not self._is_whole:
            return await self._caller.do(self._received())
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _received(self) -> Message:
        message = await self._receive()
        if not message.get("more_body") and not self._is_whole:
            self._is_whole = True
            self._watching = asyncio.ensure_future(self._watch(message))
        return message

    async def _watch(self, message: Message) -> None:
        """Tell the server's loop when the client has gone."""
        while message["type"] != "http.disconnect":
            message = await self._receive()
        assert self._thread is not None
        self._thread.post_if_alive(self._gone.set)

    async def send(self, message: Message) -> None:
        """Send *message*; the beginning goes with the first of the body, which comes at once."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        body = message.get("body", b"")
        if not isinstance(body, bytes):
            message = {**message, "body": bytes(body)}
        if message.get("more_body"):
            await self._caller.do(self._sent(message))
        else:
            self._last = message

    async def _sent(self, message: Message) -> None:
        start, self._start = self._start, None
        if start is not None:
            self.has_begun = True
            await self._send(start)
        await self._send(message)

    async def finish(self) -> None:
        """Send what comes last, which is nothing where the client has gone."""
        if self._last is not None:
            await self._sent(self._last)

    def close(self) -> None:
        """Nobody is interested any more in whether the client goes."""
        if self._watching is not None:
            self._watching.cancel()


class GrpcMethods:
    """The methods of gRPC for a transport that is not the server's: messages are bytes, as they are on the wire.

    *path* is ``/inference.GRPCInferenceService/ModelInfer``; *metadata* are pairs of a lower-case key and a value. Methods are
    for coroutines, of any event loop. They raise `RpcError`.
    """

    def __init__(self, work: Callable[[], tuple[OpenWork, CarriedCalls]]) -> None:
        """*work* raises RuntimeError where the server does not run."""
        self._work = work

    async def unary(
        self, path: str, request: bytes, *, metadata: Iterable[tuple[str, str | bytes]] = (), peer: str = ""
    ) -> bytes:
        """The answer to a call of one message: any method but ModelStreamInfer, Watch and reflection.

        Cancelling it cancels the request. *peer* is for logs.
        """
        try:
            work, calls = self._work()
            return await outcome(work.begin(calls.unary, path, request, tuple(metadata), peer))
        except RuntimeError as error:
            raise _unavailable(error) from None

    async def stream(
        self,
        path: str,
        requests: AsyncIterator[bytes],
        *,
        metadata: Iterable[tuple[str, str | bytes]] = (),
        peer: str = "",
    ) -> AsyncGenerator[bytes, None]:
        """The answers to a call of any number of messages, as they come: ModelStreamInfer, Watch, reflection.

        Who does not take them holds the model back. Closing the iterator cancels what has not been answered.
        """
        outlet = _Outlet()
        try:
            work, calls = self._work()
            reading = outlet.requests(requests)
            serving = work.begin(calls.stream, path, reading, outlet.write, tuple(metadata), peer)
        except RuntimeError as error:
            raise _unavailable(error) from None
        serving.add_done_callback(outlet.close)
        try:
            async for message in outlet:
                yield message
            await outcome(serving)
        except RuntimeError as error:
            raise _unavailable(error) from None
        finally:
            serving.cancel()


def _unavailable(error: RuntimeError) -> RpcError:
    return RpcError(Status.UNAVAILABLE, Status.UNAVAILABLE.name, str(error))


class _Outlet:
    """Messages of a stream: written in the server's loop, read in the caller's, where the state is."""

    def __init__(self) -> None:
        self._caller = _Caller()
        self._messages: deque[bytes] = deque()
        self._is_closed = False
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()

    async def write(self, message: bytes) -> None:
        """Hand on *message* when there is room. In the server's loop."""
        await self._caller.do(self._put(message))

    async def requests(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """*requests* of the caller's loop, in the server's."""

        async def following() -> bytes | None:
            try:
                return await requests.__anext__()
            except StopAsyncIteration:
                return None

        while (message := await self._caller.do(following())) is not None:
            yield message

    async def _put(self, message: bytes) -> None:
        while len(self._messages) >= _MOST_AHEAD and not self._is_closed:
            self._has_room.clear()
            await self._has_room.wait()
        self._messages.append(message)
        self._changed.set()

    def close(self, _: object) -> None:
        """No more comes."""
        self._is_closed = True
        self._changed.set()
        self._has_room.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while self._messages:
                message = self._messages.popleft()
                self._has_room.set()
                yield message
            if self._is_closed:
                return
            self._changed.clear()
            await self._changed.wait()
