"""jax_add_sub: a jitted JAX function behind the server; tensors go in and out through DLPack."""

from __future__ import annotations

import jax
import triton_python_backend_utils as pb_utils


@jax.jit
def add_sub(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    return left + right, left - right


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # JAX compiles for each shape that it meets. The first request need not wait for the likely one.
        left = right = jax.numpy.zeros((1, 4), jax.numpy.float32)
        add_sub(left, right)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        left, right = (
            jax.dlpack.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)) for name in ("INPUT0", "INPUT1")
        )
        total, difference = add_sub(left, right)
        # JAX computes in the background; from_dlpack waits until the result is there.
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor.from_dlpack("OUTPUT0", total), pb_utils.Tensor.from_dlpack("OUTPUT1", difference)]
        )
