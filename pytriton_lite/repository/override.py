"""A model directory made of files that came with a load request (repository.md, section 5.1)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytriton_lite.config.errors import PollError
from pytriton_lite.repository.index import ModelDirectory, read_model_directory
from pytriton_lite.repository.scratch import Scratch

_DEEPEST = 200
"""Folders inside each other. Python makes and removes those of a thousand by calls inside each other, and may not."""


class TemporaryModel:
    """Holds the temporary directory that ``directory`` lies in. `remove` deletes it; after a kill -9 the next server does."""

    def __init__(self, model_name: str, files: Mapping[str, bytes]) -> None:
        """Write *files*, contents by path inside the model's directory.

        Raises PollError for a path that leaves the directory or cannot be written; nothing is left behind then.
        """
        try:
            self._scratch = Scratch.of_model()
        except OSError as error:
            raise PollError(f"the files of the load request cannot be written: {error}") from None
        try:
            path = self._scratch.folder / model_name
            path.mkdir()
            for name, content in files.items():
                _write(path, name, content)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a name
            self.remove()
            raise PollError(f"the files of the load request cannot be written: {error}") from None
        except PollError:
            self.remove()
            raise
        self.directory: ModelDirectory = read_model_directory(path)

    def remove(self) -> None:
        self._scratch.remove()


def _write(model_dir: Path, name: str, content: bytes) -> None:
    # Triton, too, takes a leading slash for one inside the model's directory.
    path = Path(os.path.normpath(model_dir / name.lstrip("/")))
    if model_dir not in path.parents:
        raise PollError(
            f"Invalid file parameter 'file:{name}' with normalized path '{path}' must stay within model directory."
        )
    if len(path.parents) - len(model_dir.parents) > _DEEPEST + 1:
        raise PollError(f"Invalid file parameter 'file:{name}': it has more than {_DEEPEST} folders inside each other.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
