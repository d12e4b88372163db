"""``reshape`` of an input or output: what the client sees in one form and the model in another."""

from __future__ import annotations

from pytriton_lite.core.tensor import element_count

Reshape = tuple[tuple[int, ...], tuple[int, ...]]
"""(the shape on this side, the shape on the other), both without the batch dimension and perhaps with -1."""


def reshaped(source: tuple[int, ...], target: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """*shape*, which follows *source*, in the form of *target*; None if it does not fit.

    Both may have -1: the n-th variable size of one is the n-th of the other (model configuration spec, 4.3).
    """
    if len(shape) == len(source):
        variable = iter([size for size, dim in zip(shape, source) if dim == -1])
        result = tuple(next(variable) if dim == -1 else dim for dim in target)
    elif -1 not in target:
        result = target
    else:
        return None
    return result if element_count(result) == element_count(shape) else None
