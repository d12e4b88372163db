"""metered: a counter, a gauge and a histogram of the model's own, beside the server's on /metrics."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        labels = {"model": args["model_name"], "version": args["model_version"]}
        # A series lives as long as its family, so the families are kept, too.
        self.families = {
            "texts": pb_utils.MetricFamily(
                name="example_texts_total",
                description="Texts measured, by whether they are ASCII",
                kind=pb_utils.MetricFamily.COUNTER,
            ),
            "last": pb_utils.MetricFamily(
                name="example_last_text_bytes",
                description="Length of the text that was measured last",
                kind=pb_utils.MetricFamily.GAUGE,
            ),
            "lengths": pb_utils.MetricFamily(
                name="example_text_bytes",
                description="Lengths of the texts measured",
                kind=pb_utils.MetricFamily.HISTOGRAM,
            ),
        }
        # One series for each set of labels.
        self.texts = {
            ascii_only: self.families["texts"].Metric(labels={**labels, "ascii": str(ascii_only).lower()})
            for ascii_only in (True, False)
        }
        self.last = self.families["last"].Metric(labels=labels)
        # The upper ends of the buckets; +Inf is added.
        self.lengths = self.families["lengths"].Metric(labels=labels, buckets=[1.0, 10.0, 100.0])

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0]
        # A counter goes up, a gauge is set, a histogram observes.
        self.texts[text.isascii()].increment(1)
        self.last.set(len(text))
        self.lengths.observe(len(text))
        return pb_utils.InferenceResponse([pb_utils.Tensor("LENGTH", np.array([len(text)], dtype=np.int32))])
