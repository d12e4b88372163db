import time

import triton_python_backend_utils as pb_utils

EXECUTE_S = 0.002
_SPIN_S = 0.0002
"""A sleep ends up to 0.1 ms late, which would be the machine's doing and not the server's."""


class TritonPythonModel:
    """Doubles rows. However many requests there are, `execute` takes two milliseconds, as one on a device would."""

    def execute(self, requests):
        end = time.perf_counter() + EXECUTE_S
        responses = [pb_utils.InferenceResponse([self.doubled(request)]) for request in requests]
        left = end - time.perf_counter() - _SPIN_S
        if left > 0:
            time.sleep(left)
        while time.perf_counter() < end:
            pass
        return responses

    def doubled(self, request):
        row = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.Tensor("OUT", row + row)
