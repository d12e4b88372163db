"""The engine as a front end sees it that serves inference: `engine.server.Server`, or what stands for it elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytriton_lite.config.model_config import ModelConfig
    from pytriton_lite.core.custom_metrics import Family
    from pytriton_lite.core.request import InferenceRequest, PendingRequest, ResponseReceiver
    from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
    from pytriton_lite.engine.counting.request_counts import RequestCounts
    from pytriton_lite.engine.tracing.observation import Observation
    from pytriton_lite.engine.workers.intake import Intake
    from pytriton_lite.engine.workers.regions import Regions


class Servable(Protocol):
    """A version that was found. It is good for one request."""

    @property
    def config(self) -> ModelConfig:
        """What its requests are read by."""


class Door(Protocol):
    """The engine as inference sees it."""

    @property
    def observation(self) -> Observation:
        """The watchers (traces, access log, latencies) of which one may want the stations of a request."""

    @property
    def receive_budget(self) -> ReceiveBudget:
        """Bytes of requests that are not yet whole."""

    @property
    def intake(self) -> Intake:
        """Memory for the large bodies of requests, which models find there."""

    @property
    def request_counts(self) -> RequestCounts:
        """What was answered; whoever answers counts it here."""

    @property
    def regions(self) -> Regions:
        """Shared memory that clients have registered."""

    async def metric_families(self) -> Iterable[Family]:
        """What models export themselves."""

    def is_exiting(self) -> bool:
        """Whether no new requests are taken, because the server is about to end."""

    def find(self, name: str, version: int | None) -> Servable:
        """The version that would serve a request now. Raises InferenceError with Triton's lookup texts."""

    def check(self, served: Any, request: InferenceRequest) -> None:
        """Every rule that needs no tensor bytes, of a version that `find` gave. Raises InferenceError(INVALID_ARG)."""

    def infer(self, served: Any, request: InferenceRequest, receiver: ResponseReceiver) -> PendingRequest:
        """Enqueue a request to a version that `find` gave; *receiver* gets the responses.

        Raises InferenceError for what is found at once; *receiver* hears of all else, and nothing before this returns.
        """
