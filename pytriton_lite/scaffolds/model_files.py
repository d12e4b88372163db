"""The files of a new model."""

from __future__ import annotations

import enum
import itertools
import re
from importlib import resources
from pathlib import Path
from string import Template


class Kind(enum.Enum):
    """What a model may be like; the value is what is typed, and the name of a folder of templates."""

    PLAIN = "plain"
    BATCHING = "batching"
    DECOUPLED = "decoupled"
    SEQUENCE = "sequence"
    CALLS = "calls"

    @property
    def about(self) -> str:
        """A phrase for a list of kinds."""
        return _ABOUT[self]


_ABOUT = {
    Kind.PLAIN: "one response for each request; start here",
    Kind.BATCHING: "requests that come together are computed together",
    Kind.DECOUPLED: "any number of responses for a request, as a stream",
    Kind.SEQUENCE: "requests that belong together, with something kept between them",
    Kind.CALLS: "a model that calls another one; both are made",
}

_CALLED_SUFFIX = "_called"
"""What the name of the model that is called has behind that of its caller."""

# Triton takes any name of a directory. These can be typed in a URL and a shell, and a file of tests can be named after them.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class ScaffoldError(Exception):
    """Why nothing was written, in a sentence."""


def create(folder: Path, kind: Kind) -> list[Path]:
    """Write a model of *kind* into *folder*, which must not exist or be empty; the files, in the order to read them.

    The name of the folder is the model's. For `Kind.CALLS` a second model is written beside it. Either all files are written
    or, where one cannot be, the ScaffoldError says which; what is there is never overwritten.
    """
    name = _checked_name(folder)
    called = f"{name}{_CALLED_SUFFIX}"
    models = {folder: kind}
    if kind is Kind.CALLS:
        models[folder.with_name(called)] = Kind.PLAIN
    for target in models:
        _refuse_what_is_there(target)
    return [path for target, of_kind in models.items() for path in _write(target, of_kind, called)]


def _checked_name(folder: Path) -> str:
    name = folder.name
    if _NAME.fullmatch(name) is None:
        raise ScaffoldError(
            f"'{folder}' gives the model the name '{name}'; expected letters, digits, '_', '-' and '.', neither '-' nor '.' "
            "first"
        )
    if name.isdigit():
        raise ScaffoldError(
            f"'{folder}' gives the model the name '{name}', and a directory named by a number is a version of a model; name "
            f"the model's folder, as in {folder.parent / 'my_model'}"
        )
    return name


def _refuse_what_is_there(folder: Path) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ScaffoldError(f"'{folder}' exists and is not empty; nothing was written")
    except OSError as error:
        raise ScaffoldError(f"cannot read '{folder}': {error.strerror}") from None


def _test_name(folder: Path) -> str:
    """The name of the file of tests. No other model beside has it: pytest refuses to collect two files of one name together."""
    name = plain = f"test_{re.sub('[^A-Za-z0-9_]', '_', folder.name)}"
    numbers = itertools.count(2)
    while any(file.parent.name != folder.name for file in folder.parent.glob(f"*/{name}.py")):
        name = f"{plain}_{next(numbers)}"
    return f"{name}.py"


def _write(folder: Path, kind: Kind, called: str) -> list[Path]:
    test = _test_name(folder)
    templates = resources.files(__package__) / "templates" / kind.value
    written = []
    for template, name in (("config.pbtxt", "config.pbtxt"), ("model.py", "1/model.py"), ("test.py", test)):
        text = (templates / f"{template}.template").read_text(encoding="utf-8")
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # "x": what somebody else wrote meanwhile stays.
            with path.open("x", encoding="utf-8") as file:
                file.write(Template(text).substitute(model=folder.name, called=called, test=test))
        except OSError as error:
            raise ScaffoldError(f"cannot write '{path}': {error.strerror}") from None
        written.append(path)
    return written
