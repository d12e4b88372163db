"""A model directory made of files that came with a load request (repository.md, section 5.1)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytriton_lite.config.errors import PollError
from pytriton_lite.repository.index import ModelDirectory, read_model_directory


class TemporaryModel:
    """Holds the temporary directory that ``directory`` lies in. `remove` deletes it, and so does the end of the process."""

    def __init__(self, model_name: str, files: Mapping[str, bytes]) -> None:
        """Write *files*, contents by path inside the model's directory.

        Raises PollError for a path that leaves the directory or cannot be written; nothing is left behind then.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="pytriton_lite_", ignore_cleanup_errors=True)
        try:
            # By its real name: macOS reaches its temporary directory through a link.
            path = Path(self._folder.name).resolve() / model_name
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
        self._folder.cleanup()


def _write(model_dir: Path, name: str, content: bytes) -> None:
    # Triton, too, takes a leading slash for one inside the model's directory.
    path = Path(os.path.normpath(model_dir / name.lstrip("/")))
    if model_dir not in path.parents:
        raise PollError(
            f"Invalid file parameter 'file:{name}' with normalized path '{path}' must stay within model directory."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
