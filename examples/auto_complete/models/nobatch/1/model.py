"""nobatch: a model without config.pbtxt that says itself what its configuration is. It adds 1 to four numbers."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Called once for each load, in a process that is thrown away: nothing done here is seen by `initialize`.

        What config.pbtxt says, where there is one, must agree with what is added here, or the model does not load.
        """
        auto_complete_model_config.set_max_batch_size(0)
        auto_complete_model_config.add_input({"name": "INPUT", "data_type": "TYPE_FP32", "dims": [4]})
        auto_complete_model_config.add_output({"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [4]})
        return auto_complete_model_config

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT", pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy() + 1)]
            )
            for request in requests
        ]
