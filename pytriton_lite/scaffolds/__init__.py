"""New models to begin with: a folder of a repository with a configuration, a model and its tests, for each kind of model.

The files lie in ``templates/``, one folder for each kind. `command` is ``pytriton-lite new``. This package touches files alone.
"""

from pytriton_lite.scaffolds.model_files import Kind, ScaffoldError, create

__all__ = ["Kind", "ScaffoldError", "create"]
