"""``pb_utils`` outside a server: ``import triton_python_backend_utils as pb_utils`` in a test, a notebook or a type checker.

What is imported by this name is the module that a model finds in a worker, so that its classes are the same ones. A worker
puts that module in place by itself, where this package need not be installed.
"""

import sys

from pytriton_lite.worker import pb_utils
from pytriton_lite.worker.pb_utils import *  # noqa: F403 - for type checkers; at run time the next line takes its place

sys.modules[__name__] = pb_utils
