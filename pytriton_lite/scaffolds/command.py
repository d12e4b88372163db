"""The command ``new``: its options, its output, its exit status."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pytriton_lite.commands import Arguments, Command, CommandError, Words, own_option
from pytriton_lite.scaffolds.model_files import Kind, ScaffoldError, create
from pytriton_lite.settings import Kind as OptionKind
from pytriton_lite.settings import UsageError

_KINDS = "{" + ",".join(kind.value for kind in Kind) + "}"


def _parse_kind(text: str) -> Kind:
    try:
        return Kind(text.lower())
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise ValueError(f"invalid argument for --kind: {text}; expected one of {known}") from None


_KIND = own_option(
    "kind",
    OptionKind(_KINDS, _parse_kind),
    "What the model is like, see above.",
    default=Kind.PLAIN,
    shown_default="plain",
)


def run(arguments: Arguments) -> int:
    """Write the files, and print their paths and what to do next. Raises UsageError and CommandError."""
    if len(arguments.words) != 1:
        raise UsageError("error: new needs the folder of one model, as in: pytriton-lite new models/my_model")
    folder = Path(arguments.words[0])
    kind: Any = arguments.value(_KIND)
    try:
        written = create(folder, kind)
    except ScaffoldError as error:
        raise CommandError(str(error)) from None
    for path in written:
        print(path)
    repository = shlex.quote(str(folder.absolute().parent if folder.parent == Path() else folder.parent))
    tests = " ".join(shlex.quote(str(path)) for path in written if path.name.startswith("test_"))
    print(f"\nTest it:   pytest {tests}\nServe it:  pytriton-lite serve {repository} --watch")
    return 0


_LINES = "\n".join(f"  {kind.value:<10} {kind.about}" for kind in Kind)

COMMAND = Command(
    usage=("new FOLDER [--kind=KIND]",),
    introduction=f"""\
Writes a model to begin with into FOLDER: config.pbtxt, 1/model.py and its tests. The name of the folder is the model's, and the
directory in which it lies is the repository that is served. The models run on Triton unchanged. Kinds of models:

{_LINES}""",
    options={_KIND.flag: _KIND},
    run=run,
    words=Words.DIRECTORIES,
)
