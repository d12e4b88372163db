"""What can be measured: which model is asked, over which protocols, by how many callers, and what must come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from calls import Call, Protocol

# The models "decoupled" and "bls_decoupled" have this number in them; the check before the measurements compares.
STREAMED_RESPONSES = 100


@dataclass(frozen=True)
class Scenario:
    """*protocols* and *callers* are what is measured unless the command line says otherwise.

    *calls* are the models that the asked one calls, or has as steps, once for each request: their counters must agree with its
    own. A *decoupled* model can be asked over a stream alone, and sequences over gRPC, where each caller has its own: wrk knows
    of no callers.
    """

    call: Call
    protocols: Sequence[Protocol]
    callers: Sequence[int]
    calls: Sequence[str] = ()
    decoupled: bool = False

    @property
    def name(self) -> str:
        return self.call.model

    @property
    def models(self) -> Sequence[str]:
        """All that have to be served, the asked one first."""
        return (self.call.model, *self.calls)

    @property
    def responses(self) -> int:
        """How many the client gets for a request."""
        return len(self.call.responses)

    def can_be_asked_over(self, protocol: Protocol) -> bool:
        if self.call.steps:
            return protocol is Protocol.GRPC
        return protocol is Protocol.GRPC_STREAM or not self.decoupled


_LEFT = np.array([1.5, -2.25, 3.0, 1000.0], np.float32)
_RIGHT = np.array([0.5, 4.0, -1.0, 0.125], np.float32)
_PAIR = {"INPUT0": _LEFT, "INPUT1": _RIGHT}
_SUM_AND_DIFFERENCE = {"OUTPUT0": _LEFT + _RIGHT, "OUTPUT1": _LEFT - _RIGHT}
_STREAMED = [{"OUT": _LEFT + np.float32(number)} for number in range(STREAMED_RESPONSES)]
_STREAM_SUM = {"OUT": np.sum([response["OUT"] for response in _STREAMED], axis=0, dtype=np.float32)}

ADD_SUB = Scenario(
    Call("add_sub", _PAIR, [_SUM_AND_DIFFERENCE]),
    protocols=(Protocol.HTTP_JSON, Protocol.HTTP_BINARY, Protocol.GRPC),
    callers=(1, 8, 32),
)
BLS = Scenario(
    Call("bls", _PAIR, [_SUM_AND_DIFFERENCE]), protocols=(Protocol.HTTP_BINARY,), callers=(8,), calls=("add_sub",)
)
ENSEMBLE = Scenario(
    Call("ensemble", _PAIR, [{"OUTPUT0": 2 * _LEFT, "OUTPUT1": 2 * _RIGHT}]),
    protocols=(Protocol.HTTP_BINARY,),
    callers=(1, 8, 32),
    calls=("add_sub", "add_sub_again"),
)
DECOUPLED = Scenario(
    Call("decoupled", {"IN": _LEFT}, _STREAMED), protocols=(Protocol.GRPC_STREAM,), callers=(1, 8), decoupled=True
)
BLS_DECOUPLED = Scenario(
    Call("bls_decoupled", {"IN": _LEFT}, [_STREAM_SUM]),
    protocols=(Protocol.HTTP_BINARY,),
    callers=(8,),
    calls=("decoupled",),
)
# Whole numbers, whose sum is exact in FP32 in whatever order it is made.
_LARGE = np.tile(np.array([0.0, 1.0, 2.0, -3.0, 1.0, -1.0, 0.0, 1.0], np.float32), 1 << 17)
"""4 MiB"""
_SHM = (Protocol.HTTP_SHM, Protocol.GRPC_SHM)
IDENTITY = Scenario(
    Call("identity", {"INPUT0": _LARGE}, [{"OUTPUT0": _LARGE}]),
    protocols=(Protocol.HTTP_BINARY, Protocol.GRPC, *_SHM),
    callers=(1, 4),
)
IDENTITY_VIEWS = Scenario(
    Call("identity_views", {"INPUT0": _LARGE}, [{"OUTPUT0": _LARGE}]), protocols=_SHM, callers=(1, 4)
)
SUM_VIEWS = Scenario(
    Call("sum_views", {"INPUT0": _LARGE}, [{"OUTPUT0": _LARGE.sum(keepdims=True)}]), protocols=_SHM, callers=(1, 4)
)
ENSEMBLE_LARGE = Scenario(
    Call("ensemble_large", {"INPUT0": _LARGE}, [{"OUTPUT0": _LARGE}]),
    protocols=(Protocol.HTTP_BINARY, Protocol.HTTP_SHM),
    callers=(1, 4),
    calls=("identity", "identity_again"),
)
_IMAGE = Path(__file__).resolve().parent.parent / "examples" / "data" / "scene.jpg"
JPEG = Scenario(
    Call(
        "jpeg",
        {"IMAGE": np.fromfile(_IMAGE, np.uint8)},
        [{"FOUND": np.array([320, 480, 828_742], np.float32)}],
    ),
    protocols=(Protocol.HTTP_BINARY,),
    callers=(1, 4),
)
_TEXTS = np.array([b"%0100d" % number for number in range(1000)], np.bytes_)
STRINGS = Scenario(
    Call("strings", {"TEXTS": _TEXTS}, [{"SAME": _TEXTS}]),
    protocols=(Protocol.HTTP_JSON, Protocol.HTTP_BINARY, Protocol.GRPC),
    callers=(1, 4),
)
_ROW = np.array([[1.0, 2.0, -3.0, 0.5]], np.float32)
"""A row of a batch."""
BATCHED = Scenario(
    Call("batched", {"IN": _ROW}, [{"OUT": 2 * _ROW[0]}]), protocols=(Protocol.HTTP_BINARY,), callers=(64,)
)
SEQUENCES = Scenario(
    Call("sequences", {"IN": np.zeros((1, 4), np.float32)}, [{"SUM": np.zeros(4, np.float32)}], steps=10),
    protocols=(Protocol.GRPC,),
    callers=(50,),
)
SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        ADD_SUB,
        BLS,
        ENSEMBLE,
        DECOUPLED,
        BLS_DECOUPLED,
        IDENTITY,
        IDENTITY_VIEWS,
        SUM_VIEWS,
        ENSEMBLE_LARGE,
        JPEG,
        STRINGS,
        BATCHED,
        SEQUENCES,
    )
}
