"""pytorch_add_sub: a PyTorch module behind the server; DLPack hands tensors over without a copy."""

from __future__ import annotations

import torch
import triton_python_backend_utils as pb_utils


class AddSubNet(torch.nn.Module):
    """A network without weights: the sum and the difference of its inputs."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left + right, left - right


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # The server tells each instance its device, and leaves it to the model to go there.
        self.device = "cuda:" + args["model_instance_device_id"] if args["model_instance_kind"] == "GPU" else "cpu"
        self.network = AddSubNet().to(self.device).eval()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Join the batch, run the network once, give each request its rows."""
        lefts = [self._input(request, "INPUT0") for request in requests]
        rights = [self._input(request, "INPUT1") for request in requests]
        # Without gradients: DLPack refuses tensors that have them, and serving needs none.
        with torch.inference_mode():
            total, difference = self.network(torch.cat(lefts), torch.cat(rights))
        rows = [len(left) for left in lefts]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor.from_dlpack("OUTPUT0", added), pb_utils.Tensor.from_dlpack("OUTPUT1", subtracted)]
            )
            for added, subtracted in zip(total.split(rows), difference.split(rows))
        ]

    def _input(self, request: pb_utils.InferenceRequest, name: str) -> torch.Tensor:
        # from_dlpack shares the memory of the tensor; to() copies only where the device is another one.
        return torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)).to(self.device)
