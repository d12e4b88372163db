"""Texts by way of OpenAI's routes (docs/openai.md): what goes to the model, what comes back, and what is refused."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Reply, RunningServer, write_model
from tests.openai_routes.openai_models import BAD_TEMPLATES, SCRIBE, SCRIBE_CONFIG, TEMPLATE
from tests.openai_routes.sse import END, events, text_of

HELLO = [{"role": "user", "content": "hello there"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def complete(server: RunningServer, model: str = "scribe", prompt: object = "a b c d", **members: Any) -> Reply:
    return server.post("/v1/completions", {"model": model, "prompt": prompt, **members})


def chat(server: RunningServer, model: str = "scribe", messages: object = HELLO, **members: Any) -> Reply:
    return server.post("/v1/chat/completions", {"model": model, "messages": messages, **members})


def mirrored(server: RunningServer, **members: Any) -> dict[str, Any]:
    """What the model 'mirror' was given beside the prompt."""
    reply = complete(server, "mirror", "q", **members)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.json["choices"][0]["text"])
    return found


def header(reply: Reply, name: str) -> str:
    return {key.lower(): value for key, value in reply.headers.items()}.get(name, "")


# ------------------------------------------------------------------------------------------- models


def test_the_list_has_the_models_that_declare_themselves(server: RunningServer) -> None:
    listed = server.get("/v1/models").json
    assert listed["object"] == "list"
    names = {model["id"] for model in listed["data"]}
    assert {"scribe", "agent", "mirror", "endless"} <= names and "undeclared" not in names
    assert server.get("/v1/models/scribe").json == next(one for one in listed["data"] if one["id"] == "scribe")


@pytest.mark.parametrize("path", ["/v1/models/undeclared", "/v1/models/nobody", "/v1/models/"])
def test_a_model_that_declares_nothing_is_not_found(server: RunningServer, path: str) -> None:
    reply = server.get(path)
    assert (reply.status, reply.json["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
    ],
)
def test_what_is_no_route_is_refused_in_the_form_of_the_api(
    server: RunningServer, method: str, path: str, status: int
) -> None:
    reply = server.request(method, path)
    assert reply.status == status
    assert set(reply.json["error"]) == {"message", "type", "param", "code"}


# ------------------------------------------------------------------------------------------- completions


def test_a_completion_is_what_a_decoupled_model_sent_with_its_counts(server: RunningServer) -> None:
    document = complete(server).json
    assert document["object"] == "text_completion" and document["model"] == "scribe"
    assert document["choices"] == [{"index": 0, "text": "a b c d", "logprobs": None, "finish_reason": "stop"}]
    assert document["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}


def test_an_answer_as_long_as_it_may_be_ended_for_its_length(server: RunningServer) -> None:
    choice = complete(server, max_tokens=2).json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("a b", "length")


def test_a_stream_has_a_piece_for_each_response_and_the_counts_at_its_end(server: RunningServer) -> None:
    reply = complete(server, stream=True, stream_options={"include_usage": True})
    assert header(reply, "content-type").startswith("text/event-stream")
    assert header(reply, "x-accel-buffering") == "no"  # or nginx holds it back
    *pieces, counts, end = events(reply)
    assert [piece["choices"][0]["text"] for piece in pieces] == ["a", " b", " c", " d", ""]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None, None, None, None, "stop"]
    assert all(piece["usage"] is None for piece in pieces)
    assert (counts["choices"], counts["usage"]["total_tokens"], end) == ([], 8, END)


def test_an_ensemble_of_a_decoupled_model_is_a_model_like_any(server: RunningServer) -> None:
    document = complete(server, "ensemble").json
    assert (document["choices"][0]["text"], document["usage"]["completion_tokens"]) == ("a b c d", 4)
    assert text_of(events(complete(server, "ensemble", stream=True))) == "a b c d"


def test_without_being_asked_for_a_stream_has_no_counts(server: RunningServer) -> None:
    *pieces, end = events(complete(server, stream=True))
    assert end == END and all("usage" not in piece for piece in pieces)


def test_several_prompts_have_several_choices_each_in_their_order(server: RunningServer) -> None:
    document = complete(server, prompt=["a b", "c d e"], n=2).json
    assert [(one["index"], one["text"]) for one in document["choices"]] == [
        (0, "a b"), (1, "a b"), (2, "c d e"), (3, "c d e"),
    ]  # fmt: skip
    assert document["usage"] == {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}
    streamed = events(complete(server, prompt=["a b", "c d e"], n=2, stream=True))
    assert [text_of(streamed, index) for index in range(4)] == ["a b", "a b", "c d e", "c d e"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_stop_text_that_comes_in_two_pieces_ends_the_answer_before_it(server: RunningServer, streams: bool) -> None:
    reply = complete(server, stop=["b c", "zzz"], stream=streams)
    if streams:
        found = events(reply)
        assert text_of(found) == "a "
        assert found[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        assert reply.json["choices"][0]["text"] == "a "


def test_a_stop_text_that_only_begins_is_part_of_the_answer(server: RunningServer) -> None:
    assert complete(server, stop="d e").json["choices"][0]["text"] == "a b c d"


def test_echo_puts_the_prompt_in_front(server: RunningServer) -> None:
    assert complete(server, echo=True, max_tokens=1).json["choices"][0]["text"] == "a b c da"
    assert text_of(events(complete(server, echo=True, max_tokens=1, stream=True))) == "a b c da"


def test_an_echo_in_so_many_choices_that_it_is_too_long_is_refused(server: RunningServer) -> None:
    reply = complete(server, prompt="a" * (1 << 20), n=128, echo=True)
    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")


def test_a_suffix_that_is_too_long_for_so_many_prompts_is_refused(server: RunningServer) -> None:
    suffix = "x" * (1 << 20)
    reply = complete(server, "filler", ["a"] * 100, suffix=suffix)
    assert reply.status == 413 and "bytes beside its prompts, for all of them" in reply.json["error"]["message"]
    choices = complete(server, "filler", ["a", "b"], suffix=suffix).json["choices"]
    assert [choice["text"] for choice in choices] == ["one two" + suffix] * 2


def test_each_choice_and_its_stream_begin_with_the_echo_of_their_own_prompt(server: RunningServer) -> None:
    members = {"prompt": ["P", "QQ"], "n": 2, "echo": True}
    heads = ["P", "P", "QQ", "QQ"]
    choices = complete(server, "filler", **members).json["choices"]
    assert [choice["text"] for choice in choices] == [f"{head}one two" for head in heads]
    streamed = events(complete(server, "filler", **members, stream=True))
    assert [text_of(streamed, index) for index in range(4)] == [f"{head}one two" for head in heads]
    assert complete(server, "filler", echo=False).json["choices"][0]["text"] == "one two"


def test_a_suffix_goes_to_a_model_that_takes_one(server: RunningServer) -> None:
    assert complete(server, "filler", suffix=" end").json["choices"][0]["text"] == "one two end"
    assert complete(server, "filler", suffix=None).json["choices"][0]["text"] == "one two"


@pytest.mark.parametrize("count", [1, 3])
def test_the_best_of_as_many_as_are_wanted_is_all_of_them(server: RunningServer, count: int) -> None:
    choices = complete(server, "filler", n=count, best_of=count).json["choices"]
    assert [choice["text"] for choice in choices] == ["one two"] * count


def test_logprobs_of_a_completion_come_in_columns(server: RunningServer) -> None:
    columns = complete(server, "filler", logprobs=2).json["choices"][0]["logprobs"]
    assert columns == {
        "tokens": ["one", " two"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"one0": -1.0, "one1": -2.0}, {" two0": -1.0, " two1": -2.0}],
        "text_offset": [0, 3],
    }
    # 0 is as good as an answer: logprobs of the tokens that were written, and no others.
    assert complete(server, "filler", logprobs=0).json["choices"][0]["logprobs"] == {**columns, "top_logprobs": None}
    for none in ({}, {"logprobs": None}):
        assert complete(server, "filler", **none).json["choices"][0]["logprobs"] is None


def test_offsets_of_tokens_count_from_the_beginning_of_the_echo_in_a_stream_too(server: RunningServer) -> None:
    members = {"prompt": ["P", "QQ"], "echo": True, "logprobs": 1}
    whole = [choice["logprobs"] for choice in complete(server, "filler", **members).json["choices"]]
    assert [one["text_offset"] for one in whole] == [[1, 4], [2, 5]]
    *pieces, _ = events(complete(server, "filler", **members, stream=True))
    streamed = [piece["choices"][0] for piece in pieces]
    for index, expected in enumerate(whole):
        for column, values in expected.items():
            of_choice = [one["logprobs"][column] for one in streamed if one["index"] == index]
            assert [value for piece in of_choice for value in piece] == values


def test_what_has_no_tensor_becomes_a_parameter_of_the_request(server: RunningServer) -> None:
    given = mirrored(server, temperature=0.5, top_k=3, presence_penalty=1, user="u", seed=4, mine=True, stop=["x", "y"])
    assert given["TEMPERATURE"] == [0.5] and given["seed"] == [4] and given["stop"] == ["x", "y"]
    assert (given["top_k"], given["presence_penalty"], given["user"], given["mine"]) == (3, 1.0, "u", True)


def test_a_member_that_is_called_like_an_input_is_that_tensor(server: RunningServer) -> None:
    assert mirrored(server, bias=[1, 2, 3])["bias"] == [1, 2, 3]


def test_so_is_what_only_templates_take_or_nobody_and_on_both_routes(server: RunningServer) -> None:
    given = {"chat_template_kwargs": {"enable_thinking": False}, "metadata": {"a": "b"}, "reasoning": {"effort": "low"}}
    said = chat(server, "knobs", **given)
    assert json.loads(said.json["choices"][0]["message"]["content"]) == given
    responded = server.post("/v1/responses", {"model": "knobs", "input": "hi", **given})
    assert json.loads(responded.json["output"][0]["content"][0]["text"]) == given
    assert responded.json["metadata"] == {"a": "b"}


def test_defaults_of_the_configuration_stand_where_the_client_says_nothing(server: RunningServer) -> None:
    given = mirrored(server)
    assert (given["TEMPERATURE"], given["max_tokens"]) == ([0.25], 77)
    assert mirrored(server, max_tokens=5)["max_tokens"] == 5


def test_choices_of_one_seed_differ_and_are_the_same_each_time(server: RunningServer) -> None:
    choices = complete(server, "mirror", "q", n=3, seed=10).json["choices"]
    assert [json.loads(choice["text"])["seed"] for choice in choices] == [[10], [11], [12]]


# ------------------------------------------------------------------------------------------- ids


def test_the_clients_id_is_the_id_of_the_engines_request_and_of_the_answer(server: RunningServer) -> None:
    body = {"model": "mirror", "prompt": "q", "n": 2}
    reply = server.post("/v1/completions", body, {"X-Request-Id": "from-client"})
    assert header(reply, "x-request-id") == "from-client" and reply.json["id"] == "cmpl-from-client"
    assert [json.loads(one["text"])["id"] for one in reply.json["choices"]] == ["from-client", "from-client-1"]


@pytest.mark.parametrize("given", ["with blank", "x" * 129])
def test_an_id_that_is_none_is_not_taken(server: RunningServer, given: str) -> None:
    reply = server.post("/v1/completions", {"model": "mirror", "prompt": "q"}, {"X-Request-Id": given})
    assert reply.status == 200 and len(header(reply, "x-request-id")) == 32


# ------------------------------------------------------------------------------------------- chat


def test_a_chat_template_makes_the_prompt_of_the_messages(server: RunningServer) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
    ]
    document = chat(server, messages=messages).json
    message = document["choices"][0]["message"]
    assert document["object"] == "chat.completion"
    assert message == {
        "role": "assistant", "content": "<system> be brief\n<user> hello\n<assistant>", "refusal": None,
    }  # fmt: skip


def test_a_template_may_mark_what_the_model_wrote_and_ask_for_tools_where_there_are_none(server: RunningServer) -> None:
    said = [*HELLO, {"role": "assistant", "content": "hi"}, *HELLO]
    reply = chat(server, "trained", said)
    assert reply.status == 200, reply.body
    prompt = "<user>hello there<assistant>hi</s><user>hello there"
    assert reply.json["choices"][0]["message"]["content"] == prompt


def test_tools_are_written_by_the_template_that_a_model_has_for_them(server: RunningServer) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    for members, prompt in (
        ({}, "<user> hello there\n<assistant>"),
        ({"tools": tools}, "<tool weather><user>hello there"),
        ({"tools": tools, "tool_choice": "none"}, "<user> hello there\n<assistant>"),
    ):
        reply = chat(server, "several_templates", HELLO, **members)
        assert reply.status == 200, reply.body
        assert reply.json["choices"][0]["message"]["content"] == prompt


def called(arguments: object) -> list[dict[str, Any]]:
    """A conversation whose second message calls a tool with *arguments*."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"city": "Oslo", "days": [1, 2]}', '{"city": "Oslo", "days": [1, 2]}'),
        ("{}", "{}"),
        ("", "{}"),
        (" ", "{}"),
        (None, "{}"),
        ('{"city": "Os', r'"{\"city\": \"Os"'),
        ("[1]", '"[1]"'),
        ('{"a":' * 300 + "1" + "}" * 300, '"' + r"{\"a\":" * 300 + "1" + "}" * 300 + '"'),
    ],
    ids=lambda value: str(value)[:20],
)
def test_arguments_of_calls_are_objects_to_a_template_where_they_are_some(
    server: RunningServer, arguments: object, written: str
) -> None:
    reply = chat(server, "echo", called(arguments))
    assert reply.status == 200, reply.body
    prompt = reply.json["choices"][0]["message"]["content"]
    assert prompt == f"<user>hello there<assistant><call weather {written}>"


def test_arguments_of_more_parts_than_any_request_needs_are_refused(server: RunningServer) -> None:
    for more, count in (("[]", 50_001), ("1", 1_100_000)):
        messages = called(f'{{"a": [{",".join([more] * count)}]}}')
        reply = chat(server, "echo", [*messages, *messages])
        assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
        assert reply.json["error"]["param"] == "messages"


ASKER = {
    "platform": "ensemble",
    "input": [{"name": "prompt", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "text", "data_type": "TYPE_STRING", "dims": [1]}],
    "parameters": {"OPENAI": {"string_value": "chat"}},
    "ensemble_scheduling": {
        "step": [
            {
                "model_name": "scribe",
                "model_version": -1,
                "input_map": {"text_input": "prompt"},
                "output_map": {"text_output": "text"},
            }
        ]
    },
}


def test_the_template_of_an_ensemble_outlives_the_files_that_it_came_with(tmp_path: Path) -> None:
    write_model(tmp_path, "scribe", SCRIBE, SCRIBE_CONFIG.replace("chat, completion", "completion"))
    with RunningServer(tmp_path, flags=("--model-control-mode=explicit", "--load-model=*")) as server:
        files = {"file:1/needed": "", "file:chat_template.jinja": base64.b64encode(TEMPLATE.encode()).decode()}
        load = {"parameters": {"config": json.dumps(ASKER), **files}}
        assert server.post("/v2/repository/models/asker/load", load).status == 200
        for _ in range(2):
            reply = chat(server, "asker")
            assert reply.status == 200, reply.body
            assert reply.json["choices"][0]["message"]["content"] == "<user> hello there\n<assistant>"
            # It is made again with the model that it is made of.
            assert server.post("/v2/repository/models/scribe/unload", {}).status == 200
            assert server.post("/v2/repository/models/scribe/load", {}).status == 200


@pytest.mark.parametrize("name", ["self", "args", "messages_", "template"])
def test_a_variable_of_a_template_may_have_any_name(server: RunningServer, name: str) -> None:
    document = chat(server, chat_template_kwargs={name: 1}).json
    assert document["choices"][0]["message"]["content"] == "<user> hello there\n<assistant>"


def test_a_streamed_chat_begins_with_the_role_and_ends_with_the_reason(server: RunningServer) -> None:
    first, *pieces, last, end = events(chat(server, stream=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(piece["choices"][0]["delta"]["content"] for piece in pieces) == "<user> hello there\n<assistant>"
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"], end) == ({}, "stop", END)


def test_a_model_with_an_input_for_messages_gets_them_as_they_came(server: RunningServer) -> None:
    assert chat(server, "agent").json["choices"][0]["message"]["content"] == "hello there"


def test_tools_go_to_the_model_and_its_calls_come_back(server: RunningServer) -> None:
    choice = chat(server, "agent", tools=[WEATHER], tool_choice="auto").json["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city":"Oslo"}'}
    assert call["id"].startswith("call_") and call["type"] == "function"
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    said = [*HELLO, choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
    assert chat(server, "agent", said, tools=[WEATHER]).json["choices"][0]["message"]["content"] == "rain"


def test_a_model_that_is_told_of_no_choice_sees_no_tools_where_it_is_to_call_none(server: RunningServer) -> None:
    (message,) = [one["message"] for one in chat(server, "eager", tools=[WEATHER], tool_choice="none").json["choices"]]
    assert (message["content"], message.get("tool_calls")) == ("hello there", None)
    assert "tool_calls" in chat(server, "eager", tools=[WEATHER]).json["choices"][0]["message"]
    # One with an input for the choice is given both, and decides.
    assert "tool_calls" in chat(server, "agent", tools=[WEATHER], tool_choice="none").json["choices"][0]["message"]
    for choice, prompt in (("none", "<user>hello there"), ("auto", "<tool weather><user>hello there")):
        reply = chat(server, "echo", tools=[WEATHER], tool_choice=choice)
        assert reply.json["choices"][0]["message"]["content"] == prompt


def test_streamed_tool_calls_have_an_index(server: RunningServer) -> None:
    found = events(chat(server, "agent", tools=[WEATHER], stream=True))
    (call,) = found[1]["choices"][0]["delta"]["tool_calls"]
    assert (call["index"], call["function"]["name"]) == (0, "weather")
    assert found[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("said_call", [{}, {"arguments": None}, {"arguments": ""}])
def test_a_call_without_arguments_has_an_empty_object(server: RunningServer, said_call: dict[str, Any]) -> None:
    """Of a tool without parameters; the `openai` package parses what is there, and raises for an empty text."""
    said = [{"role": "user", "content": json.dumps([{"name": "now", **said_call}])}]
    (call,) = chat(server, "agent", said).json["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": "{}"}
    found = [event["choices"][0]["delta"] for event in events(chat(server, "agent", said, stream=True))[:-1]]
    (call,) = [call for delta in found for call in delta.get("tool_calls", ())]
    assert call["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_are_nested_too_deeply_are_the_models_mistake(server: RunningServer, stream: bool) -> None:
    said = '[{"name": "f", "arguments": %s}]' % ("[" * 300 + "]" * 300)
    reply = chat(server, "agent", [{"role": "user", "content": said}], stream=stream)
    assert reply.status == 500
    assert reply.json["error"]["message"].startswith("model 'agent': the output for 'tool_calls' cannot be written: ")


def test_json_mode_is_passed_on(server: RunningServer) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    content = chat(server, "agent", response_format=wanted).json["choices"][0]["message"]["content"]
    assert json.loads(content) == wanted


def test_logprobs_of_the_model_come_in_the_form_of_the_route(server: RunningServer) -> None:
    logprobs = chat(server, "agent", logprobs=True, top_logprobs=2).json["choices"][0]["logprobs"]
    assert [one["token"] for one in logprobs["content"]] == ["hello", "there"]
    assert logprobs["content"][0]["logprob"] == -0.5 and len(logprobs["content"][0]["top_logprobs"]) == 2
    assert logprobs["content"][1]["bytes"] == list(b"there")


def test_a_model_is_told_that_logprobs_are_wanted_where_it_takes_no_number(server: RunningServer) -> None:
    logprobs = chat(server, "yes_or_no", logprobs=True).json["choices"][0]["logprobs"]
    assert [one["token"] for one in logprobs["content"]] == ["hello", "there"]
    assert chat(server, "yes_or_no", logprobs=False).json["choices"][0]["logprobs"] is None


# ------------------------------------------------------------------------------------------- refusals


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": HELLO * 2049}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": user(7)}, "messages[0].content"),
        ({"messages": user([])}, "messages[0].content"),
        pytest.param({"messages": user([{"type": "text", "text": "x"}] * 1025) * 2}, "messages", id="parts"),
        ({"messages": user([{"type": "text"}])}, "messages[0].content[0].text"),
        ({"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"tools": [WEATHER]}, "tools"),
        ({"tools": [{"type": "browser"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"something": {"else": 1}}, "something"),
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_the_name_of_the_member(
    server: RunningServer, members: dict[str, Any], param: str
) -> None:
    reply = server.post("/v1/chat/completions", {"model": "scribe", "messages": HELLO, **members})
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert reply.json["error"]["param"] == param
    assert reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("model", "members", "param", "code"),
    [
        ("filler", {"best_of": 2}, "best_of", "unsupported_parameter"),
        ("filler", {"best_of": 1, "n": 2}, "best_of", "unsupported_parameter"),
        ("filler", {"best_of": 0}, "best_of", "integer_below_min_value"),
        ("filler", {"best_of": 129}, "best_of", "integer_above_max_value"),
        ("filler", {"best_of": "1"}, "best_of", "invalid_type"),
        ("scribe", {"suffix": "x"}, "suffix", "unsupported_parameter"),
        ("filler", {"suffix": ["x"]}, "suffix", "invalid_type"),
        ("scribe", {"logprobs": 0}, "logprobs", "unsupported_parameter"),
        ("filler", {"logprobs": -1}, "logprobs", "integer_below_min_value"),
        ("filler", {"logprobs": 21}, "logprobs", "integer_above_max_value"),
        ("filler", {"logprobs": True}, "logprobs", "invalid_type"),
        ("filler", {"echo": "yes"}, "echo", "invalid_type"),
        ("filler", {"echo": True, "prompt": [1, 2]}, "echo", "unsupported_parameter"),
    ],
    ids=str,
)
def test_what_a_completion_cannot_be_is_refused_with_the_name_of_the_member(
    server: RunningServer, model: str, members: dict[str, Any], param: str, code: str
) -> None:
    reply = complete(server, model, **members)
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert (reply.json["error"]["param"], reply.json["error"]["code"]) == (param, code)


def test_a_choice_of_another_type_is_refused_by_its_type(server: RunningServer) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
    error = chat(server, "agent", tools=[WEATHER], tool_choice=allowed).json["error"]
    assert (error["param"], "'allowed_tools'" in error["message"]) == ("tool_choice.type", True)


@pytest.mark.parametrize("tool_choice", ["perhaps", {"type": "function", "function": {"name": "other"}}, {}], ids=str)
def test_a_choice_of_a_tool_that_is_not_there_is_refused(server: RunningServer, tool_choice: object) -> None:
    reply = chat(server, "agent", tools=[WEATHER], tool_choice=tool_choice)
    assert (reply.status, reply.json["error"]["param"]) == (
        400,
        "tool_choice" if tool_choice else "tool_choice.function",
    )


@pytest.mark.parametrize("prompt", [None, [], 5, ["a", 5], [[]], [1, 2], {"a": 1}, ["a"] * 129], ids=str)
def test_a_prompt_that_is_none_is_refused(server: RunningServer, prompt: object) -> None:
    reply = complete(server, prompt=prompt)
    assert (reply.status, reply.json["error"]["param"]) == (400, "prompt")


def test_a_model_is_not_asked_for_what_it_does_not_declare(server: RunningServer) -> None:
    reply = chat(server, "mirror")
    assert (reply.status, reply.json["error"]["param"]) == (400, "model")
    assert reply.json["error"]["message"] == "The model 'mirror' serves completion, and not chat."
    for name in ("undeclared", "nobody"):
        reply = chat(server, name)
        assert (reply.status, reply.json["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"model": "\xff"}', b'{"model": "\\ud800"}', b"[" * 5000]
)
def test_a_body_that_is_no_object_is_refused(server: RunningServer, body: bytes) -> None:
    reply = server.post("/v1/chat/completions", body)
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("more", "what"), [(b"[]", "100000 objects and arrays"), (b"1", "2097152 values"), (b'"[{,"', "")]
)
def test_a_body_of_more_parts_than_any_request_needs_is_refused(server: RunningServer, more: bytes, what: str) -> None:
    count = 2_097_153 if more == b"1" else 100_001
    body = b'{"model": "mirror", "prompt": "q", "x": [%b]}' % b",".join([more] * count)
    reply = server.post("/v1/completions", body)
    if what:
        assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
        assert reply.json["error"]["message"] == f"The JSON body has more than {what}."
    else:  # brackets in texts are none
        assert (reply.status, reply.json["error"]["param"]) == (400, "x")


@pytest.mark.parametrize("depth", [199, 250, 600])
def test_a_body_that_is_nested_too_deeply_to_be_passed_on_is_refused(server: RunningServer, depth: int) -> None:
    nested: object = "x"
    for _ in range(depth):
        nested = [nested]
    reply = complete(server, "mirror", "q", bias=nested)
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert ("inside each other" in reply.json["error"]["message"]) == (depth > 199)
    assert reply.json["error"]["param"] == "bias"


@pytest.mark.parametrize(
    ("path", "members", "name", "inside"),
    [
        ("chat/completions", {"model": "agent", "messages": HELLO}, "response_format", {"type": "json_schema"}),
        ("chat/completions", {"model": "scribe", "messages": HELLO}, "chat_template_kwargs", {}),
        ("responses", {"model": "agent", "input": "hello"}, "metadata", {}),
    ],
)
def test_a_member_is_as_deep_as_can_be_passed_on_or_refused_by_its_name(
    server: RunningServer, path: str, members: dict[str, Any], name: str, inside: dict[str, Any]
) -> None:
    for brackets, status in ((198, 200), (199, 400), (300, 400)):  # in the member, which is in the body
        nested = json.loads("[" * brackets + "]" * brackets)
        reply = server.post(f"/v1/{path}", {**members, name: {**inside, "x": nested}})
        assert reply.status == status, reply.body
        if status == 400:
            assert reply.json["error"]["param"] == name
            assert "inside each other" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    "bias", [[1 << 40], [1.7, 2], [1e40], ["1", "2"], "1", [None], [[1], [2, 3]], [{}], {"a": 1}], ids=str
)
def test_a_value_that_does_not_fit_the_tensor_is_refused(server: RunningServer, bias: object) -> None:
    reply = complete(server, "mirror", "q", bias=bias)
    assert (reply.status, reply.json["error"]["param"]) == (400, "bias")
    assert reply.json["error"]["message"] == "Invalid 'bias': it does not fit INT32 of input 'bias' of the model"


def test_a_whole_number_fits_a_tensor_of_others_and_a_truth_one_of_whole_numbers(server: RunningServer) -> None:
    assert mirrored(server, temperature=1)["TEMPERATURE"] == [1.0]
    assert mirrored(server, bias=[True, 2, 3.0])["bias"] == [1, 2, 3]


def test_what_the_model_says_is_wrong_has_its_own_status(server: RunningServer) -> None:
    for streams in (False, True):
        reply = complete(server, prompt="fail", stream=streams)
        assert (reply.status, reply.json["error"]["message"]) == (400, "this prompt fails")


@pytest.mark.parametrize("count", ["nan", "inf"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_count_of_tokens_that_is_no_number_is_the_models_mistake(
    server: RunningServer, count: str, stream: bool
) -> None:
    reply = complete(server, "counter", count, stream=stream)
    text = f"model 'counter': the output for 'completion_tokens' has {count}, expected a count"
    assert (reply.status, reply.json["error"]["message"]) == (500, text)
    assert complete(server, "counter", "some").json["usage"]["completion_tokens"] == 3


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(server: RunningServer) -> None:
    first, second, error = events(complete(server, prompt="a b break c", stream=True))
    assert text_of([first, second]) == "a b"
    assert error["error"] == {"message": "it broke in the middle", "type": "server_error", "param": None, "code": None}
    assert complete(server, prompt="a b break c").status == 500


# ------------------------------------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_cancels_the_models_request(server: RunningServer, tmp_path: Path, streams: bool) -> None:
    told = tmp_path / "told"
    begun = tmp_path / "told.begun"
    os.mkfifo(told)
    os.mkfifo(begun)
    host, port = server.http_url.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request(
        "POST", "/v1/completions", json.dumps({"model": "endless", "prompt": str(told), "stream": streams})
    )
    assert begun.read_text() == "begun"  # waits for it
    if streams:
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        response.close()
    else:
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    assert told.read_text() == "cancelled"


def test_a_stop_text_cancels_what_the_model_would_go_on_with(server: RunningServer, tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    choice = complete(server, "endless", str(told), stop="3 4").json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("0 1 2 ", "stop")
    assert told.read_text() == "cancelled"


# ------------------------------------------------------------------------------------------- templates


@pytest.mark.parametrize("name", BAD_TEMPLATES)
def test_a_template_that_loops_grows_or_reads_files_fails_alone(server: RunningServer, name: str) -> None:
    reply = chat(server, name)
    assert (reply.status, reply.json["error"]["type"]) == (500, "server_error")
    assert reply.json["error"]["message"].startswith(f"model '{name}': the chat template")
    assert "root:" not in reply.json["error"]["message"]
    assert chat(server).status == 200


def test_messages_that_are_too_long_for_a_prompt_are_the_clients_to_shorten(server: RunningServer) -> None:
    reply = chat(server, "echo", [{"role": "user", "content": "x" * (16 << 20)}])
    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
    assert reply.json["error"]["param"] == "messages"


def test_what_a_template_refuses_is_the_clients_to_mend(server: RunningServer) -> None:
    messages = [{"role": "tool", "content": "x", "tool_call_id": "1"}]
    reply = chat(server, messages=messages)
    assert (reply.status, reply.json["error"]["param"]) == (400, "messages")
    assert reply.json["error"]["message"].endswith("refuses the messages: unknown role tool")
