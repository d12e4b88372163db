"""The ``config`` of a load request: model_config.md, section 2.1, rows 94 and 95."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.json_form import json_form
from pytriton_lite.config.override import parse_config_override


def parsed(document: Any) -> dict[str, Any]:
    return parsed_text(json.dumps(document))


def parsed_text(text: str) -> dict[str, Any]:
    return json_form(parse_config_override(text))


def test_names_may_be_in_either_spelling_and_enums_in_any_case() -> None:
    """Row 94."""
    written = parsed(
        {
            "max_batch_size": 4,
            "dynamic_batching": {"max_queue_delay_microseconds": "100", "preferred_batch_size": [2, "4"]},
            "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1, "3"]}],
            "instance_group": [{"kind": "KIND_CPU", "count": 2}],
            "parameters": {"k": {"string_value": "v"}},
        }
    )
    camel = parsed(
        {
            "maxBatchSize": "4",
            "dynamicBatching": {"maxQueueDelayMicroseconds": 100, "preferredBatchSize": [2, 4]},
            "input": [{"name": "X", "dataType": "type_fp32", "dims": [-1, 3]}],
            "instanceGroup": [{"kind": 2, "count": 2}],
            "parameters": {"k": {"stringValue": "v"}},
        }
    )
    assert written == camel
    assert written["input"][0]["data_type"] == "TYPE_FP32"
    assert written["instance_group"][0]["kind"] == "KIND_CPU"


def test_what_the_config_route_prints_can_be_sent_back() -> None:
    document = parsed({"name": "m", "backend": "python", "versionPolicy": {"all": {}}, "metricTags": {"a": "b"}})
    assert parsed(document) == document


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{backend: 'python', 'max_batch_size': 4,}", id="quotes, and a comma at the end"),
        pytest.param('{"backend": "pyth\\u006fn", "max_batch_size": "+4"}', id="an escape, a sign"),
        pytest.param('{"backend": "\\python", "max_batch_size": 0.4e1, "input": null}', id="no escape, a float, null"),
        pytest.param('{"max_batch_size": 8, "maxBatchSize": 4, "backend": "python"}', id="the last one counts"),
        pytest.param('{backend: "python", max_batch_size: "04"}', id="a zero in front"),
    ],
)
def test_what_is_nearly_json_is_taken(text: str) -> None:
    """Row 94; Triton 2.51 takes all of these."""
    message = parse_config_override(text)
    assert (message.backend, message.max_batch_size) == ("python", 4)


def test_one_value_is_a_list_of_one_and_words_are_truths() -> None:
    found = parsed_text(
        '{"input": {"name": "I", "data_type": "type-fp32", "dims": 4}, "output": [[{"name": "O"}], null, {}],'
        ' "model_transaction_policy": {"decoupled": "YES"}, "metric_tags": {"a": null}, "parameters": {"p": null},'
        ' "sequence_batching": {"direct": {"minimum_slot_utilization": "0.5"}}}'
    )
    assert [(i["name"], i["data_type"], i["dims"]) for i in found["input"]] == [("I", "TYPE_FP32", [4])]
    assert [output["name"] for output in found["output"]] == ["O", ""]
    assert found["model_transaction_policy"] == {"decoupled": True}
    assert (found["metric_tags"], found["parameters"]) == ({"a": ""}, {"p": {"string_value": ""}})
    assert found["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.5


def test_a_string_has_any_character() -> None:
    assert parse_config_override('{"name": "a\n\\t\\ud83d\\ude00\\v\\/"}').name == "a\n\t😀\v/"


SET = "is already set. Cannot set"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        pytest.param('{"foo": 1}', "foo: Cannot find field.", id="row 95"),
        pytest.param('{"input": [{}, {"foo": 1}]}', "(input[1]) foo: Cannot find field.", id="in a list"),
        pytest.param(
            '{"parameters": {"k": {"foo": 1}}}', "(parameters[0].value) foo: Cannot find field.", id="in a map"
        ),
        pytest.param('{"Max_Batch_Size": 4}', "Max_Batch_Size: Cannot find field.", id="another spelling"),
        pytest.param('{"": 4}', ": Proto fields must have a name.", id="no name"),
        pytest.param("[]", ": Root element must be a message.", id="no object"),
        pytest.param(
            '{"max_batch_size": "many"}', '(max_batch_size): invalid value "many" for type TYPE_INT32', id="no number"
        ),
        pytest.param('{"max_batch_size": 4.5}', "(max_batch_size): invalid value 4.5 for type TYPE_INT32", id="4.5"),
        pytest.param('{"max_batch_size": true}', "(max_batch_size): invalid value true for type TYPE_INT32", id="true"),
        pytest.param(
            '{"max_batch_size": 99999999999999999999999}',
            "(max_batch_size): invalid value 1e+23 for type TYPE_INT32",
            id="many digits",
        ),
        pytest.param('{"name": 5}', "(name): invalid value 5 for type TYPE_STRING", id="no string"),
        pytest.param(
            '{"model_transaction_policy": {"decoupled": 1}}',
            "(model_transaction_policy.decoupled): invalid value 1 for type TYPE_BOOL",
            id="no truth",
        ),
        pytest.param(
            '{"sequence_batching": {"direct": {"minimum_slot_utilization": 1e39}}}',
            "(sequence_batching.direct.minimum_slot_utilization): invalid value 1e+39 for type TYPE_FLOAT",
            id="too large for a float",
        ),
        pytest.param(
            '{"input": [{"data_type": "TYPE_FLOAT"}]}',
            '(input[0].data_type): invalid value "TYPE_FLOAT" for type type.googleapis.com/inference.DataType',
            id="no such type",
        ),
        pytest.param(
            '{"dynamic_batching": {"priority_queue_policy": {"x": {}}}}',
            '(dynamic_batching.priority_queue_policy[0].key): invalid value "x" for type TYPE_UINT64',
            id="a key that is no number",
        ),
        pytest.param('{"name": ["x"]}', "name: Proto field is not repeating, cannot start list.", id="a list for one"),
        pytest.param(
            '{"name": {}}', ": invalid value Starting an object on a scalar field for type name", id="an object for one"
        ),
        pytest.param(
            '{"parameters": []}',
            ": invalid value Cannot bind a list to map for field 'parameters'. for type Map",
            id="a list for a map",
        ),
        pytest.param(
            '{"parameters": 5}',
            "(parameters): invalid value 5 for type type.googleapis.com/inference.ModelConfig.ParametersEntry",
            id="a number for a map",
        ),
        pytest.param(
            '{"parameters": {"a": {}, "a": {}}}',
            "(parameters[0]) a: Repeated map key: 'a' is already set.",
            id="a key twice",
        ),
        pytest.param(
            '{"dynamic_batching": 5}',
            "(dynamic_batching): invalid value 5 for type type.googleapis.com/inference.ModelDynamicBatching",
            id="no message",
        ),
        pytest.param(
            '{"dynamic_batching": {}, "sequence_batching": {}}',
            f": invalid value oneof field 'scheduling_choice' {SET} 'sequence_batching' for type oneof",
            id="two schedulers",
        ),
        pytest.param("", "Unexpected end of string. Expected a value.\n\n^", id="empty"),
        pytest.param("{", "Unexpected end of string. Expected an object key or }.\n\n^", id="cut short"),
        pytest.param("{,}", "Expected an object key or }.\n{,}\n ^", id="a comma at the beginning"),
        pytest.param('{5: "a"}', 'Expected an object key or }.\n{5: "a"}\n ^', id="a number as a key"),
        pytest.param('{"a" 5}', 'Expected : between key:value pair.\n{"a" 5}\n     ^', id="no colon"),
        pytest.param('{"a": 5; "b": 6}', 'Expected , or } after key:value pair.\n; "b": 6}\n^', id="a semicolon"),
        pytest.param(
            '{"a": [5}', "Expected , or ] after array value.\n" + '{"a": [5}\n        ^', id="no end of a list"
        ),
        pytest.param('{"a": python, "b": 1}', 'Unexpected token.\n{"a": python, "b": 1}\n      ^', id="no quotes"),
        pytest.param('{"a": .5}', "Expected a value.\n.5}\n^", id="a point in front"),
        pytest.param('{"a": 0x5}', "Octal/hex numbers are not valid JSON values." + '\n{"a": 0x5}\n      ^', id="0x5"),
        pytest.param('{"a": 1-2}', "Unable to parse number." + '\n{"a": 1-2}\n      ^', id="no number at all"),
        pytest.param('{"a": 1e999}', "Number exceeds the range of double." + '\n{"a": 1e999}\n      ^', id="1e999"),
        pytest.param('{"a": "b', "Closing quote expected in string.\n\n^", id="an open string"),
        pytest.param('{"a": "\\ud800"}', 'Missing low surrogate.\n\\ud800"}\n^', id="half a surrogate pair"),
        pytest.param('{"a": 1} x', "Parsing terminated before end of input." + '\n{"a": 1} x\n         ^', id="more"),
        pytest.param('{"a":' * 200, "Message too deep. Max recursion depth reached for key 'a'", id="deep objects"),
        pytest.param("[" * 100_000, "lists are nested too deep", id="deep lists"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, detail: str) -> None:
    """The sentences are those of Triton 2.51, but for the last one."""
    with pytest.raises(PollError) as raised:
        parse_config_override(text)
    assert raised.value.detail == f"Invalid config override: {detail}"


def test_half_a_character_is_refused() -> None:
    with pytest.raises(PollError, match=r"^Invalid config override: "):
        parse_config_override('{"name": "\ud800"}')
