"""add_sub for MLServer."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class AddSub(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        tensors = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        left, right = tensors["INPUT0"], tensors["INPUT1"]
        return InferenceResponse(
            id=payload.id,
            model_name=self.name,
            outputs=[
                NumpyCodec.encode_output("OUTPUT0", left + right),
                NumpyCodec.encode_output("OUTPUT1", left - right),
            ],
        )
