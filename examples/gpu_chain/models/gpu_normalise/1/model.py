"""gpu_normalise: Each row with mean 0 and deviation 1, by CuPy."""

from __future__ import annotations

import cupy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # The server tells each instance its device, and leaves it to the model to go there.
        self.device = cupy.cuda.Device(int(args["model_instance_device_id"]))

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        responses = []
        with self.device:
            for request in requests:
                tensor = pb_utils.get_input_tensor_by_name(request, "IN")
                # Shares the memory where the tensor is on the GPU; an array of the host is copied there.
                rows = cupy.asarray(tensor.as_numpy()) if tensor.is_cpu() else cupy.from_dlpack(tensor)
                result = (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", result)]))
        return responses
