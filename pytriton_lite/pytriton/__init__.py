"""PyTriton's names over this server, so that its programs run with another import (docs/from-pytriton.md).

``from pytriton.triton import Triton`` becomes ``from pytriton_lite.pytriton.triton import Triton``, and so on; or all of them
stay, below one new line, ``import pytriton_lite.pytriton.stand_in``. Instances are threads of the program, as they are there.
`pytriton.client` is not here: it speaks to this server as it is.
"""

from pytriton_lite.pytriton import decorators
from pytriton_lite.pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonError,
    PyTritonInvalidOperationError,
    PyTritonModelConfigError,
    PyTritonRuntimeError,
    PyTritonUnrecoverableError,
    PyTritonValidationError,
)
from pytriton_lite.pytriton.model_config import (
    DeviceKind,
    DynamicBatcher,
    ModelConfig,
    QueuePolicy,
    Tensor,
    TimeoutAction,
)
from pytriton_lite.pytriton.proxy.types import Request
from pytriton_lite.pytriton.triton import (
    RemoteTriton,
    Triton,
    TritonConfig,
    TritonLifecyclePolicy,
    TritonSecurityConfig,
)

__all__ = [
    "DeviceKind",
    "DynamicBatcher",
    "ModelConfig",
    "PyTritonBadParameterError",
    "PyTritonError",
    "PyTritonInvalidOperationError",
    "PyTritonModelConfigError",
    "PyTritonRuntimeError",
    "PyTritonUnrecoverableError",
    "PyTritonValidationError",
    "QueuePolicy",
    "RemoteTriton",
    "Request",
    "Tensor",
    "TimeoutAction",
    "Triton",
    "TritonConfig",
    "TritonLifecyclePolicy",
    "TritonSecurityConfig",
    "decorators",
]
