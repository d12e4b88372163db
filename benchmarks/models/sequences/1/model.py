import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sums the rows of each sequence. The n-th row of one is n, counted from 0: any other means that one was lost."""

    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        row = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        is_first = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()[0, 0]
        sequence = int(pb_utils.get_input_tensor_by_name(request, "ID").as_numpy()[0, 0])
        step, total = (0, np.zeros_like(row)) if is_first else self.sums[sequence]
        if row[0, 0] != step:
            error = pb_utils.TritonError(f"sequence {sequence}: expected row {step}, got {row[0, 0]:g}")
            return pb_utils.InferenceResponse(error=error)
        total = total + row
        self.sums[sequence] = step + 1, total
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)])
