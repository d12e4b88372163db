"""The ``config`` of a load request: model_config.md, section 2.1, rows 94 and 95."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.json_form import json_form
from pytriton_lite.config.override import parse_config_override


def parsed(document: Any) -> dict[str, Any]:
    return json_form(parse_config_override(json.dumps(document)))


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
    ("text", "detail"),
    [
        pytest.param('{"foo": 1}', "foo: Cannot find field.", id="row 95"),
        pytest.param('{"input": [{}, {"foo": 1}]}', "input[1].foo: Cannot find field.", id="in a list"),
        pytest.param('{"parameters": {"k": {"foo": 1}}}', 'parameters["k"].foo: Cannot find field.', id="in a map"),
        pytest.param("", "", id="empty"),
        pytest.param("{", "", id="cut short"),
        pytest.param("[]", "expected an object, got []", id="no object"),
        pytest.param('{"max_batch_size": "many"}', "", id="no number"),
        pytest.param('{"input": [{"data_type": "TYPE_FLOAT"}]}', "", id="no such type"),
        pytest.param('{"input": {}}', "", id="no list"),
        pytest.param('{"parameters": []}', "", id="no map"),
        pytest.param('{"dynamic_batching": 5}', "", id="no message"),
        pytest.param('{"name": "\\ud800"}', "", id="half a surrogate pair"),
        pytest.param("[" * 100_000, "", id="deep"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, detail: str) -> None:
    with pytest.raises(PollError) as raised:
        parse_config_override(text)
    assert raised.value.detail.startswith(f"Invalid config override: {detail}")
