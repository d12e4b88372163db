"""The name of Triton's compiled half of ``pb_utils``, which its classes give as their module; the same module here."""

import sys

from pytriton_lite.worker import pb_utils
from pytriton_lite.worker.pb_utils import *  # noqa: F403 - for type checkers; at run time the next line takes its place

sys.modules[__name__] = pb_utils
