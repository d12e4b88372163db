"""Rows of a file, to requests."""

from __future__ import annotations

import pytest

from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.messages import ModelMetadata, array_of
from pytriton_lite.infer.requests import make_request

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
