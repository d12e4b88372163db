import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
        )
