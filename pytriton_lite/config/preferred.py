"""The rule that the dynamic batcher and the sequence batcher share."""

from __future__ import annotations

from collections.abc import Iterable

from pytriton_lite.config.errors import invalid


def check_preferred_sizes(sizes: Iterable[int], max_batch_size: int, what: str, model_name: str) -> None:
    """Refuse a preferred batch size that no batch can have; any size is one where the model does not batch."""
    for size in sizes:
        if size <= 0:
            raise invalid(f"{what} must be positive for {model_name}")
        if size > max_batch_size:
            raise invalid(f"{what} must be <= max batch size for {model_name}")
