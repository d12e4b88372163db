"""Every block of every page: run, parsed or compiled, as its language allows; tools/pages/snippets.py has the notes on that.

What is run is run by test_followed_pages.py and by the tests that `run by` names.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format

from pytriton_lite.cli import reading
from pytriton_lite.cli.serve import parse
from pytriton_lite.cli.table import COMMANDS
from pytriton_lite.proto import model_config_pb
from tools.pages.snippets import FOLLOWED, PROJECT, Snippet, pages, snippets

ALL = [snippet for page in pages() for snippet in snippets(page)]

PLAIN = {"text", "mermaid"}
"""Languages that are not parsed: what programs print, pictures in letters, other programs' configurations; and diagrams, which
only a browser can read."""


def of(*languages: str) -> list[Snippet]:
    found = [snippet for snippet in ALL if snippet.language in languages]
    assert found
    return found


def place(snippet: Snippet) -> str:
    return snippet.place


def test_every_block_says_what_it_is() -> None:
    known = {"python", "protobuf", "sh", "bash", "json", "yaml", "toml", "dockerfile", "console"} | PLAIN
    assert [snippet.place for snippet in ALL if snippet.language not in known] == []


def test_a_test_that_runs_a_block_is_there_and_reads_the_page() -> None:
    for snippet in ALL:
        if "run by" in snippet.notes:
            test = PROJECT / snippet.notes["run by"]
            assert test.is_file(), snippet.place
            assert snippet.page.name in test.read_text(), snippet.place


def test_an_exception_has_its_reason_and_is_one() -> None:
    for snippet in ALL:
        followed = FOLLOWED in snippet.page.read_text(encoding="utf-8")
        for note in ("not run", "installs", "background", "stop", "prints"):
            assert note not in snippet.notes or followed, f"{snippet.place}: the page is not followed"
        for note in ("fragment", "run by", "not run", "installs", "background", "stop"):
            assert snippet.notes.get(note) != "", f"{snippet.place}: {note} says nothing"


@pytest.mark.parametrize("snippet", of("python"), ids=place)
def test_python_compiles_with_names_that_are_known(snippet: Snippet) -> None:
    tree = ast.parse(snippet.text)
    if "fragment" in snippet.notes:
        return
    unknown = subprocess.run(
        [ruff(), "check", "--isolated", "--no-cache", "--select=F821,F811,F401", "--output-format=concise", "-"],
        input=snippet.text,
        capture_output=True,
        text=True,
    )
    assert unknown.returncode == 0, unknown.stdout
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            check_import(node.module or "", [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                check_import(alias.name, [])


FRAMEWORKS = {"ray", "skops", "torch", "sklearn", "xgboost", "joblib", "pytriton", "mlserver", "ts", "skl2onnx"}
"""Packages that the tests' environment need not have; what a page's own files define is none of them."""


def check_import(module: str, names: list[str]) -> None:
    if module.partition(".")[0] in FRAMEWORKS:
        return
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A file of the same page.
        assert any(Path(snippet.file).stem == module for snippet in ALL if snippet.file), error
        return
    for name in names:
        assert hasattr(found, name) or importlib.import_module(f"{module}.{name}"), f"{module} has no {name}"


def ruff() -> str:
    found = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    assert found is not None
    return found


@pytest.mark.parametrize("snippet", of("protobuf"), ids=place)
def test_a_configuration_has_only_fields_that_there_are(snippet: Snippet) -> None:
    text_format.Parse(snippet.text, model_config_pb.ModelConfig())


@pytest.mark.parametrize("snippet", of("json"), ids=place)
def test_json_is_json(snippet: Snippet) -> None:
    json.loads(snippet.text)


@pytest.mark.parametrize("snippet", of("yaml"), ids=place)
def test_yaml_is_yaml(snippet: Snippet) -> None:
    yaml = pytest.importorskip("yaml")
    assert list(yaml.safe_load_all(snippet.text))


@pytest.mark.parametrize("snippet", of("toml"), ids=place)
def test_toml_is_toml(snippet: Snippet) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    assert tomllib.loads(snippet.text)


@pytest.mark.parametrize("snippet", of("sh", "bash", "console"), ids=place)
def test_a_command_can_be_parsed_and_its_options_are_there(snippet: Snippet) -> None:
    text = snippet.text
    if snippet.language == "console":
        text = "\n".join(re.findall(r"^\$ (.*(?:\\\n.*)*)", text, re.MULTILINE))
        assert text, "a session has lines that begin with $"
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for words in commands(text):
        check_command_line(words)


def commands(text: str) -> list[list[str]]:
    """The simple commands of a shell's *text* that ``pytriton-lite``, ``make`` and ``python`` begin, as words."""
    found = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a text over several lines, of which bash has seen that it ends
            continue
        for part in split_at(words, {"&&", "||", "|", ";", "&"}):
            while part and re.fullmatch(r"[A-Z_]+=.*", part[0]):
                part = part[1:]
            if part and Path(part[0]).name in ("pytriton-lite", "make", "python"):
                found.append([Path(part[0]).name, *part[1:]])
    return found


def split_at(words: list[str], separators: set[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in separators:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


MAKEFILE = (PROJECT / "Makefile").read_text()


def check_command_line(words: list[str]) -> None:
    program, *arguments = words
    if program == "make":
        for target in (word for word in arguments if "=" not in word and not word.startswith("-")):
            assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), f"make has no target {target}"
    elif program == "pytriton-lite" and arguments:
        command, *rest = arguments
        if command == "serve":
            parse(rest, {})
        elif not command.startswith("-"):
            assert command in COMMANDS, f"there is no command {command}"
            reading.read(COMMANDS[command].load(), rest, {})
    elif program == "python" and arguments[:1] == ["-m"] and arguments[1].startswith(("tests.", "tools.")):
        assert importlib.util.find_spec(arguments[1]) is not None, arguments[1]
