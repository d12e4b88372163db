"""The command ``debug``: one model, which runs in this process (pytriton_lite/debug.py), and a server for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytriton_lite import debug
from pytriton_lite.cli import serve
from pytriton_lite.cli.table import SERVER_OF_DEBUG
from pytriton_lite.commands import Arguments, Command, Given, Words
from pytriton_lite.settings import BY_FLAG, UsageError

_LOOPBACK = "127.0.0.1"


def run(arguments: Arguments) -> int:
    """Serve one model, and run it here. Options that were given come last, and so rank higher. Raises UsageError."""
    folder = _folder_of(arguments)
    # What is typed of an option that can be given again takes the place of all that the environment says of it.
    replaced = [
        entry for entry in arguments.inherited if entry.option.repeatable and entry.option.flag in debug.PATIENCE
    ]
    words = [
        *serve.only_model(folder),
        *_listen_here(arguments),
        *_patience(),
        *_as_typed((*replaced, *arguments.typed)),
    ]
    settings = serve.parse(words, arguments.environ).settings  # so that a mistake is told before anything is started
    if settings is not None and settings.watch:
        raise UsageError("error: debug runs one model in this terminal to its end; --watch goes with serve")
    return debug.debug(folder.name, words, server=SERVER_OF_DEBUG)


def serve_debugged(argv: Sequence[str]) -> int:
    """The server of `run`, in a process of its own; the exit status."""
    control, model, *words = argv
    return serve.start(serve.parse(words, os.environ), foreground=(model, socket.socket(fileno=int(control))))


def _folder_of(arguments: Arguments) -> Path:
    if not arguments.words:
        raise UsageError(
            "error: debug needs the folder of a model, as in: pytriton-lite debug model_repository/add_sub"
        )
    word, *others = arguments.words
    if others:
        raise UsageError(
            f"Unexpected argument: {others[0]}; debug takes one model, and --load-model=NAME others beside it"
        )
    folder = Path(word).absolute()
    if not folder.is_dir():
        raise UsageError(f"error: the model folder {folder} is no directory")
    if not any(entry.name.isdigit() for entry in folder.iterdir()):
        raise UsageError(
            f"error: {folder} has no version directory, such as {folder / '1'}; debug needs one model, not a repository"
        )
    return folder


def _listen_here(arguments: Arguments) -> list[str]:
    """Options of a server that nobody else can reach, unless somebody said where it listens."""
    return [
        f"--{flag}={_LOOPBACK}"
        for flag in ("http-address", "grpc-address")
        if BY_FLAG[flag].field not in arguments.values
    ]


def _patience() -> list[str]:
    return [f"--{flag}={text}" for flag, text in debug.PATIENCE.items()]


def _as_typed(given: Iterable[Given]) -> list[str]:
    return [
        f"--{entry.option.flag}={entry.text}" if entry.option.kind.takes_argument else f"--{entry.option.flag}"
        for entry in given
    ]


COMMAND = Command(
    usage=("debug MODEL_FOLDER [options]",),
    introduction="""\
Serves the one model in MODEL_FOLDER, which runs in the foreground process: breakpoint() stops in this terminal. The
server listens on the loopback unless it is told otherwise, and waits for ever while you look. All options of serve are taken;
--load-model=NAME loads another model of the same repository beside it.""",
    options=BY_FLAG,
    run=run,
    common=("http-port", "grpc-port", "metrics-port", "load-model", "log-verbose"),
    words=Words.DIRECTORIES,
)
