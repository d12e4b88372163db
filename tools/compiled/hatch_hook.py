"""The hook with which hatchling builds wheels for a platform; without it, the wheel is for all (pyproject.toml).

``HATCH_BUILD_HOOKS_ENABLE=true pip wheel .`` turns it on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface):  # type: ignore[misc]  # see pyproject.toml
    """Adds the compiled modules to a wheel, and the tags of the Python and the platform that they are for."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # who edits the source wants to see it run
            return
        sys.path.insert(0, self.root)
        from tools.compiled.build import compile_modules

        os.chdir(self.root)
        self._built = tempfile.TemporaryDirectory()
        built = Path(self._built.name)
        for file in compile_modules(Path(self.root), built):
            build_data["force_include"][str(built / file)] = str(file)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._built.cleanup()
