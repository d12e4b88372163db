"""The route /v1/responses, whole and as a stream of typed events (docs/openai.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness import Reply, RunningServer
from tests.openai_routes.sse import events

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


def respond(server: RunningServer, given: object = "hello", model: str = "scribe", **members: Any) -> Reply:
    return server.post("/v1/responses", {"model": model, "input": given, **members})


def test_a_text_is_answered_with_a_message(server: RunningServer) -> None:
    document = respond(server, instructions="be brief", metadata={"a": "b"}).json
    assert (document["object"], document["status"], document["instructions"]) == ("response", "completed", "be brief")
    (message,) = document["output"]
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert message["content"][0]["text"] == "<system> be brief\n<user> hello\n<assistant>"
    assert document["usage"]["input_tokens"] == document["usage"]["output_tokens"] == 4
    assert document["metadata"] == {"a": "b"} and document["store"] is False


def test_an_answer_that_is_cut_off_is_incomplete(server: RunningServer) -> None:
    document = respond(server, "a b c", max_output_tokens=2).json
    assert (document["status"], document["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_items_are_messages_calls_and_their_outputs(server: RunningServer) -> None:
    called = respond(
        server, [{"role": "user", "content": [{"type": "input_text", "text": "weather?"}]}], "agent", tools=[WEATHER]
    )
    (call,) = called.json["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weather", '{"city":"Oslo"}')
    given = [
        {"role": "user", "content": "weather?"},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"},
    ]
    (message,) = respond(server, given, "agent", tools=[WEATHER]).json["output"]
    assert message["content"][0]["text"] == "rain"


def test_the_text_and_the_calls_of_one_turn_are_one_message(server: RunningServer) -> None:
    """Templates refuse two messages of the assistant in a row, or take them for two turns."""
    text = {"role": "assistant", "content": [{"type": "output_text", "text": "wait", "annotations": []}]}
    calls = [{"type": "function_call", "call_id": one, "name": one, "arguments": "{}"} for one in "ab"]
    outputs = [{"type": "function_call_output", "call_id": one, "output": "!"} for one in "ab"]
    expected = "<user>?<assistant>wait<call a {}><call b {}><tool>!<tool>!"
    for turn in ([text, *calls], [*calls, text]):  # as a stream has them where the model calls before it writes
        (message,) = respond(server, [{"role": "user", "content": "?"}, *turn, *outputs], "echo").json["output"]
        assert message["content"][0]["text"] == expected
    for turn, written in (
        ([text, text], "wait<assistant>wait"),
        ([*calls[:1], text, text], "wait<call a {}><assistant>wait"),
    ):
        (message,) = respond(server, [{"role": "user", "content": "?"}, *turn], "echo").json["output"]
        assert message["content"][0]["text"] == f"<user>?<assistant>{written}"


def test_a_model_that_is_told_of_no_choice_sees_no_tools_where_it_is_to_call_none(server: RunningServer) -> None:
    (item,) = respond(server, model="eager", tools=[WEATHER], tool_choice="none").json["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "hello")
    (item,) = respond(server, model="eager", tools=[WEATHER]).json["output"]
    assert item["type"] == "function_call"


def test_a_format_is_passed_on_as_chat_has_it(server: RunningServer) -> None:
    text = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    (message,) = respond(server, model="agent", text=text).json["output"]
    assert json.loads(message["content"][0]["text"]) == {
        "type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}},
    }  # fmt: skip


def test_a_stream_has_typed_events_in_their_order(server: RunningServer) -> None:
    reply = respond(server, "a b", stream=True)
    found = events(reply)
    assert [event["type"].removeprefix("response.") for event in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 3,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert reply.body.startswith(b"event: response.created\ndata: ")
    whole = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert whole == found[-1]["response"]["output"][0]["content"][0]["text"] == "<user> a b\n<assistant>"


def test_streamed_calls_are_items_with_arguments(server: RunningServer) -> None:
    found = events(respond(server, "weather?", "agent", tools=[WEATHER], stream=True))
    assert [event["type"].removeprefix("response.") for event in found[2:]] == [
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert found[4]["arguments"] == '{"city":"Oslo"}'
    assert found[-1]["response"]["output"] == [found[5]["item"]]


def test_streamed_calls_stand_in_the_output_where_their_events_say(server: RunningServer) -> None:
    """Whatever indices the model gives them."""
    calls = [{"index": 1, "name": "b", "arguments": "{"}, {"index": 0, "name": "a"}, {"index": 1, "arguments": "}"}]
    found = events(respond(server, json.dumps(calls), "agent", stream=True))
    output = found[-1]["response"]["output"]
    assert [(item["name"], item["arguments"]) for item in output] == [("b", "{}"), ("a", "{}")]
    for event in found:
        if "output_index" in event:
            assert output[event["output_index"]]["id"] == event.get("item", {"id": event.get("item_id")})["id"]


def test_calls_of_a_whole_answer_stand_in_the_order_of_their_indices(server: RunningServer) -> None:
    calls = [{"index": 1, "name": "b"}, {"index": 0, "name": "a"}]
    output = respond(server, json.dumps(calls), "agent").json["output"]
    assert [item["name"] for item in output] == ["a", "b"]


def test_a_call_that_ends_without_arguments_has_an_empty_object(server: RunningServer) -> None:
    """The `openai` package parses what is there, and raises for an empty text."""
    *_, delta, done, item, completed = events(respond(server, '[{"name": "now"}]', "agent", stream=True))
    assert (delta["delta"], done["arguments"], item["item"]["arguments"]) == ("{}", "{}", "{}")
    assert completed["response"]["output"] == [item["item"]]


def test_a_stream_without_text_is_a_message_that_is_empty(server: RunningServer) -> None:
    given = [{"role": "user", "content": ""}]
    found = events(respond(server, given, "agent", stream=True))
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == ""
    assert [event["type"] for event in found].count("response.output_item.done") == 1


def test_a_response_that_fails_in_the_middle_says_so(server: RunningServer) -> None:
    *_, failed, error = events(respond(server, "a break c", stream=True))
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["message"] == error["error"]["message"] == "it broke in the middle"


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["a"]}, "input[0]"),
        ({"input": [{"type": "message", "role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": 5}], "instructions": "x"}, "input[0].content"),
        ({"input": [{"role": "assistant", "content": []}], "instructions": "x"}, "input[0].content"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": {}}]}, "input[0].output"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "x"}] * 2049}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [WEATHER]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_cannot_be_is_refused(server: RunningServer, members: dict[str, Any], param: str) -> None:
    reply = server.post("/v1/responses", {"model": "scribe", "input": "x", **members})
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
