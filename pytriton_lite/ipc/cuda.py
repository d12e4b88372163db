"""The one seam to CUDA. Nothing else in the project loads a CUDA library.

Uses the driver alone (``libcuda``), through ctypes: asking how many devices there are creates no context and needs no
package.
"""

from __future__ import annotations

import ctypes
import sys

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0


def visible_device_ids() -> tuple[int, ...]:
    """The numbers of the devices that this process may use, ``CUDA_VISIBLE_DEVICES`` respected; () without a GPU."""
    if sys.platform != "linux":
        return ()
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return ()
    count = ctypes.c_int(0)
    if driver.cuInit(0) != _SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return ()
    return tuple(range(count.value))
