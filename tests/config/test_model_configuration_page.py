"""docs/model-configuration.md names every field once, and says of it what the code says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from pytriton_lite.config import effects, parameters
from pytriton_lite.config.json_form import is_map
from pytriton_lite.proto import model_config_pb

PAGE = (Path(__file__).parents[2] / "docs" / "model-configuration.md").read_text()
ROW = re.compile(r"^\| (`[a-z].*?) \| (yes|none|refused) \|", re.MULTILINE)
STANDING = {path: row[1] for row in ROW.findall(PAGE) for path in re.findall(r"`([^`]+)`", row[0])}


def leaves(descriptor: Any, prefix: str) -> Iterator[str]:
    for field in descriptor.fields:
        path = f"{prefix}{field.name}"
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            yield path
        elif is_map(field):
            value = field.message_type.fields_by_name["value"]
            if value.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                yield from leaves(value.message_type, f"{path}.")
            else:
                yield path
        else:
            yield from leaves(field.message_type, f"{path}.") if field.message_type.fields else iter([path])


LEAVES = list(leaves(model_config_pb.ModelConfig.DESCRIPTOR, ""))


def rows_of(leaf: str) -> list[str]:
    return [path for path in STANDING if path == leaf or (path.endswith(".*") and leaf.startswith(path[:-1]))]


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_field_is_in_one_row(leaf: str) -> None:
    assert len(rows_of(leaf)) == 1


def test_no_row_is_about_a_field_that_is_not_there() -> None:
    named = Counter(path for leaf in LEAVES for path in rows_of(leaf))
    assert set(STANDING) - set(named) == {"parameters"}


def test_what_has_no_effect_is_called_so() -> None:
    pinned = {f"optimization.{name}.enable" for name in effects._OPTIMIZATION_ON}
    without = {path.removesuffix(".*") for path, standing in STANDING.items() if standing == "none"}
    named = {path.removesuffix(".level") for path in without}
    assert named == {*effects._WITHOUT_EFFECT, *pinned}


def test_every_parameter_with_a_meaning_is_named() -> None:
    named = set(re.findall(r"^\| `([A-Z_]+)` \| (?:ours|Triton) \|", PAGE, re.MULTILINE))
    assert named == set(parameters.ALL)
