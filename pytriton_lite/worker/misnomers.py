"""Names that circulate in tutorials and that Triton never had, with what is there instead (model API, section 9).

Nothing here makes such a name work. An exception that comes of one says the right name behind its own text.
"""

from __future__ import annotations

import linecache
import re
import sys
from types import TracebackType

import numpy as np

from pytriton_lite.worker.tensor import Tensor

_PACKAGE = "triton_python_backend"
_API = "triton_python_backend_utils"

_IMPORT = f"Triton's module is triton_python_backend_utils: import {_API} as pb_utils"
_INPUTS = 'inputs is a method: request.inputs()[0], or pb_utils.get_input_tensor_by_name(request, "NAME")'
_TENSOR = 'a tensor is made by position: pb_utils.Tensor("NAME", array)'
_ELEMENT = "this is an array: as_numpy()[0, 0], or as_numpy().reshape(-1)[0], is the bytes of one element"
_OF_THE_API = {
    "Response": "Triton's class is pb_utils.InferenceResponse(output_tensors=[...]), one for each request",
    "DataType": "data types are numpy's, and TYPE_INT32, TYPE_FP32 and so on in config.pbtxt",
    "infer": "other models are called by pb_utils.InferenceRequest(...).exec() or .async_exec()",
}

_CANNOT_IMPORT = re.compile(r"cannot import name '(\w+)'")


def advice(error: BaseException) -> str | None:
    """What to write instead, where *error* comes of such a name; None for every other exception."""
    try:
        return _advice(error)
    except Exception:  # what user code put into its exception: it must not take the place of what we tell of
        return None


def _advice(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        return _IMPORT if (error.name or "").partition(".")[0] == _PACKAGE else None
    api = sys.modules.get(_API)
    if isinstance(error, ImportError):
        found = _CANNOT_IMPORT.match(str(error))
        return _OF_THE_API.get(found[1]) if found and api is not None and error.name == api.__name__ else None
    if isinstance(error, AttributeError):
        return _for_attribute(error.name or "", error.obj, api)
    if isinstance(error, TypeError):
        return _for_type_error(str(error), error.__traceback__)
    return None


def _for_attribute(name: str, owner: object, api: object) -> str | None:
    if owner is not None and owner is api:
        return _OF_THE_API.get(name)
    if name == "from_numpy" and owner is Tensor:
        return _TENSOR
    if name == "decode" and isinstance(owner, np.ndarray):
        return _ELEMENT
    return None


def _for_type_error(text: str, traceback: TracebackType | None) -> str | None:
    # With Tensor's signature there are two texts of Python's, "... got an unexpected keyword argument 'data'" among them.
    if text.startswith("Tensor.__init__() got ") and "keyword argument" in text:
        return _TENSOR
    # The error does not say which method it was; the line does.
    if text == "'method' object is not subscriptable" and ".inputs[" in _innermost_line(traceback):
        return _INPUTS
    return None


def _innermost_line(traceback: TracebackType | None) -> str:
    """The line of source that raised; "" where there is none to read."""
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return linecache.getline(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
