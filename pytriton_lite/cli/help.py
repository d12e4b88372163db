"""What ``--help`` prints, generated from the table of commands and their options."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence

from pytriton_lite.cli.table import COMMANDS, Entry
from pytriton_lite.commands import Command
from pytriton_lite.settings import Group, Option, Standing, show

COLUMNS = 100
"""Width of a help that nobody looks at in a terminal."""

_INDENT = " " * 8


def usage(command: Command) -> str:
    """How *command* is typed."""
    first, *others = command.usage
    return "\n".join([f"Usage: pytriton-lite {first}", *(f"       pytriton-lite {other}" for other in others)])


def overview_usage() -> str:
    """How the program is typed."""
    return "Usage: pytriton-lite COMMAND [options]\n       pytriton-lite --version | --help"


def overview(commands: Mapping[str, Entry] = COMMANDS) -> str:
    """What ``pytriton-lite --help`` prints: the commands."""
    widest = max(map(len, commands))
    lines = [f"  {name.ljust(widest)}  {entry.summary}" for name, entry in commands.items()]
    return "\n".join(
        [
            overview_usage(),
            "",
            "A model server for Triton's Python models: KServe v2 over HTTP and gRPC.",
            "",
            "Commands:",
            *lines,
            "",
            "  pytriton-lite serve model_repository     serves the models in that directory",
            "  pytriton-lite COMMAND --help             says more of a command",
        ]
    )


def help_of(name: str, command: Command, *, is_all: bool = False, columns: int = COLUMNS) -> str:
    """What ``--help`` prints for *command*, or ``--help-all``, where it does not show all of its options by itself."""
    sections = [usage(command), *_paragraphs(command.introduction, columns)]
    options = command.options.values()
    letters = {flag: letter for letter, flag in command.letters.items()}
    if not command.common:
        sections.append(
            _section("Options", [*options], columns, "  -h, --help", f"{_INDENT}Print this text.", letters=letters)
        )
    elif is_all:
        own = (
            "  -h, --help",
            f"{_INDENT}Print the options that people use most.",
            "  --help-all",
            f"{_INDENT}Print this.",
        )
        sections.append("\n".join(own))
        for group in Group:
            of_group = [option for option in options if option.group is group]
            if of_group:
                sections.append(_section(group.value, of_group, columns, letters=letters))
    else:
        shown = [_shortened(command.options[flag]) for flag in command.common]
        sections.append(
            _section("Options", shown, columns, "  -h, --help", f"{_INDENT}Print this text.", letters=letters)
        )
        sections.append(f"pytriton-lite {name} --help-all shows all {len(command.options)} options.")
    return "\n\n".join(sections)


def _section(heading: str, options: Sequence[Option], columns: int, *more: str, letters: Mapping[str, str]) -> str:
    entries = (_entry(option, columns, letters.get(option.flag)) for option in options)
    return "\n".join([f"{heading}:", *entries, *more])


def _shortened(option: Option) -> Option:
    return dataclasses.replace(option, help=first_sentence(option))


def first_sentence(option: Option) -> str:
    """What an option is for, without the rules; with its full stop."""
    return re.split(r"(?<=[\w})]\.) ", option.help)[0]


def _paragraphs(text: str, columns: int) -> list[str]:
    return [
        paragraph if paragraph.startswith(" ") else textwrap.fill(paragraph, columns)
        for paragraph in re.split(r"\n\n+", text.strip("\n"))
    ]


def _entry(option: Option, columns: int, letter: str | None) -> str:
    sentences = [option.help]
    if option.repeatable:
        sentences.append("May be given several times.")
    default = show(option.default) if option.shown_default is None else option.shown_default
    if default and option.kind.takes_argument:
        sentences.append(f"Default: {default}.")
    if option.standing is Standing.NO_EFFECT:
        sentences.append(f"Accepted without effect: {option.note}.")
    text = textwrap.fill(
        " ".join(sentences),
        columns,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
        break_long_words=False,
    )
    names = f"--{option.flag}" if letter is None else f"-{letter}, --{option.flag}"
    return f"  {names} {option.kind.metavar}".rstrip() + "\n" + text
