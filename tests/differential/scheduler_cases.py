"""Configurations of schedulers, and requests for them, made from a seed: what `tests/differential/schedulers.py` compares by.

A model is held in ``execute`` by a blocker while requests are queued, so that the batches behind it follow from the
configuration alone. What must not depend on the speed of a machine is far from every limit of time: `SHORT_US` is over after
`PAUSE_S`, and `LONG_US` never.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

SHORT_US = 700_000
"""Of time-outs, idleness: longer than the requests before a pause take to be queued."""
PAUSE_S = 1.8
"""Triton 2.51 notices up to half a second late that a time is over."""
DELAY_US = 400_000
LONG_US = 3_600_000_000

# Reports every row of its execution. A request with the parameter "gate" holds the execution until the connection that it
# makes to that port ends; one with "rounds" comes again so often. What is in a null request is undefined in Triton.
CODE = """
import json
import socket

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0
        self.rounds = {}
        config = json.loads(args["model_config"])
        self.is_decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)

    def execute(self, requests):
        self.executions += 1
        rows = [self.row(request) for request in requests]
        asked = [json.loads(request.parameters() or "{}") if request.request_id() else {} for request in requests]
        for request, given in zip(requests, asked):
            if "gate" in given and request.request_id() not in self.rounds:
                with socket.create_connection(("127.0.0.1", given["gate"]), 60) as gate:
                    gate.recv(1)
        answers = [self.answer(request, given, rows) for request, given in zip(requests, asked)]
        return None if self.is_decoupled else answers

    def row(self, request):
        seen = {}
        for tensor in sorted(request.inputs(), key=lambda tensor: tensor.name()):
            array = tensor.as_numpy()
            values = [value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()]
            if request.request_id() or tensor.name().isupper():
                seen[tensor.name()] = [str(array.dtype), list(array.shape), values]
        return [request.request_id(), request.correlation_id(), request.flags(), seen]

    def answer(self, request, given, rows):
        key = request.request_id()
        self.rounds[key] = self.rounds.get(key, 0) + 1
        again = self.rounds[key] < given.get("rounds", 1)
        if again:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        own = [row for row in rows if row[0] == key]
        report = json.dumps({"execution": self.executions, "own": own, "batch": rows})
        shape = request.inputs()[0].as_numpy().shape[:-1] + (1,)
        response = pb_utils.InferenceResponse([pb_utils.Tensor("out", np.full(shape, report.encode(), np.object_))])
        if not self.is_decoupled:
            return None if again else response
        sender = request.get_response_sender()
        sender.send(response)
        if not again:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@dataclass(frozen=True)
class Request:
    """*flags* are S for START and E for END; *width* is the variable dimension of the input ``x``."""

    id: str
    transport: str = "http"
    sequence: int | str | None = None
    flags: str = ""
    size: int = 1
    width: int = 1
    has_y: bool = False
    priority: int | None = None
    timeout_us: int | None = None
    rounds: int = 1
    is_blocker: bool = False
    spoilt: str = ""


@dataclass(frozen=True)
class Step:
    """``send`` *request*; ``cancel`` that of *id*; ``pause``; ``open`` the gates; ``settle``: wait until all have ended."""

    what: str
    request: Request | None = None
    id: str = ""


@dataclass
class Case:
    """A model's configuration and what happens to it. *is_exact*: the batches follow from it, and their order."""

    seed: int
    config: str
    batches: bool
    is_exact: bool
    steps: list[Step] = field(default_factory=list)

    @property
    def is_iterative(self) -> bool:
        return "iterative_sequence" in self.config

    @property
    def cancels(self) -> bool:
        return any(step.what == "cancel" for step in self.steps)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: " + " ".join(self.config.split())]
        for step in self.steps:
            if step.request is not None:
                fresh = Request("")
                told = {name: value for name, value in vars(step.request).items() if value != getattr(fresh, name)}
                lines.append(f"    {step.what} {told}")
            else:
                lines.append(f"    {step.what} {step.id}")
        return "\n".join(lines)


def made_case(seed: int) -> Case:
    rng = random.Random(seed)
    kind = rng.choices(["default", "dynamic", "direct", "oldest", "iterative"], [1, 8, 8, 6, 5])[0]
    maker = {"default": _Dynamic, "dynamic": _Dynamic}.get(kind, _Sequences)
    return maker(seed, rng, kind).case()


class _Maker:
    """What both kinds of models have in common."""

    def __init__(self, seed: int, rng: random.Random, kind: str) -> None:
        self.seed = seed
        self.rng = rng
        self.kind = kind
        self.most = rng.choice([0, 1, 2, 4, 4, 8])
        self.instances = rng.choice([1, 1, 1, 2, 3])
        self.has_y = rng.random() < 0.2
        self.is_ragged = rng.random() < 0.2
        self.widths = rng.choice([[1], [1], [1, 1, 2], [1, 2, 3]])
        self.is_decoupled = False
        self.sent = 0

    def config(self, scheduler: str) -> str:
        ragged = " allow_ragged_batch: true" if self.is_ragged and self.most else ""
        text = f'backend: "python" max_batch_size: {self.most} instance_group {{ count: {self.instances} kind: KIND_CPU }}\n'
        text += f'input {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ]{ragged} }}\n'
        if self.has_y:
            text += 'input { name: "y" data_type: TYPE_INT32 dims: [ 1 ] optional: true }\n'
        if self.is_decoupled:
            text += "model_transaction_policy { decoupled: true }\n"
        return text + 'output { name: "out" data_type: TYPE_STRING dims: [ 1 ] }\n' + scheduler

    def transport(self) -> str:
        return "stream" if self.is_decoupled else self.rng.choice(["http", "http", "grpc", "stream"])

    def request(self, **fields: Any) -> Step:
        self.sent += 1
        rng = self.rng
        fields.setdefault("transport", self.transport())
        fields.setdefault("width", rng.choice(self.widths))
        fields.setdefault("has_y", self.has_y and rng.random() < 0.5)
        if not fields.get("is_blocker") and rng.random() < 0.06:
            fields["spoilt"] = rng.choice(["rank", "type", "no x", "unknown", "size"])
            fields["has_y"] = fields["has_y"] and fields["spoilt"] != "no x"  # 2.51 would take one for the other
        return Step("send", Request(f"r{self.sent}", **fields))

    def some_cancelled(self, steps: list[Step]) -> list[Step]:
        """Steps that cancel a request among *steps* or two, whose clients can."""
        able = [step.request.id for step in steps if step.request is not None and step.request.transport != "http"]
        chosen = self.rng.sample(able, min(len(able), self.rng.choice([1, 1, 2])))
        return [*(Step("cancel", id=name) for name in chosen), Step("pause")]


class _Dynamic(_Maker):
    """Models with the dynamic batcher, or without any."""

    def __init__(self, seed: int, rng: random.Random, kind: str) -> None:
        super().__init__(seed, rng, kind)
        self.has_short = False
        self.levels = 0
        self.delay_us = 0

    def case(self) -> Case:
        text = self.config("" if self.kind == "default" else f"dynamic_batching {{ {self._options()} }}")
        case = Case(self.seed, text, self.most > 0, self.instances == 1)
        steps = case.steps
        steps += [self._one(is_blocker=True, size=1, width=1, has_y=False) for _ in range(self.instances)]
        waiting = [self._one() for _ in range(self.rng.randint(2, 12))]
        steps += waiting
        if self.kind != "default" and self.rng.random() < 0.25:
            steps += self.some_cancelled(waiting)
        elif self.has_short or self.rng.random() < 0.2:
            steps.append(Step("pause"))
        if self.has_short:
            steps += [self._one() for _ in range(self.rng.randint(0, 3))]
        steps += [Step("open"), Step("settle")]
        steps += [self._one() for _ in range(self.rng.randint(0, 4))]  # instances are idle
        steps.append(Step("settle"))
        return case

    def _options(self) -> str:
        rng = self.rng
        options: list[str] = []
        if rng.random() < 0.5:
            self.levels = rng.choice([2, 3, 5])
            options.append(f"priority_levels: {self.levels} default_priority_level: {rng.randint(1, self.levels)}")
        if self.most and rng.random() < 0.4:
            sizes = sorted(rng.sample(range(1, self.most + 1), rng.randint(1, min(3, self.most))))
            options.append(f"preferred_batch_size: {sizes}")
            if not self.levels:  # else 2.51 forms batches before the instance is free, which is another thing
                options.append("default_queue_policy { max_queue_size: 1000 }")
        elif rng.random() < 0.6:
            options.append(f"default_queue_policy {{ {self._policy()} }}")
        for level in range(1, self.levels + 1):
            if rng.random() < 0.4:
                options.append(f"priority_queue_policy {{ key: {level} value: {{ {self._policy()} }} }}")
        if rng.random() < 0.4:
            self.delay_us = DELAY_US
            options.append(f"max_queue_delay_microseconds: {DELAY_US}")
        if rng.random() < 0.2:
            options.append("preserve_ordering: true")
        return " ".join(options)

    def _policy(self) -> str:
        rng = self.rng
        action = rng.choice(["REJECT", "DELAY"])
        timeout = rng.choice([0, SHORT_US, LONG_US])
        may_override = rng.choice(["true", "false"])
        self.has_short = self.has_short or timeout == SHORT_US or (timeout == LONG_US and may_override == "true")
        limit = rng.choice([0, 0, 1, 2, 4])
        return (
            f"timeout_action: {action} default_timeout_microseconds: {timeout} allow_timeout_override: {may_override} "
            f"max_queue_size: {limit}"
        )

    def _one(self, **fields: Any) -> Step:
        rng = self.rng
        fields.setdefault("size", rng.choice([1, 1, 1, rng.randint(1, self.most)]) if self.most else 1)
        if self.levels and rng.random() < 0.7:
            fields["priority"] = rng.randint(0, self.levels + 1)
        if rng.random() < 0.3 and not fields.get("is_blocker"):
            fields["timeout_us"] = rng.choice([0, SHORT_US, LONG_US])
        return self.request(**fields)


_KINDS = ("START", "END", "READY")
_VALUES = (
    "int32_false_true: [ 0, 1 ]",
    "int32_false_true: [ 7, -7 ]",
    "fp32_false_true: [ -1, 2.5 ]",
    "bool_false_true: [ false, true ]",
    "bool_false_true: [ true, false ]",
)
_IDS: list[int | str] = [1, 2, 3, (1 << 32) + 5, "1", "a text"]


class _Sequences(_Maker):
    """Models with the sequence batcher."""

    def __init__(self, seed: int, rng: random.Random, kind: str) -> None:
        super().__init__(seed, rng, kind)
        self.is_iterative = kind == "iterative"
        self.is_decoupled = self.is_iterative and rng.random() < 0.5
        self.strategy = rng.choice(["direct", "oldest"]) if self.is_iterative else kind
        # An iterative request that is cut while it iterates has no end in 2.51.
        self.is_short = rng.random() < 0.25 and not self.is_iterative
        self.id_type = ""
        self.blockers: list[int] = []

    def case(self) -> Case:
        rng = self.rng
        text = self.config(f"sequence_batching {{ {self._options()} }}")
        case = Case(self.seed, text, self.most > 0, self.is_exact())
        steps = case.steps
        self.blockers = [901 + number for number in range(self.instances)]
        alone = rng.choice(["S", "SE"]) if self.instances == 1 and not self.is_iterative else "S"
        for blocker in self.blockers:
            steps.append(self.request(is_blocker=True, width=1, has_y=False, sequence=blocker, flags=alone))
        waiting = self._some(rng.randint(2, 14))
        steps += waiting
        if rng.random() < 0.25:
            steps += self.some_cancelled(waiting)
        elif self.is_short or rng.random() < 0.3:
            steps.append(Step("pause"))
        if rng.random() < 0.3:
            steps += self._some(3)
        if "E" not in alone and not self.is_iterative:
            steps += [self.request(width=1, has_y=False, sequence=blocker, flags="E") for blocker in self.blockers]
        steps += [Step("open"), Step("settle")]
        steps += self._some(rng.randint(0, 4))
        steps.append(Step("settle"))
        return case

    def is_exact(self) -> bool:
        """Not with oldest, where 2.51 forms batches ahead, nor where shapes leave rows empty, which is a matter of taste."""
        is_of_one_shape = len(set(self.widths)) == 1 and not self.has_y
        return self.instances == 1 and self.strategy == "direct" and is_of_one_shape

    def _options(self) -> str:
        rng = self.rng
        options = [f"max_sequence_idle_microseconds: {SHORT_US if self.is_short else LONG_US}"]
        if self.is_iterative:
            options.append("iterative_sequence: true")
        if self.strategy == "direct" and rng.random() < 0.7:
            delay = rng.choice([0, DELAY_US])
            inside = (
                f"max_queue_delay_microseconds: {delay} minimum_slot_utilization: {rng.choice([0, 0.25, 0.5, 1.0])}"
            )
            options.append(f"direct {{ {inside} }}")
        if self.strategy == "oldest":
            inside = f"max_candidate_sequences: {rng.choice([1, 2, 4, 16])}"
            if self.most and rng.random() < 0.4:
                inside += f" preferred_batch_size: {[rng.randint(1, self.most)]}"
            if rng.random() < 0.5:
                inside += f" max_queue_delay_microseconds: {DELAY_US}"
            if rng.random() < 0.2 and not self.is_iterative:  # nor has one of which answers are to be in order
                inside += " preserve_ordering: true"
            options.append(f"oldest {{ {inside} }}")
        for kind in _KINDS:
            if rng.random() < 0.6:
                values = rng.choice(_VALUES)
                options.append(
                    f'control_input {{ name: "{kind}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}'
                )
        if rng.random() < 0.6:
            self.id_type = rng.choice(["TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32"])
            corrid = f"kind: CONTROL_SEQUENCE_CORRID data_type: {self.id_type}"
            options.append(f'control_input {{ name: "ID" control {{ {corrid} }} }}')
        return " ".join(options)

    def _some(self, count: int) -> list[Step]:
        """Requests of a few sequences, most of them in a sensible order."""
        rng = self.rng
        ids = rng.sample(_IDS if not self.id_type else _IDS[:4], rng.randint(1, 4))
        begun: set[int | str] = set()
        steps = []
        for _ in range(count):
            if self.is_iterative:
                fields = self._iteration()
            else:
                fields = {"sequence": rng.choice(ids)}
                fields["flags"] = self._flags(fields["sequence"], begun)
                if rng.random() < 0.05:
                    fields = {"sequence": rng.choice([None, 0, ""]), "flags": rng.choice(["", "S"])}
            if rng.random() < 0.15:  # with oldest, sequences leave the backlog of 2.51 earlier
                fields["timeout_us"] = rng.choice([0, SHORT_US if self.strategy == "direct" else LONG_US, LONG_US])
            if self.most > 1 and rng.random() < 0.05:
                fields["size"] = 2
            steps.append(self.request(**fields))
        return steps

    def _flags(self, sequence: int | str, begun: set[int | str]) -> str:
        rng = self.rng
        usual = "" if sequence in begun or rng.random() < 0.1 else "S"
        flags = rng.choice([usual, usual, usual, usual + "E", "S", "SE", ""])
        if "S" in flags:
            begun.add(sequence)
        if "E" in flags:
            begun.discard(sequence)
        return flags

    def _iteration(self) -> dict[str, Any]:
        """Each is a sequence of its own, and none ends itself: 2.51 often leaves the others without an answer."""
        rng = self.rng
        fields: dict[str, Any] = {"rounds": rng.choice([1, 1, 2, 3])}
        if rng.random() < 0.5:
            return {**fields, "sequence": rng.choice([None, None, 0, ""]), "flags": rng.choice(["", "", "S"])}
        # Far from what 2.51 makes up, which would be taken for the same.
        return {**fields, "sequence": 200 + self.sent, "flags": rng.choice(["S", "S", "S", "S", ""])}
