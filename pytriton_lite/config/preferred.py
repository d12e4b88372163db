"""The rule that the dynamic batcher and the sequence batcher share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytriton_lite.config.errors import BrokenRule, invalid


def broken_preferred_sizes(
    sizes: Iterable[int], max_batch_size: int, what: str, model_name: str, field: str
) -> Iterator[BrokenRule]:
    """Preferred batch sizes, of the list *field*, that no batch can have; none can where the model does not batch."""
    for at, size in enumerate(sizes):
        if size <= 0:
            yield invalid(f"{what} must be positive for {model_name}", f"{field}[{at}]")
        elif size > max_batch_size:
            yield invalid(f"{what} must be <= max batch size for {model_name}", f"{field}[{at}]")
