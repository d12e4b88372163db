"""Asking for GPUs where there is none, or none that may be used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytriton_lite.ipc import cuda

ASK = "from pytriton_lite.ipc import cuda; print(cuda.visible_device_ids(), cuda.visible_device_uuids())"


def test_without_a_driver_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_LIBRARY", "libcuda-that-nobody-has.so.1")
    assert cuda.visible_device_ids() == ()
    assert cuda.visible_device_uuids() == ()


def test_with_no_visible_device_there_are_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK], env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "() ()\n"
