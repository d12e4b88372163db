"""docs/troubleshooting.md: the texts to look for are those that the server writes."""

from __future__ import annotations

import re

import pytest

from tests.harness import PROJECT

PAGE = (PROJECT / "docs" / "troubleshooting.md").read_text()
TEXTS = [text for entry in re.findall(r"^(.*)\n: ", PAGE, re.MULTILINE) for text in re.findall(r"`([^`]+)`", entry)]

OTHERS = (
    "ModuleNotFoundError",
    "'NoneType' object",
    "No module named",
    "module 'triton_python_backend_utils'",
    "Connection refused",
    "[StatusCode",
)
"""How texts begin that Python and the clients write."""


def source() -> str:
    """The code, with ``…`` for what is filled in, and with strings that are written in several pieces in one."""
    texts = [path.read_text() for path in sorted((PROJECT / "pytriton_lite").rglob("*.py"))]
    joined = re.sub(r"[\"']\s*\n\s*f?[\"']", "", "\n".join(texts))
    return re.sub(r"\{[^{}]*\}", "…", joined)


@pytest.fixture(scope="module")
def code() -> str:
    return source()


@pytest.mark.parametrize("text", [text for text in TEXTS if not text.startswith(OTHERS)])
def test_a_text_is_the_servers(text: str, code: str) -> None:
    parts = [part.strip(" '") for part in re.split(r"…|\bN\b", text)]
    assert max(parts, key=len) in code


def test_there_are_texts() -> None:
    assert len(TEXTS) > 35
