"""The command ``new``: its options, its output, its exit status."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pytriton_lite.scaffolds.model_files import Kind, ScaffoldError, create


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """End with status 1, as the other commands do for a wrong command line."""
        self.print_usage(sys.stderr)
        self.exit(1, f"error: {message}\n")


def main(arguments: Sequence[str]) -> int:
    """Run the command with the *arguments* behind its name; the exit status."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    folder, kind = Path(given.folder), Kind(given.kind)
    try:
        written = create(folder, kind)
    except ScaffoldError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(path)
    repository = shlex.quote(str(folder.absolute().parent if folder.parent == Path() else folder.parent))
    tests = " ".join(shlex.quote(str(path)) for path in written if path.name.startswith("test_"))
    print(f"\nTest it:   pytest {tests}\nServe it:  pytriton-lite serve {repository} --watch")
    return 0


def _parser() -> argparse.ArgumentParser:
    kinds = "\n".join(f"  {kind.value:<10} {kind.about}" for kind in Kind)
    parser = _Parser(
        prog="pytriton-lite new",
        usage="pytriton-lite new FOLDER [--kind=KIND]",
        description="Write a model to begin with: config.pbtxt, 1/model.py and its tests. The name of FOLDER is the model's,\n"
        "and the directory in which it lies is the repository that is served.",
        epilog=f"kinds of models:\n{kinds}\n\nThe models run on Triton unchanged.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER", help="such as models/my_model; must not exist, or be empty")
    parser.add_argument(
        "--kind",
        choices=[kind.value for kind in Kind],
        default=Kind.PLAIN.value,
        metavar="KIND",
        help="what the model is like, see below; plain if it is not given",
    )
    return parser
