"""Rules for what is compiled, and the switch that has source run all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton_lite import INTERPRETED_VARIABLE
from pytriton_lite.core.build import build_kind
from tests.harness import PROJECT
from tools.compiled.modules import broken_rules, modules


def test_modules_that_are_compiled_keep_the_rules() -> None:
    assert broken_rules(PROJECT) == []


def test_what_every_request_goes_through_is_compiled() -> None:
    found = modules(PROJECT)
    assert {
        "pytriton_lite/core/request.py",
        "pytriton_lite/engine/serving/dispatch.py",
        "pytriton_lite/frontends/http/codec.py",
        "pytriton_lite/frontends/grpc/http2_connection.py",
        "pytriton_lite/worker/executions.py",
    } <= set(found)
    assert found == sorted(set(found))
    assert "pytriton_lite/scheduling/line.py" not in found


def copy_with(folder: Path, file: str, text: str) -> Path:
    """A project of the same files, all of them empty but *file*."""
    for name in modules(PROJECT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / file).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class A(OrderedDict[int, None]): ...", "1: class A inherits from OrderedDict, which is not compiled"),
        ("class A(asyncio.Protocol): ...", "1: class A inherits from Protocol, which is not compiled"),
        ("class A(InferenceError): ...", "1: class A inherits from InferenceError, which is not compiled"),
        ("class A(Protocol): ...\nclass B(A): ...\nclass C(enum.Enum): ...\nclass D(Exception): ...", None),
        (
            "class A(Exception): ...\ndef f():\n  try: ...\n  except A as e: ...\n  except ValueError as e: ...",
            "2: in f 'e' stands for A and for ValueError",
        ),
        ("def f():\n  try: ...\n  except KeyError as e: ...\n  except ValueError as e: ...", None),
        ("class A(Exception): ...\ndef f():\n  try: ...\n  except A as e: ...\n  except ValueError as g: ...", None),
        (
            "async def f():\n  try: ...\n  except OSError:\n    await g()",
            "4: await g() is waited for while an exception is handled",
        ),
        (
            "def f():\n  try: ...\n  finally:\n    if g(): yield 1",
            "4: (yield 1) is waited for while an exception is handled",
        ),
        ("async def f():\n  try: await g()\n  except OSError: pass\n  await g()", None),
    ],
)
def test_what_would_run_otherwise_is_found(tmp_path: Path, text: str, found: str | None) -> None:
    file = "pytriton_lite/core/tensor.py"
    assert broken_rules(copy_with(tmp_path, file, text)) == ([] if found is None else [f"{file}:{found}"])


def test_a_module_that_is_gone_is_named(tmp_path: Path) -> None:
    (copy_with(tmp_path, "pytriton_lite/core/tensor.py", "") / "pytriton_lite/ipc/arena.py").unlink()
    with pytest.raises(ValueError, match="pytriton_lite/ipc has no module 'arena'"):
        modules(tmp_path)


@pytest.mark.parametrize(("value", "expected"), [("1", "interpreted"), ("0", build_kind()), ("", build_kind())])
def test_source_runs_where_the_environment_says_so(value: str, expected: str) -> None:
    program = "from pytriton_lite.core import build, tensor; import numpy; print(build.build_kind(), tensor.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, INTERPRETED_VARIABLE: value},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    kind, file = done.stdout.split()
    assert kind == expected
    assert file.endswith(".py") == (expected == "interpreted")
