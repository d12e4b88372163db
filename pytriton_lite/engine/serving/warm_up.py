"""Warm-up: what a worker executes after ``initialize``, before anybody else's requests (model_config.md, section 4.9).

The first worker of an instance is warmed as part of the load, and counted as traffic, as in Triton. One that takes the place
of a worker that died is warmed, too, because the next client would pay for it otherwise; that is counted nowhere: nobody has
asked for anything, and `execution_count` of a version would grow with each crash.

A warm-up request goes by no scheduler. It has no id and no correlation id, and asks for all outputs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.warm_up import WarmUpSample, sample_tensors
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Clock
from pytriton_lite.engine.counting.latencies import LatencyMetrics
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics, statistics_of
from pytriton_lite.engine.serving.admission import Admission
from pytriton_lite.engine.serving.answers import Answers
from pytriton_lite.engine.workers.fork_server import WorkerExit
from pytriton_lite.engine.workers.instance import Instance, InstanceOwner, Sent
from pytriton_lite.engine.workers.wire import ExecutionOutcome
from pytriton_lite.ipc.messages import BatchResult
from pytriton_lite.scheduling.queue import NOT_ITERATIVE_TEXT
from pytriton_lite.scheduling.ticket import Batch, Executor, Ticket, Ways

logger = logging.getLogger(__name__)


class WarmUp:
    """The warm-up of one model version, for each of its instances that executes."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        *,
        directory: Path,
        statistics: ModelStatistics,
        clock: Clock,
        timeout_s: float,
        at_step: Callable[[str], None],
    ) -> None:
        """*timeout_s* is how long all samples together may take on one instance: what ``initialize`` may take, say.

        *at_step* hears of it when an instance begins.
        """
        self._at_step = at_step
        self._config = config
        self._version = version
        self._directory = directory
        self._statistics = statistics
        self._clock = clock
        self._timeout_s = timeout_s
        self._admission = Admission(config)
        self._declared = frozenset(config.inputs_by_name)

    async def check(self) -> None:
        """Make every sample once. Raises InferenceError for what cannot be made, or is no request for this model."""
        for sample in self._config.warm_up:
            await asyncio.to_thread(self._tensors, sample)

    async def run(self, instance: Instance, owner: InstanceOwner, *, counts: bool) -> None:
        """Execute all samples on *instance*, whose worker has nothing else to do. *counts*: as traffic, in the statistics.

        Raises InferenceError when a response is an error, when the worker dies or does not answer in time.
        """
        self._at_step("warm-up")
        statistics = self._statistics
        if not counts:
            statistics = statistics_of(self._config, self._version, LatencyMetrics(), self._clock)
        run = _Run(self._config, owner.labels, statistics, self._clock)
        instance.report_to(run)
        try:
            await asyncio.wait_for(self._run_samples(run, instance), self._timeout_s)
        except asyncio.TimeoutError:
            instance.keeper.kill()
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"failed to run warmup sample '{run.sample}': Stub process '{instance.name}' is not healthy: it did not "
                f"answer the warm-up within {self._timeout_s:g} s.; ",
            ) from None

    async def _run_samples(self, run: _Run, instance: Instance) -> None:
        for sample in self._config.warm_up:
            run.sample = sample.name
            texts = self._too_many(sample, instance)
            if not texts:
                inputs, others = await asyncio.to_thread(self._tensors, sample)
                for iteration in range(sample.count):
                    logger.debug(
                        "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                        self._config.name,
                        instance.name,
                        sample.name,
                        iteration + 1,
                    )
                    texts = await run.execute(instance, inputs, others, requests=sample.batch_size)
                    if texts:
                        break
            if texts:
                listed = "".join(f"{text}; " for text in texts)
                raise InferenceError(ErrorCode.INVALID_ARG, f"failed to run warmup sample '{sample.name}': {listed}")

    def _too_many(self, sample: WarmUpSample, instance: Instance) -> list[str]:
        """What Triton's Python backend says to each request of a batch that is larger than the model allows."""
        most = self._config.max_batch_size
        if sample.batch_size <= max(1, most):
            return []
        text = f"batch size {sample.batch_size} for '{instance.name}', max allowed is {most}"
        return [text] * sample.batch_size

    def _tensors(self, sample: WarmUpSample) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs of a request of *sample*, checked as a client's, and what the model sees beside them. In a thread."""
        inputs, others = sample_tensors(
            sample,
            declared=self._declared,
            has_batch_dimension=self._config.max_batch_size > 0,
            model_name=self._config.name,
            model_dir=self._directory,
        )
        self._admission.check(InferenceRequest(self._config.name, self._version, inputs=inputs))
        return inputs, others


class _Run(InstanceOwner):
    """One warm-up of one worker, which reports here meanwhile."""

    def __init__(
        self,
        config: ModelConfig,
        labels: Mapping[str, Sequence[str]],
        statistics: ModelStatistics,
        clock: Clock,
    ) -> None:
        self.sample = ""
        self._labels = labels
        self._model, self._version = config.name, statistics.version
        self._is_iterative = config.sequence_batching is not None and config.sequence_batching.is_iterative
        self._clock = clock
        self._answers = Answers(statistics, self, is_decoupled=config.decoupled, clock=clock)

    async def execute(
        self, instance: Instance, inputs: list[Tensor], others: list[Tensor], *, requests: int
    ) -> list[str]:
        """One batch of so many equal *requests*. The errors that are answered, in order."""
        ends = [_End() for _ in range(requests)]
        tickets = [self._ticket(inputs, others, own) for own in ends]
        for refused, error in instance.dispatch([tickets]):
            return [error.message] * len(refused)
        await asyncio.gather(*(own.ended for own in ends))
        return [text for own in ends for text in own.errors]

    def _ticket(self, inputs: list[Tensor], others: list[Tensor], end: _End) -> Ticket:
        now_ns = self._clock()
        request = InferenceRequest(self._model, None, inputs=inputs)
        ticket = end.ticket = Ticket(request, end, batch_size=1, shape_key=None, accepted_ns=now_ns)
        ticket.owner = self
        ticket.enqueued_ns = now_ns
        ticket.controls = others
        return ticket

    # ------------------------------------------------------------------------------------------ what tickets say

    def cancelled(self, ticket: Ticket) -> None:
        """Do nothing: nobody cancels a warm-up."""

    def consumed(self, ticket: Ticket, count: int) -> None:
        if ticket.source is not None:
            ticket.source.executor.credit(ticket.source, ticket)

    def may_be_stuck(self, ticket: Ticket) -> bool:
        """Always False: nobody waits for a warm-up."""
        return False

    def ways_on(self, ticket: Ticket) -> Ways:
        return [[]]

    def servers_of(self, ticket: Ticket) -> Sequence[Executor]:
        return ()

    # ------------------------------------------------------------------------------------------ what answers say

    def released(self, ticket: Ticket) -> None:
        """Do nothing: there are no sequences."""

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """The model wants to execute the request once more: an iterative one has done a step, and that was all."""
        if self._is_iterative:
            self._answers.end(ticket, InferenceResponse(self._model, self._version, "", [], {}))
        else:
            self._answers.end(ticket, InferenceError(ErrorCode.INVALID_ARG, NOT_ITERATIVE_TEXT))

    # ------------------------------------------------------------------------------------------ what the instance reports

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        return self._labels

    def on_result(
        self, instance: Instance, batch: Batch, result: BatchResult, outcomes: Sequence[ExecutionOutcome]
    ) -> None:
        self._answers.finished(instance, batch, result, outcomes)
        self._answers.depart()

    def on_response(self, instance: Instance, batch: Batch, ticket: Ticket, sent: Sent) -> None:
        self._answers.responded(batch, ticket, sent)

    def on_returned(self, instance: Instance, batches: list[Batch]) -> None:
        self._fail(instance, batches, "gave it back")

    def on_lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        text = f"Stub process '{instance.name}' is not healthy. The worker {how} while it had this request."
        self._answers.lost(instance, begun, deferred, InferenceError(ErrorCode.UNAVAILABLE, text))
        self._fail(instance, untouched, str(how))

    def _fail(self, instance: Instance, batches: list[Batch], what: str) -> None:
        """End *batches*, which were not begun: no other instance is there to serve them."""
        text = (
            f"Stub process '{instance.name}' is not healthy. The worker {what} before it had begun with this request."
        )
        for batch in batches:
            self._answers.fail(batch.tickets, InferenceError(ErrorCode.UNAVAILABLE, text), FailureReason.BACKEND)

    def on_room(self, instance: Instance) -> None:
        pass  # there is never more than one batch

    def on_state(self, instance: Instance) -> None:
        pass  # it stays STARTING


class _End:
    """Receives the responses of one request, of which only the errors matter."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.errors: list[str] = []
        self.ticket: Ticket | None = None

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        if isinstance(response, InferenceError):
            self.errors.append(response.message)
        if is_final:
            self.ticket = None  # each refers to the other
            if not self.ended.done():
                self.ended.set_result(None)
        elif self.ticket is not None and response is not None:
            self.ticket.consumed()
