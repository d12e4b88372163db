from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
from pb_utils_stand_in import execute

LEFT = np.array([1.5, -2, 0, 3e38], dtype=np.float32)
RIGHT = np.array([0.25, 7, -0.0, 1e38], dtype=np.float32)


def test_sum_and_difference_are_those_of_plain_python(load_model: Callable[[str], ModuleType]) -> None:
    model = load_model("add_sub").TritonPythonModel()
    [response] = execute(model, {"INPUT0": LEFT[:3], "INPUT1": RIGHT[:3]})
    assert response.arrays()["OUTPUT0"].tolist() == [1.75, 5.0, 0.0]
    assert response.arrays()["OUTPUT1"].tolist() == [1.25, -9.0, 0.0]


def test_outputs_are_fp32_as_config_pbtxt_promises(load_model: Callable[[str], ModuleType]) -> None:
    model = load_model("add_sub").TritonPythonModel()
    [response] = execute(model, {"INPUT0": LEFT, "INPUT1": LEFT * 0})
    assert {array.dtype for array in response.arrays().values()} == {np.dtype(np.float32)}


def test_each_request_of_a_list_gets_its_own_answer_in_order(load_model: Callable[[str], ModuleType]) -> None:
    model = load_model("add_sub").TritonPythonModel()
    requests = [{"INPUT0": np.full(4, n, np.float32), "INPUT1": np.full(4, 1, np.float32)} for n in range(3)]
    responses = execute(model, *requests)
    assert [response.arrays()["OUTPUT0"].tolist() for response in responses] == [[1] * 4, [2] * 4, [3] * 4]


def test_inputs_are_left_as_they_came(load_model: Callable[[str], ModuleType]) -> None:
    left, right = LEFT[:3].copy(), RIGHT[:3].copy()
    execute(load_model("add_sub").TritonPythonModel(), {"INPUT0": left, "INPUT1": right})
    assert left.tolist() == LEFT[:3].tolist() and right.tolist() == RIGHT[:3].tolist()
