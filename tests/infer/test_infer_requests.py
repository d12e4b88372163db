"""Rows of a file, to requests."""

from __future__ import annotations

import pytest

from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.messages import ModelMetadata, TensorSpec, array_of
from pytriton_lite.core import dtypes
from pytriton_lite.infer.requests import make_request

TOLD = ModelMetadata("m", (), "", (TensorSpec("IN", dtypes.FP32, (1,)),), ())
UNTOLD = ModelMetadata("m", (), "", (), ())
"""A model of which a server tells neither inputs nor outputs."""


def test_a_document_says_enough_of_a_tensor_where_the_server_tells_no_inputs() -> None:
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    (tensor,) = make_request(UNTOLD, {"inputs": [entry]}, "").inputs
    assert (tensor.name, array_of(tensor).tolist()) == ("x", [[1, 2]])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"x": [1, 2]}, "model 'm' has no input 'x'"),
        ({"inputs": [{"name": "x", "shape": [2], "data": [1, 2]}]}, "input 'x': unknown data type"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "data": [1, 2]}]}, r"expects shape \[\]"),
    ],
)
def test_what_says_too_little_of_one_is_told(row: dict[str, object], says: str) -> None:
    with pytest.raises(ClientError, match=says):
        make_request(UNTOLD, row, "")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"IN": 1, "id": {"a": 1}}, '"id" is to be a string'),
        ({"inputs": [], "id": 1.5}, '"id" is to be a string'),
        ({"inputs": [], "outputs": 5}, '"outputs" is to be a list'),
        ({"inputs": [], "outputs": ["OUT"]}, '"outputs" is to be a list'),
        ({"inputs": [], "parameters": {"n": 1 << 70}}, "parameter 'n': an integer has 64 bits"),
        ({"inputs": [{"name": "IN", "datatype": ["FP32"], "data": [1]}]}, "unknown data type"),
    ],
)
def test_what_is_no_request_is_told(row: dict[str, object], says: str) -> None:
    with pytest.raises(ClientError, match=says):
        make_request(TOLD, row, "")


def test_an_id_may_be_a_number() -> None:
    assert make_request(TOLD, {"IN": 1, "id": 0}, "").id == "0"
