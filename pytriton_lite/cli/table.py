"""The table of subcommands: the one place where a command is made known."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from pytriton_lite.commands import Command


@dataclass(frozen=True)
class Entry:
    """One command, before anything of it is imported."""

    summary: str
    """One line of ``pytriton-lite --help``: a verb first, no full stop."""
    module: str
    """Its module, which has a `Command` named COMMAND."""

    def load(self) -> Command:
        """Import it."""
        command: Command = importlib.import_module(self.module).COMMAND
        return command


COMMANDS: Mapping[str, Entry] = {
    "serve": Entry("Serve the models of repositories over HTTP and gRPC", "pytriton_lite.cli.serve"),
    "check": Entry("Say what is wrong with models, without running them", "pytriton_lite.check.command"),
    "debug": Entry("Serve one model in this terminal, where breakpoint() stops", "pytriton_lite.cli.debug"),
    "infer": Entry("Ask a model of a running server, from the terminal", "pytriton_lite.infer.command"),
    "bench": Entry("Load a running server and say how fast it answers", "pytriton_lite.bench.command"),
    "new": Entry("Write a model to begin with, and its tests", "pytriton_lite.scaffolds.command"),
    "convert": Entry(
        "Make a model's folder of a TorchServe archive or a model of MLServer", "pytriton_lite.convert.command"
    ),
    "completion": Entry("Print the completion script of a shell", "pytriton_lite.cli.completion"),
}
"""The commands by name, in the order of the help."""

SERVER_OF_DEBUG = "debug-server"
"""The command of the process that `debug` starts. Not for users."""
