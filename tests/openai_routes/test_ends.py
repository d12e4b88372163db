"""What is left of requests to OpenAI's routes when they have ended: nothing, without a collection of garbage."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytriton_lite.config.openai import ChatTemplate
from pytriton_lite.core.dtypes import UINT8
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.openai.answers import AllResponses, while_connected
from pytriton_lite.openai.sampling import Sampling
from pytriton_lite.openai.templates import Templates
from pytriton_lite.openai.tool_calls import ToolCalls
from pytriton_lite.openai.writing import Writing, written


@pytest.fixture(autouse=True)
def _no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def in_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await scenario()

    asyncio.run(whole())


def watched_request() -> tuple[InferenceRequest, weakref.ref[np.ndarray[Any, Any]]]:
    """A request, and a reference that is empty when it is gone: objects of compiled classes cannot be watched themselves."""
    array = np.zeros(1, np.uint8)
    return InferenceRequest("m", None, inputs=[Tensor("IN", UINT8, (1,), memoryview(array))]), weakref.ref(array)


class Ticket:
    """An engine's `PendingRequest`: it keeps its request."""

    def __init__(self, request: InferenceRequest) -> None:
        self.request = request

    def consumed(self, count: int = 1) -> None: ...

    def cancel(self) -> None: ...


class Door:
    """Answers each request in the next turn of the loop, with one response or an error."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def infer(self, served: object, request: InferenceRequest, receiver: Any) -> Ticket:
        def answer() -> None:
            response = InferenceResponse("m", 1, "", [], {})
            receiver.on_response(InferenceError(ErrorCode.INTERNAL, "no") if self._fails else response, is_final=True)

        asyncio.get_running_loop().call_soon(answer)
        return Ticket(request)


async def connected() -> dict[str, Any]:
    """The messages of a client that stays."""
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize("fails", [False, True])
def test_of_a_request_whose_responses_are_gathered(fails: bool) -> None:
    async def scenario() -> None:
        request, gone = watched_request()

        async def ask(request: InferenceRequest) -> int:
            door: Any = Door(fails=fails)
            served: Any = None
            return len(await while_connected(AllResponses.to(door, served, request), connected))

        try:
            assert await ask(request) == 1
        except InferenceError as error:
            assert (error.message, fails) == ("no", True)
        del request
        await asyncio.sleep(0)
        assert gone() is None

    in_loop(scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_of_a_request_for_texts(fails: bool) -> None:
    async def scenario() -> None:
        request, gone = watched_request()
        target: Any = SimpleNamespace(served=None, declared=SimpleNamespace(outputs={}))
        counted: Any = SimpleNamespace(**dict.fromkeys(("begun", "wrote", "finished", "ended"), lambda *_: None))
        door: Any = Door(fails=fails)

        async def ask(request: InferenceRequest) -> list[str]:
            writing = Writing(target, Sampling(), counted)
            try:
                writing.begin(door, [request], connected)
                return [one.finish_reason for one in await written(writing, 1)]
            finally:
                writing.close()

        try:
            assert await ask(request) == ["stop"]
        except InferenceError as error:
            assert (error.message, fails) == ("no", True)
        del request
        await asyncio.sleep(0)
        assert gone() is None

    in_loop(scenario)


# Templates ----------------------------------------------------------------------------------------------------------


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def version(stamp: int) -> Any:
    template = ChatTemplate(f"{stamp}: {{{{ x }}}}", {})
    return SimpleNamespace(id="m", stamp=stamp, name="m", config=SimpleNamespace(chat_template=template))


def test_whoever_waits_for_a_template_gets_it_though_the_model_is_loaded_anew() -> None:
    async def scenario() -> None:
        before = children()
        templates = Templates()
        old, new = version(1), version(2)
        renderings = [asyncio.ensure_future(templates.render(old, b'{"x": %d}' % at)) for at in range(3)]
        await asyncio.sleep(0)  # the first has its turn, and a process to start
        renderings.append(asyncio.ensure_future(templates.render(new, b'{"x": 3}')))
        assert await asyncio.gather(*renderings) == ["1: 0", "1: 1", "1: 2", "2: 3"]
        while len(children() - before) > 1:  # noqa: ASYNC110 - the loop's watcher of children has to hear of an end
            await asyncio.sleep(0.001)
        await templates.close()
        assert children() == before

    in_loop(scenario)


def test_whoever_waits_behind_one_that_is_given_up_gets_his_text() -> None:
    async def scenario() -> None:
        before = children()
        templates = Templates()
        served = version(1)
        assert await templates.render(served, b'{"x": 0}') == "1: 0"
        given_up, waiting = [asyncio.ensure_future(templates.render(served, b'{"x": %d}' % at)) for at in (1, 2)]
        await asyncio.sleep(0)  # the first has asked
        given_up.cancel()
        assert await waiting == "1: 2"
        await templates.close()
        assert children() == before

    in_loop(scenario)


def test_no_process_is_started_behind_the_end() -> None:
    async def scenario() -> None:
        before = children()
        templates = Templates()
        served = version(1)
        renderings = [asyncio.ensure_future(templates.render(served, b'{"x": %d}' % at)) for at in range(3)]
        await asyncio.sleep(0)
        await templates.close()
        for rendering in renderings:
            with pytest.raises(InferenceError, match="model 'm': "):
                await rendering
        assert children() == before

    in_loop(scenario)


def test_what_is_constant_in_a_template_takes_no_more_memory_than_a_rendering() -> None:
    async def scenario() -> None:
        templates = Templates()
        served = version(1)
        # Twice that is more than the process may have.
        served.config.chat_template = ChatTemplate("{{ 'x' * 700000000 }}", {})
        with pytest.raises(InferenceError, match="model 'm': the chat template takes too much memory"):
            await templates.render(served, b"{}")
        assert await templates.render(version(2), b'{"x": 3}') == "2: 3"
        await templates.close()

    in_loop(scenario)


def test_without_a_descriptor_for_its_process_a_template_can_be_asked_again() -> None:
    async def scenario() -> None:
        before = children()
        templates = Templates()
        served = version(1)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # those that are open stay
        try:
            with pytest.raises(InferenceError, match="model 'm': no process for the chat template") as raised:
                await templates.render(served, b'{"x": 0}')
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert raised.value.code is ErrorCode.UNAVAILABLE
        assert await templates.render(served, b'{"x": 1}') == "1: 1"
        await templates.close()
        assert children() == before

    in_loop(scenario)


# Tool calls ---------------------------------------------------------------------------------------------------------


def test_calls_may_come_in_any_order_of_their_indices() -> None:
    calls = ToolCalls()
    said = [
        {"index": 1, "function": {"name": "second", "arguments": "{"}},
        {"index": 0, "function": {"name": "first", "arguments": "{}"}},
        {"index": 1, "function": {"arguments": "}"}},
    ]
    parts = calls.parts(said)
    assert ["id" in part for part in parts] == [True, True, False]
    assert calls.count == 2
    joined = ToolCalls.joined(parts)
    assert [(index, one["function"]["name"], one["function"]["arguments"]) for index, one in joined.items()] == [
        (1, "second", "{}"),
        (0, "first", "{}"),
    ]


def test_arguments_of_a_first_part_may_be_null() -> None:
    calls = ToolCalls()
    parts = calls.parts(
        [
            {"index": 0, "id": "c", "function": {"name": "f", "arguments": None}},
            {"index": 0, "function": {"arguments": "{}"}},
        ]
    )
    assert [part["function"]["arguments"] for part in parts] == ["", "{}"]
    assert ToolCalls.joined(parts)[0]["function"] == {"name": "f", "arguments": "{}"}


def test_calls_that_got_no_arguments_in_any_part_end_with_an_empty_object() -> None:
    calls = ToolCalls()
    began = calls.parts([{"index": 1, "name": "a"}, {"index": 0, "name": "b"}])
    last = calls.end(calls.parts([{"index": 0, "arguments": "{}"}, {"index": 2, "name": "c"}]))
    joined = ToolCalls.joined([*began, *last])
    assert {index: one["function"]["arguments"] for index, one in joined.items()} == {0: "{}", 1: "{}", 2: "{}"}
    assert [part["index"] for part in last] == [0, 2, 1]
