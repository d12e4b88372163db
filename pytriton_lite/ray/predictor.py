"""A model of a repository as the function of Ray Data's ``map_batches``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytriton_lite.embedding import Server

Array = np.ndarray[Any, Any]


class Predictor:
    """Batches of columns in, batches of columns out; the engine is in the process of the actor that has it.

    ``dataset.map_batches(Predictor, fn_constructor_args=(repository, model), concurrency=2, batch_size=256)``. Rows go to the
    model in requests of its max_batch_size at most, all at once: so all its instances are busy. A model without a batch
    dimension is asked for one row at a time.
    """

    def __init__(
        self,
        repository: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        model: str,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Load *model* alone. *inputs* are the model's inputs with the columns that they are taken from, *outputs* its outputs
        with the columns that are made of them; by default all, by their own names. *options* are those of
        `pytriton_lite.Server`.

        Raises StartError where the model does not load, ValueError for names that are not the model's.
        """
        self._model = model
        self._server = Server(repository, load_model=model, **options).start()
        metadata = self._server.metadata(model)
        self._rows = self._server.config(model).get("max_batch_size", 0)
        self._inputs = dict(inputs or {tensor.name: tensor.name for tensor in metadata.inputs})
        self._outputs = dict(outputs or {tensor.name: tensor.name for tensor in metadata.outputs})
        for what, chosen, known in (
            ("input", self._inputs, [tensor.name for tensor in metadata.inputs]),
            ("output", self._outputs, [tensor.name for tensor in metadata.outputs]),
        ):
            for name in chosen:
                if name not in known:
                    self._server.stop()
                    raise ValueError(f"model '{model}' has no {what} '{name}'; it has {', '.join(known)}")

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        """*batch* with the columns of the outputs added. Raises InferenceError, and KeyError for a column that is missing."""
        for name, column in self._inputs.items():
            if column not in batch:
                raise KeyError(
                    f"column '{column}', which input '{name}' of model '{self._model}' is taken from, is missing"
                )
        columns = {name: np.asarray(batch[column]) for name, column in self._inputs.items()}
        rows = len(next(iter(batch.values())))
        step = self._rows or 1
        answers = asyncio.run(self._infer_all(columns, range(0, rows, step), step))
        made = {
            column: (np.concatenate if self._rows else np.stack)([answer[name] for answer in answers])
            for name, column in self._outputs.items()
        }
        return {**batch, **made}

    async def _infer_all(self, columns: Mapping[str, Array], starts: range, step: int) -> Sequence[Mapping[str, Array]]:
        def piece(start: int) -> dict[str, Array]:
            if not self._rows:
                return {name: column[start] for name, column in columns.items()}
            return {name: column[start : start + step] for name, column in columns.items()}

        asking = [self._server.ainfer(self._model, piece(start), outputs=list(self._outputs)) for start in starts]
        return await asyncio.gather(*asking)
