"""The table of data types."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import ALL, BF16, BY_NAME, BY_NUMBER, BYTES, INVALID, DataType
from pytriton_lite.proto import model_config_pb

EACH = pytest.mark.parametrize("datatype", ALL, ids=repr)


def test_every_type_of_the_configuration_is_in_the_table() -> None:
    """Names and numbers are those of the protobuf enum that config.pbtxt and the gRPC messages use."""
    enum = model_config_pb.ModelInput.DESCRIPTOR.fields_by_name["data_type"].enum_type
    assert {value.name: value.number for value in enum.values} == {
        datatype.config_name: datatype.number for datatype in (INVALID, *ALL)
    }


@EACH
def test_a_type_is_found_by_each_of_its_names(datatype: DataType) -> None:
    assert BY_NAME[datatype.name] is datatype
    assert BY_NUMBER[datatype.number] is datatype


@pytest.mark.parametrize("datatype", [INVALID, *ALL], ids=repr)
def test_a_type_is_the_same_one_in_another_process(datatype: DataType) -> None:
    assert pickle.loads(pickle.dumps(datatype)) is datatype


@EACH
def test_the_configuration_prefixes_the_name_of_the_protocol_except_for_strings(datatype: DataType) -> None:
    assert datatype.config_name == ("TYPE_STRING" if datatype is BYTES else f"TYPE_{datatype.name}")


@pytest.mark.parametrize("datatype", [t for t in ALL if t.numpy is not None and t is not BYTES], ids=repr)
def test_a_fixed_type_is_its_numpy_type(datatype: DataType) -> None:
    assert datatype.numpy is not None
    assert datatype.itemsize == datatype.numpy.itemsize
    assert dtypes.from_numpy(datatype.numpy) is datatype
    bits = datatype.itemsize * 8
    kind = {"BOOL": "b", "UINT": "u", "INT": "i", "FP": "f"}[datatype.name.rstrip("0123456789")]
    assert datatype.numpy.kind == kind
    assert datatype.name in ("BOOL", f"{datatype.name.rstrip('0123456789')}{bits}")


def test_strings_are_objects_to_numpy_and_bf16_is_nothing() -> None:
    assert dtypes.from_numpy(np.dtype(object)) is BYTES
    assert dtypes.from_numpy(np.array([b"abc"]).dtype) is BYTES
    assert (BYTES.itemsize, BF16.itemsize, BF16.numpy) == (0, 2, None)


@pytest.mark.parametrize("dtype", ["complex64", "U3", ">f4", "datetime64[s]", "V4"])
def test_a_numpy_type_without_counterpart_has_none(dtype: str) -> None:
    assert dtypes.from_numpy(np.dtype(dtype)) is None


def test_the_invalid_type_has_no_name_that_a_client_could_send() -> None:
    assert INVALID.name == "<invalid>"
    assert INVALID not in BY_NAME.values()
