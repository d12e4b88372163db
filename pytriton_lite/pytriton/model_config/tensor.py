"""PyTriton's name for where `Tensor` is."""

from pytriton_lite.binding.specification import Tensor

__all__ = ["Tensor"]
