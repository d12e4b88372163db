"""Chat templates: conversations as the prompts that a model was trained with.

Each model's template is rendered in a process of its own (`renderer`), which is started when the first conversation comes, so
that one that loops or grows takes nobody else's time or memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import struct
from typing import TYPE_CHECKING, Any

import orjson

from pytriton_lite.config.openai import ChatTemplate
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.frontends.process.supervisor import command_of
from pytriton_lite.openai.errors import ApiError
from pytriton_lite.openai.renderer import CPU_S, MOST_CHARACTERS

if TYPE_CHECKING:
    from pytriton_lite.engine.server import ServedVersion

Json = dict[str, Any]

_MOST = 16
"""Processes at a time; of more models the one that was asked longest ago ends."""
_WALL_S = 60.0
"""For a process that does nothing at all, which takes no processor time either."""
_LENGTH = struct.Struct("<I")


class _Renderer:
    """One process. Whoever uses it has its turn, and the last user ends it when it was retired."""

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp
        """Of the version that the template belongs to."""
        self.turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._is_killed = False
        """Whether that was ended by us; the loop hears of its end later."""
        self._users = 0
        self._is_retired = False

    def __enter__(self) -> None:
        self._users += 1

    def __exit__(self, *error: object) -> None:
        self._users -= 1
        if self._is_retired and not self._users:
            self.kill()

    def retire(self) -> None:
        """End the process when nobody who has asked for it before waits for it any more; it gets no new users."""
        self._is_retired = True
        if not self._users:
            self.kill()

    async def start(self, template: ChatTemplate) -> None:
        """Raises InferenceError where the template is none, and where no process can be started."""
        await self._let_go()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command_of("pytriton_lite.openai.renderer"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 20,
                start_new_session=True,
            )
        except OSError as error:  # descriptors or processes are used up, which passes
            text = f"no process for the chat template can be started: {error}"
            raise InferenceError(ErrorCode.UNAVAILABLE, text) from None
        self._is_killed = False
        with_tools = template.text if template.text_with_tools is None else template.text_with_tools
        given = {"template": template.text, "with_tools": with_tools, "tokens": dict(template.tokens)}
        answer = await self.ask(orjson.dumps(given))
        if "broken" in answer:
            self.kill()
            raise InferenceError(ErrorCode.INTERNAL, str(answer["broken"]))

    @property
    def is_over(self) -> bool:
        """Whether it was retired, and has nobody to wait for any more."""
        is_left = self._process is not None and self._process.returncode is None
        return self._is_retired and not self._users and not is_left

    @property
    def is_there(self) -> bool:
        """Whether there is a process to ask."""
        return self._process is not None and self._process.returncode is None and not self._is_killed

    async def ask(self, job: bytes) -> Json:
        """The process's answer to *job*, JSON. Raises InferenceError where it has ended, because *job* takes too much."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(_LENGTH.pack(len(job)) + job)
            return await asyncio.wait_for(self._answer(process.stdin, process.stdout), _WALL_S)
        except (OSError, EOFError, asyncio.TimeoutError):  # EOFError: a part of an answer, and none
            self.kill()
            status = await process.wait()
            if status == -signal.SIGPROF:
                text = f"the chat template took more than {CPU_S:g} s of processor time"
            else:
                text = f"the chat template's process ended with status {status}"
            raise InferenceError(ErrorCode.INTERNAL, text) from None
        except BaseException:  # whoever asks has gone, for instance
            self.kill()  # its answer would be taken for the next one's
            raise

    @staticmethod
    async def _answer(stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> Json:
        await stdin.drain()
        (length,) = _LENGTH.unpack(await stdout.readexactly(_LENGTH.size))
        answer: Json = orjson.loads(await stdout.readexactly(length))
        return answer

    def kill(self) -> None:
        """End the process, if there is one."""
        self._is_killed = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def end(self) -> None:
        """Kill the process, and wait until the loop has let go of it, which a loop that is closed first cannot."""
        self.kill()
        async with self.turn:  # whoever reads its answer sees its end first
            await self._let_go()

    async def _let_go(self) -> None:
        """Hear of the end of a process that was killed, or has ended."""
        if self._process is not None:
            await self._process.communicate()


class Templates:
    """The renderers of all models, by name. They end with the server."""

    def __init__(self) -> None:
        self._renderers: dict[str, _Renderer] = {}
        self._all: set[_Renderer] = set()
        """With those that were retired, and are not over."""
        self._is_closed = False

    async def render(self, served: ServedVersion, job: bytes) -> str:
        """The prompt that the template of *served* makes of *job*, an object with its variables as JSON.

        Raises ApiError for a conversation that the template refuses, InferenceError for a template that fails.
        """
        try:
            answer = await self._ask(self._renderer(str(served.id), served.stamp), served, job)
        except InferenceError as error:
            raise InferenceError(error.code, f"model '{served.name}': {error.message}") from None
        if "raised" in answer:
            raise ApiError(f"The chat template of the model refuses the messages: {answer['raised']}", param="messages")
        if "is_long" in answer and len(job) > MOST_CHARACTERS // 2:  # the template does not do that with little
            text = f"The messages are too long: the prompt would have more than {MOST_CHARACTERS} characters."
            raise ApiError(text, status=413, param="messages", code="request_too_large")
        if "failed" in answer:
            text = f"model '{served.name}': the chat template failed: {answer['failed']}"
            raise InferenceError(ErrorCode.INTERNAL, text)
        return str(answer["text"])

    async def _ask(self, renderer: _Renderer, served: ServedVersion, job: bytes) -> Json:
        with renderer:
            async with renderer.turn:
                if not renderer.is_there:
                    await self._start(renderer, served)
                return await renderer.ask(job)

    async def close(self) -> None:
        """End all processes, and start no more."""
        self._is_closed = True
        await asyncio.gather(*[renderer.end() for renderer in self._all])
        self._renderers.clear()
        self._all.clear()

    def _renderer(self, name: str, stamp: int) -> _Renderer:
        renderer = self._renderers.pop(name, None)
        if renderer is None or renderer.stamp != stamp:
            if renderer is not None:
                renderer.retire()
            renderer = _Renderer(stamp)
            self._all = {each for each in self._all if not each.is_over} | {renderer}
        self._renderers[name] = renderer  # the last one asked is the last in the dict
        if len(self._renderers) > _MOST:
            self._renderers.pop(next(iter(self._renderers))).retire()
        return renderer

    async def _start(self, renderer: _Renderer, served: ServedVersion) -> None:
        template = served.config.chat_template
        assert template is not None, "the load has seen that there is one"
        if not self._is_closed:
            await renderer.start(template)
        if self._is_closed:
            renderer.kill()
            raise InferenceError(ErrorCode.UNAVAILABLE, "the server is stopping")
