"""batch: the same as nobatch for a model that takes batches, and lets the server make them."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        # The dims below are those of one element; clients send [N, 4] with N up to 4.
        auto_complete_model_config.set_max_batch_size(4)
        # Let requests that come together be executed together.
        auto_complete_model_config.set_dynamic_batching()
        auto_complete_model_config.add_input({"name": "INPUT", "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.add_output({"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [4]})
        return auto_complete_model_config

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        # Requests that were batched come as a list; their tensors are not joined.
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() + 1)]
            )
            for request in requests
        ]
