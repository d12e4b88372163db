"""``pb_utils`` for a process that a model has started, in an environment where this package need not be installed."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

# By path: the folders above are on nobody's path, and must not be, as neighbours of the package would come along.
_spec = spec_from_file_location("bootstrap", Path(__file__).resolve().parent.parent / "bootstrap.py")
assert _spec is not None and _spec.loader is not None
_bootstrap = module_from_spec(_spec)
_spec.loader.exec_module(_bootstrap)
_bootstrap.import_package()

from pytriton_lite.worker import pb_utils  # noqa: E402  # it can be imported from here on

sys.modules["triton_python_backend_utils"] = sys.modules["c_python_backend_utils"] = pb_utils
