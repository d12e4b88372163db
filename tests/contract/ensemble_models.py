"""Models whose requests bring what they do as a parameter called like the model, and ensembles of them.

The parameters of a request for an ensemble reach every step. The value of ``a`` is the body of a function that the model ``a``
runs with its ``request``; it sees what `SCRIPT_CODE` of `scripted_model` defines, and ``plus(request, value)``, which is what
the model does without a script: OUT0 is its first input and one more, OUT1 its first input and two. A decoupled one does it
three times, with 0, 10 and 20 more.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.contract.scripted_model import SCRIPT_CODE
from tests.harness import write_model

STEP_CODE = SCRIPT_CODE[: SCRIPT_CODE.index("class TritonPythonModel")] + textwrap.dedent("""
    def seen(request):
        return {
            "id": request.request_id(),
            "sequence": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters() or "{}"),
            "outputs": sorted(request.requested_output_names()),
            "inputs": {tensor.name(): list(tensor.as_numpy().shape) for tensor in request.inputs()},
        }


    class TritonPythonModel:
        def initialize(self, args):
            config = json.loads(args["model_config"])
            self.name = args["model_name"]
            self.types = {
                output["name"]: pb_utils.triton_string_to_numpy(output["data_type"]) for output in config["output"]
            }
            self.is_decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)

        def plus(self, request, value):
            array = sorted(request.inputs(), key=lambda tensor: tensor.name())[0].as_numpy()
            outputs = [
                pb_utils.Tensor(name, (array + value + int(name[-1])).astype(kind)) for name, kind in self.types.items()
            ]
            return Response(outputs)

        def answer(self, request):
            code = json.loads(request.parameters() or "{}").get(self.name)
            if code is not None:
                scope = dict(globals(), plus=self.plus, model=self)
                exec("def script(request):\\n" + textwrap.indent(code, "    "), scope)
                return scope["script"](request)
            if not self.is_decoupled:
                return self.plus(request, 1)
            sender = request.get_response_sender()
            for value in (1, 11, 21):
                sender.send(self.plus(request, value))
            sender.send(flags=FINAL)

        def execute(self, requests):
            responses = [self.answer(request) for request in requests]
            return None if self.is_decoupled else responses
""")

DECOUPLED = "model_transaction_policy { decoupled: true }"


def tensor_specs(kind: str, specs: str) -> str:
    """``input`` or ``output`` sections from ``X:FP32:-1,4 Y:INT32:2``."""
    sections = []
    for spec in specs.split():
        name, datatype, dims = spec.split(":")
        optional = " optional: true" if name.endswith("?") else ""
        sections.append(
            f'{kind} {{ name: "{name.rstrip("?")}" data_type: TYPE_{datatype} dims: [ {dims} ]{optional} }}'
        )
    return "\n".join(sections)


def write_step_model(
    repository: Path,
    name: str,
    more: str = "",
    *,
    inputs: str = "IN0:FP32:4",
    outputs: str = "OUT0:FP32:4 OUT1:FP32:4",
    code: str = STEP_CODE,
) -> Path:
    """A model of that kind; a name of an input that ends with ``?`` is optional."""
    config = f'backend: "python"\n{tensor_specs("input", inputs)}\n{tensor_specs("output", outputs)}\n{more}\n'
    return write_model(repository, name, code, config)


def write_ensemble(
    repository: Path,
    name: str,
    *steps: tuple[str, str, str],
    inputs: str = "X:FP32:4",
    outputs: str = "Y:FP32:4",
    more: str = "",
    scheduling: str = "",
) -> Path:
    """An ensemble of (model, input map, output map); a map is ``IN0=X IN1=T``, the model's names and the ensemble's.

    *more* stands in the configuration, *scheduling* in its ``ensemble_scheduling``.
    """
    text = f'platform: "ensemble"\n{tensor_specs("input", inputs)}\n{tensor_specs("output", outputs)}\n{more}\n'
    text += f"ensemble_scheduling {{ {scheduling}\n"
    for model, taken, given in steps:
        maps = [f'input_map {{ key: "{k}" value: "{v}" }}' for k, v in (pair.split("=") for pair in taken.split())]
        maps += [f'output_map {{ key: "{k}" value: "{v}" }}' for k, v in (pair.split("=") for pair in given.split())]
        text += f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}\n'
    return write_model(repository, name, config=text + "}\n")
