"""The modules in pytriton_lite/proto are what protos/ says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from pytriton_lite import proto
from pytriton_lite.proto import _descriptors

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = Path(proto.__file__).parent


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proto")
    subprocess.run([sys.executable, ROOT / "protos" / "generate.py", folder], check=True)
    return folder


def test_descriptors_are_fresh(fresh: Path) -> None:
    """Parsed messages are compared, so that another protoc may order bytes in another way."""
    names: dict[str, tuple[bytes, ...]] = {}
    exec(fresh.joinpath("_descriptors.py").read_text(), names)
    parse = descriptor_pb2.FileDescriptorProto.FromString
    assert [parse(data) for data in _descriptors.FILES] == [parse(data) for data in names["FILES"]]


def test_stubs_are_fresh(fresh: Path) -> None:
    expected = {path.name: path.read_text() for path in fresh.glob("*.pyi")}
    assert {path.name: path.read_text() for path in COMMITTED.glob("*_pb.pyi")} == expected


def test_every_stub_has_its_module() -> None:
    assert {path.stem for path in COMMITTED.glob("*_pb.pyi")} == {path.stem for path in COMMITTED.glob("*_pb.py")}
