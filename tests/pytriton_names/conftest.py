"""PyTriton's names, without what the machine's environment says to PyTriton itself."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PYTRITON_TRITON_CONFIG_"):
            monkeypatch.delenv(name)
