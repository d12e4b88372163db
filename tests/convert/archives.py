"""Models of other servers for tests, made here: archives as torch-model-archiver makes them, folders as MLServer reads them."""

from __future__ import annotations

import json
import textwrap
import zipfile
from pathlib import Path
from typing import Any


def make_archive(
    folder: Path, name: str, handler: str, files: dict[str, str | bytes], *, runtime: str = "python", **model: str
) -> Path:
    """``name.mar`` with *files* and a manifest that names *handler*; *model* are more of its members. Its path."""
    entry = {"modelName": name, "modelVersion": "1.0", "handler": handler, **model}
    manifest = {"createdOn": "24/11/2026 05:30:00", "runtime": runtime, "archiverVersion": "0.12.0", "model": entry}
    path = folder / f"{name}.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        for file, content in files.items():
            archive.writestr(file, textwrap.dedent(content) if isinstance(content, str) else content)
    return path


def make_settings(folder: Path, settings: dict[str, Any], files: dict[str, str | bytes] | None = None) -> Path:
    """A folder of MLServer with model-settings.json and *files*; the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (files or {}).items():
        (folder / file).write_bytes(textwrap.dedent(content).encode() if isinstance(content, str) else content)
    path = folder / "model-settings.json"
    path.write_text(json.dumps(settings))
    return path


CLASS_HANDLER = '''
    import json
    from ts.torch_handler.base_handler import BaseHandler
    from ts.utils.util import PredictionException

    class Lengths(BaseHandler):
        """Overrides each step, so that nothing needs PyTorch."""

        def initialize(self, context):
            with open(context.system_properties["model_dir"] + "/unit.txt") as file:
                self.unit = file.read().strip()
            self.context = context
            self.initialized = True

        def preprocess(self, data):
            bodies = [row.get("data") or row.get("body") for row in data]
            if any(body == b"refuse" for body in bodies):
                raise PredictionException("a body that is refused", 400)
            return bodies

        def inference(self, bodies):
            self.context.metrics.add_counter("Bodies", len(bodies))
            return [len(body) for body in bodies]

        def postprocess(self, lengths):
            return [{"length": length, "unit": self.unit, "batch": len(lengths)} for length in lengths]
'''

FUNCTION_HANDLER = """
    from helper import shout

    state = {}

    def handle(data, context):
        if data is None:
            state["greeting"] = context.model_yaml_config.get("handler", {}).get("greeting", "hello")
            return None
        for index, row in enumerate(data):
            if row["body"] == b"teapot":
                context.set_response_status(418, "short and stout", idx=index)
        return [state["greeting"] + " " + shout(row["body"].decode()) for row in data]
"""

CUSTOM_MODEL = """
    from typing import List
    import numpy as np
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec
    from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
    from mlserver.utils import get_model_uri

    class Scale(MLModel):
        async def load(self) -> bool:
            with open(await get_model_uri(self.settings)) as file:
                self.factor = float(file.read()) * self.settings.parameters.extra["more"]
            return True

        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            values = self.decode(payload.inputs[0], default_codec=NumpyCodec)
            outputs = [
                NumpyCodec.encode_output("scaled", values * np.float32(self.factor)),
                ResponseOutput(name="rows", shape=[len(values), 1], datatype="INT64", data=[len(values)] * len(values)),
            ]
            return InferenceResponse(model_name=self.name, outputs=outputs)
"""

DECODED_MODEL = """
    from typing import List
    import numpy as np
    from mlserver import MLModel
    from mlserver.codecs import decode_args

    class Join(MLModel):
        @decode_args
        async def predict(self, texts: List[str], numbers: np.ndarray) -> List[str]:
            return [f"{text}={number}" for text, number in zip(texts, numbers.reshape(-1))]
"""


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


SCALE = {
    "name": "scale",
    "implementation": "models.Scale",
    "parameters": {"uri": "./factor.txt", "extra": {"more": 10}},
    "inputs": [tensor("x", "FP32", -1, 2)],
    "outputs": [tensor("scaled", "FP32", -1, 2), tensor("rows", "INT64", -1, 1)],
}
JOIN = {
    "name": "join",
    "implementation": "models.Join",
    "inputs": [tensor("texts", "BYTES", -1, 1), tensor("numbers", "INT32", -1, 1)],
    "outputs": [tensor("output-0", "BYTES", -1, 1)],
}
