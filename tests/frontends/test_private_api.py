"""A dependency that lacks what is overridden is told at import, in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from pytriton_lite.frontends.private_api import require

PROJECT = Path(__file__).resolve().parent.parent.parent


def test_what_is_there_is_silent_and_what_is_not_is_named() -> None:
    require("uvicorn", RequestResponseCycle, "send", "keep_alive")
    with pytest.raises(ImportError) as failure:
        require("uvicorn", RequestResponseCycle, "send", "launch_rocket", "fuel")
    text = str(failure.value)
    assert text.startswith(
        f"uvicorn {uvicorn.__version__} does not fit pytriton-lite: its RequestResponseCycle has no launch_rocket, fuel. "
    )
    assert "pip install --upgrade 'uvicorn" in text


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        ("uvicorn.protocols.http.httptools_impl", "HttpToolsProtocol", "_start_asgi_task"),
        ("uvicorn.protocols.http.httptools_impl", "HttpToolsProtocol", "_unset_keepalive_if_required"),
        ("uvicorn.protocols.http.flow_control", "FlowControl", "resume_reading"),
    ],
)
def test_the_server_cannot_be_imported_without_what_it_overrides(module: str, owner: str, name: str) -> None:
    code = f"import {module} as found; del found.{owner}.{name}; import pytriton_lite.frontends.listener"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: uvicorn ")
    assert f"its {owner} has no {name}." in last
