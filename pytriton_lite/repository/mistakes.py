"""What to do about a directory that is no repository, or no model: the slips that people make with paths."""

from __future__ import annotations

import os
from pathlib import Path

from pytriton_lite.repository.index import is_version

_CONFIG = "config.pbtxt"
_MODEL = "model.py"

_CLOSE = 0.75
"""How much alike two names must be for one to be a slip of the other; of difflib. An ending that an editor has added is one."""


def is_model_folder(directory: Path) -> bool:
    """Whether *directory* is a model itself: it has a configuration, or a version with code, and no models in it."""
    try:
        entries = list(directory.iterdir())
        if any(entry.name == _CONFIG and entry.is_file() for entry in entries):
            return True
        return any(is_version(entry.name) and (entry / _MODEL).is_file() for entry in entries)
    except OSError:  # a folder that may not be entered
        return False


def advice_on_repository(root: Path) -> str:
    """What to serve in place of *root*; "" where it looks like a repository, or cannot be looked at."""
    try:
        return _advice_on_repository(root)
    except OSError:
        return ""


def _advice_on_repository(root: Path) -> str:
    if not root.exists():
        parent = next(parent for parent in root.parents if parent.exists())
        first, *rest = root.relative_to(parent).parts
        names = [entry.name for entry in _directories(parent)]
        import difflib  # which nobody needs who makes no mistake

        for name in difflib.get_close_matches(first, names, n=max(1, len(names))):
            near = parent.joinpath(name, *rest)
            if any(is_model_folder(entry) for entry in _directories(near)):
                return f"did you mean {near}?"
        return f"there is no such directory in {parent}"
    if not root.is_dir():
        return "name a directory of models"
    if is_model_folder(root):
        return f"this is a model's folder; serve its parent: {root.parent}"
    if not _directories(root):
        return "each model is a directory in it"
    return ""


def advice_on_model(directory: Path) -> str:
    """What is wrong with the place of a model that has no version; "" where nothing can be seen."""
    if is_version(directory.name) and is_model_folder(directory.parent):
        return advice_on_repository(directory.parent)
    if os.path.isfile(directory / _MODEL):
        return f"a version is a directory with a number: move {_MODEL} into {directory / '1'}"
    return ""


def advice_on_configuration(directory: Path) -> str:
    """What to do about a model without a configuration whose file has nearly the right name; "" where there is none."""
    try:
        names = [entry.name for entry in directory.iterdir() if entry.is_file()]
    except OSError:
        return ""
    import difflib  # as above

    near = difflib.get_close_matches(_CONFIG, names, n=1, cutoff=_CLOSE)
    return f"{near[0]} is not read: its name must be {_CONFIG}" if near and _CONFIG not in names else ""


def _directories(root: Path) -> list[Path]:
    try:
        return [entry for entry in sorted(root.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
