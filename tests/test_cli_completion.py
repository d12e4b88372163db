"""The scripts of ``pytriton-lite completion``, in the shells that they are for, where these are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pytriton_lite.cli import main
from pytriton_lite.cli.table import COMMANDS
from pytriton_lite.settings import OPTIONS
from tests.harness import PROJECT


@pytest.fixture
def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    assert main(["completion", shell]) == 0
    path = tmp_path / f"script.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


def bash(script: Path, *words: str) -> list[str]:
    code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pytriton_lite; printf "%s\\n" "${COMPREPLY[@]}"'
    command = ["bash", "--norc", "-c", code, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("",), [*COMMANDS, "--help", "--version"]),
        (("se",), ["serve"]),
        (("serve", "--http-po"), ["--http-port"]),
        (("serve", "--log-format", ""), ["default", "ISO8601", "json"]),
        (("serve", "--log-format", "="), ["default", "ISO8601", "json"]),
        (("serve", "--log-format", "=", "js"), ["json"]),
        (("serve", "--allow-http", "t"), ["true"]),
        (("serve", "--http-port", ""), []),
        (("serve", "--log-file", "READ"), ["README.md"]),
        (("serve", "model_"), ["model_api", "model_repository"]),
        (("check", "--form"), ["--format"]),
        (("completion", "z"), ["zsh"]),
    ],
)
def test_bash_completes(script: Path, words: tuple[str, ...], expected: list[str]) -> None:
    assert sorted(bash(script, "pytriton-lite", *words)) == sorted(expected)


@pytest.mark.parametrize("shell", ["bash"])
def test_bash_knows_every_option(script: Path) -> None:
    flags = [f"--{option.flag}" for option in OPTIONS]
    assert bash(script, "pytriton-lite", "serve", "--") == [*flags, "--help", "--help-all"]


@pytest.mark.parametrize("shell", ["fish"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", [*COMMANDS]),
        ("serve --http-po", ["--http-port"]),
        ("serve --log-format ", ["default", "ISO8601", "json"]),
        ("completion ", ["bash", "fish", "zsh"]),
    ],
)
def test_fish_completes(script: Path, line: str, expected: list[str]) -> None:
    command = ["fish", "--no-config", "-c", f'source "{script}"; complete -C "pytriton-lite {line}"']
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    assert sorted(reply.split("\t")[0] for reply in done.stdout.splitlines()) == sorted(expected)


@pytest.mark.parametrize("shell", ["zsh"])
def test_zsh_takes_the_script(script: Path) -> None:
    """Its completion needs a terminal; the syntax, and that the function is registered, can be seen without one."""
    code = f'autoload -Uz compinit; compinit -D -u; source "{script}"; print $_comps[pytriton-lite]'
    done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert (done.stdout, done.stderr) == ("_pytriton_lite\n", "")


def test_another_shell_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 1
    assert capsys.readouterr().err.endswith(
        "error: there is no completion for the shell bsh; expected one of bash, zsh, fish, the nearest is 'bash'\n"
    )
