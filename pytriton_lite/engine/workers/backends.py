"""Python-based backends: folders with a model.py that serves every model which names the folder (model API, section 1.6)."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytriton_lite import doors
from pytriton_lite.config.complete import BACKEND_FILE, PYTHON
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.engine.workers.fork_process import BOOTSTRAP


@dataclass(frozen=True)
class Backend:
    """One backend: the *folder* with its model.py, and the *settings* that it finds in ``BACKEND_SETTINGS``."""

    folder: Path
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Backends:
    """Where backends are, and what ``--backend-config`` says about them.

    *directory* is the operator's; what is in it goes before what packages bring (`doors.BACKENDS`). *settings* are by backend
    and key, those for all backends under "".
    """

    directory: Path | None = None
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def folders(self) -> dict[str, Path]:
        """The folder of each backend, by name. Read at every load: a backend may come while the server runs.

        A native library beside a model.py is passed over: Triton would take it, and here none can be loaded.
        """
        found = {name: folder for name, folder in _of_packages().items() if (folder / BACKEND_FILE).is_file()}
        found |= {file.parent.name: file.parent for file in _backend_files(self.directory)}
        # A Triton installation has a folder of that name. Its models are ours to run.
        found.pop(PYTHON, None)
        return found

    def folders_for(self, backend: str) -> dict[str, Path]:
        """`folders`, as far as a model of *backend* needs them: to look through packages takes 20 ms, and a megabyte."""
        return {} if backend == PYTHON else self.folders()

    def find(self, name: str, folders: Mapping[str, Path]) -> Backend | None:
        """The Python-based backend of that name among *folders*; None where there is none, as for ``python``."""
        folder = folders.get(name)
        return None if folder is None else Backend(folder, self._settings_of(name))

    def _settings_of(self, backend: str) -> dict[str, str]:
        """Settings for all backends, and its own over them."""
        return {**self.settings.get("", {}), **self.settings.get(backend, {})}

    def table(self, configs: Iterable[ModelConfig]) -> list[tuple[str, str, str]]:
        """(backend, path, configuration) of what serves the models of *configs*, as printed at start-up.

        ``python`` is listed where a Python-based backend is, as on Triton: the workers of both are the same.
        """
        names = {config.backend for config in configs}
        folders = self.folders() if names - {PYTHON} else {}
        used = sorted(name for name in names if name in folders)
        if used or PYTHON in names:
            used.insert(0, PYTHON)
        return [(name, str(self._path(name, folders)), self._command_line(name)) for name in used]

    @staticmethod
    def _path(name: str, folders: Mapping[str, Path]) -> Path:
        return BOOTSTRAP if name == PYTHON else folders[name] / BACKEND_FILE

    def _command_line(self, name: str) -> str:
        return json.dumps({"cmdline": self._settings_of(name)}, separators=(",", ":"))


@functools.cache
def _of_packages() -> dict[str, Path]:
    """Folders that installed packages bring. Looked for once: packages do not come while a server runs."""
    return doors.folders(doors.BACKENDS)


def _backend_files(directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    try:
        entries = list(directory.iterdir())
    except OSError:  # Triton's default place is seldom there
        return []
    # `Path.is_file` would raise for a folder that may not be entered, as the lost+found of a volume.
    return [file for entry in entries if os.path.isfile(file := entry / BACKEND_FILE)]
