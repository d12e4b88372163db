"""What a subcommand of ``pytriton-lite`` says of itself: its options, its help and what it does.

A command is a module with one `Command` named ``COMMAND``, and a line in the table of `pytriton_lite.cli.table`; the module is
imported when the command is used. It never reads ``sys.argv``: the command line is read by `pytriton_lite.cli`, with the same
rules for all commands, and help and shell completion are generated.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytriton_lite.settings import Group, Kind, Option

__all__ = ["Arguments", "Command", "CommandError", "Given", "Words", "own_option"]


class CommandError(Exception):
    """A command cannot do what it was asked for; the text, one sentence or two, is for the person who typed it.

    It is printed on stderr as the last line, and the exit status is 1. What is wrong with the command line itself is a
    `pytriton_lite.settings.UsageError`, which prints how the command is used as well.
    """


class Words(enum.Enum):
    """What stands on the command line without dashes, for shell completion."""

    NONE = "none"
    FILES = "files"
    DIRECTORIES = "directories"


@dataclass(frozen=True)
class Given:
    """An option and the text that was given for it."""

    option: Option
    text: str


@dataclass(frozen=True)
class Arguments:
    """A command line that has been read."""

    values: Mapping[str, Any]
    """Values by field, of the options that were given; a repeatable option has a tuple. Defaults are not among them."""
    words: tuple[str, ...]
    """What stood there without dashes; empty where `Command.words_are` names the option that takes it."""
    typed: tuple[Given, ...]
    """The options of the command line, in their order."""
    inherited: tuple[Given, ...]
    """Options of the environment that were not typed."""
    environ: Mapping[str, str]
    """The environment of the process."""

    def value(self, option: Option) -> Any:
        """The value that was given for *option*, or its default."""
        return self.values.get(option.field, option.default)


@dataclass(frozen=True, kw_only=True)
class Command:
    """One subcommand."""

    usage: tuple[str, ...]
    """Forms in which it may be typed, without the program's name: ``check [options] REPOSITORY ...``."""
    introduction: str
    """What it does; paragraphs stand between blank lines, and a line that begins with a blank is kept as it is."""
    options: Mapping[str, Option]
    """What it takes, by flag."""
    run: Callable[[Arguments], int]
    """Does it; the exit status. Raises UsageError and CommandError."""
    common: tuple[str, ...] = ()
    """Flags that ``--help`` shows, in this order, where ``--help-all`` shows all of them; empty where there are few."""
    words_are: str = ""
    """Flag of the option whose values stand without dashes as well; without one they are `Arguments.words`."""
    words: Words = Words.NONE
    letters: Mapping[str, str] = field(default_factory=dict)
    """Flags by the single letter that stands for them: ``-m`` for ``--model-name``."""


def own_option(
    flag: str, kind: Kind, help: str, *, default: Any = None, repeatable: bool = False, shown_default: str | None = None
) -> Option:
    """An option of one command alone. ``--output-file`` has its value in the field ``output_file``."""
    return Option(
        Group.SERVER,
        kind,
        help,
        flag=flag,
        field=flag.replace("-", "_"),
        default=() if repeatable else default,
        repeatable=repeatable,
        shown_default=shown_default,
    )
