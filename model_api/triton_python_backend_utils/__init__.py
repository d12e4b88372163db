"""``pb_utils`` outside a server: ``import triton_python_backend_utils as pb_utils`` in a test, a notebook or a type checker.

What is imported by this name is the module that a model finds in a worker, so that its classes are the same ones. A worker
puts that module in place by itself, where this package need not be installed.

A real Triton's stub that finds this package in its environment gets its own module of this name, not ours.
"""

import sys

if "c_python_backend_utils" in sys.builtin_module_names:
    # Only in the stub of a real Triton, which has that half of pb_utils built in and adds the other half's folder at the end of
    # the path: behind the place that this package was found in. With ours the stub would abort.
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from pathlib import Path

    _ours = Path(__file__).resolve().parent.parent
    _spec = PathFinder.find_spec(__name__, [entry for entry in sys.path if Path(entry).resolve() != _ours])
    if _spec is None or _spec.loader is None:
        raise ImportError(
            f"{__name__} of this Triton is not on its path; that of pytriton-lite steps aside", name=__name__
        )
    sys.modules[__name__] = _theirs = module_from_spec(_spec)
    _spec.loader.exec_module(_theirs)
else:
    from pytriton_lite.worker import pb_utils
    from pytriton_lite.worker.pb_utils import *  # noqa: F403 - for type checkers; at run time the next line takes its place

    sys.modules[__name__] = pb_utils
