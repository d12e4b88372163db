"""add_sub for KServe's Python server. It takes the port as `--http_port`, an option of its own."""

from __future__ import annotations

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class AddSub(Model):
    def load(self) -> bool:
        self.ready = True
        return self.ready

    async def predict(
        self, payload: InferRequest, headers: dict[str, str] | None = None, response_headers: object = None
    ) -> InferResponse:
        tensors = {tensor.name: tensor.as_numpy() for tensor in payload.inputs}
        left, right = tensors["INPUT0"], tensors["INPUT1"]
        outputs = []
        for name, data in (("OUTPUT0", left + right), ("OUTPUT1", left - right)):
            output = InferOutput(name, list(data.shape), "FP32")
            output.set_data_from_numpy(data, binary_data=False)
            outputs.append(output)
        return InferResponse(payload.id, self.name, outputs)


if __name__ == "__main__":
    model = AddSub("add_sub")
    model.load()
    ModelServer().start([model])
