"""Random ensembles, of each other too, with steps that answer, fail and send at random, and clients that read, leave and stay.

Whatever happens, every request ends once, and nothing of it is left: no version is held, no place of a limit is taken.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.engine.ensembles.version import EnsembleVersion
from pytriton_lite.frontends.pending_answer import PendingAnswer
from pytriton_lite.scheduling.ticket import Ticket
from tests.engine.answering import answer_of
from tests.engine.ensemble_world import Asked, Outcome, Step, World, in_loop, tensor

pytestmark = pytest.mark.interpreted("a fake in the place of a compiled class")

MOST_UNREAD = 4
"""Responses that a decoupled step may send before any of them is read: as a worker's window."""
MOST_SENT = 6


class Client:
    """Takes a stream."""

    def __init__(self) -> None:
        self.ticket: Ticket | None = None
        self.unread = 0
        self.ends = 0
        self.error: InferenceError | None = None

    def on_response(self, response: Outcome, *, is_final: bool) -> None:
        assert not self.has_ended
        self.ends += is_final
        self.unread += isinstance(response, InferenceResponse)
        if isinstance(response, InferenceError):
            self.error = response

    def read(self) -> None:
        assert self.ticket is not None
        if self.unread and not self.ticket.is_cancelled:
            count, self.unread = self.unread, 0
            self.ticket.consumed(count)

    def leave(self) -> None:
        assert self.ticket is not None
        self.ticket.cancel()

    @property
    def has_ended(self) -> bool:
        return bool(self.ends) or (self.ticket is not None and self.ticket.is_cancelled)


class Scene:
    """Up to three ensembles, and requests for them."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._chance = chance
        self.world = World(folder)
        self.leaves = list(self.world.steps.values())
        self._goals: dict[Asked, int] = {}
        """How much the decoupled steps send, unless they end before."""
        self.ensembles: list[EnsembleVersion] = []
        while len(self.ensembles) < 3:
            self._add_ensemble(f"ensemble{len(self.ensembles)}")
        self.fails = chance.random() < 0.6
        self.clients: list[Client | PendingAnswer] = [self._ask() for _ in range(chance.randrange(1, 7))]

    def _add_ensemble(self, name: str) -> None:
        chance = self._chance
        tensors, taken, steps = ["X"], set(), []
        for _ in range(chance.randrange(1, 7)):
            model = chance.choice(list(self.world.steps))
            config = self.world.steps[model].config
            sources = [chance.choice(tensors[-3:]) for _ in config.inputs_by_name]
            results = [f"T{len(tensors) + at}" for at in range(len(config.outputs_by_name))]
            taken.update(sources)
            tensors += results
            steps.append((model, _pairs(config.inputs_by_name, sources), _pairs(config.outputs_by_name, results)))
        outputs = [f"{made}:FP32:4" for made in tensors[1:] if made not in taken or chance.random() < 0.2]
        limit = chance.choice(["", "", "max_inflight_requests: 1", "max_inflight_requests: 2"])
        try:
            made = self.world.ensemble(*steps, name=name, outputs=" ".join(outputs), scheduling=limit)
        except InferenceError:  # tensors of two decoupled models, most often
            return
        self.ensembles.append(made)
        self.world.steps[name] = cast(Step, made)

    def _ask(self) -> Client | PendingAnswer:
        ensemble = self._chance.choice(self.ensembles)
        outputs = list(ensemble.config.outputs_by_name)
        wanted = self._chance.sample(outputs, self._chance.randrange(len(outputs) + 1))
        request = InferenceRequest(ensemble.name, None, inputs=[tensor("X")], requested_outputs=wanted)
        if not ensemble.config.decoupled and self._chance.random() < 0.5:
            return answer_of(ensemble, request)
        client = Client()
        client.ticket = ensemble.infer(request, client)
        return client

    @property
    def running(self) -> list[Asked]:
        return [asked for step in self.leaves for asked in step.asked if not asked.ticket.has_ended]

    @property
    def is_over(self) -> bool:
        return not self.running and not any(ensemble.under_way for ensemble in self.ensembles)

    def advance(self) -> None:
        """A step does something, or a client."""
        running = self.running
        what = self._chance.random()
        if running and what < 0.7:
            self._work(self._chance.choice(running))
        elif what < 0.95 or not self.fails:
            client = self._chance.choice(self.clients)
            if isinstance(client, Client):
                client.read()
        elif what < 0.98:
            leaving = self._chance.choice(self.clients)
            if isinstance(leaving, PendingAnswer):
                leaving.cancel()
            elif not leaving.has_ended:
                leaving.leave()
        else:
            for ensemble in self.ensembles:
                for run in list(ensemble._runs)[:1]:
                    run.abort(InferenceError(ErrorCode.UNAVAILABLE, "the server stops"))

    def _work(self, asked: Asked) -> None:
        is_decoupled = asked.model.config.decoupled
        what = self._chance.random()
        if asked.ticket.is_cancelled:
            asked.fail("", ErrorCode.CANCELLED)
        elif self.fails and what < 0.05:
            asked.fail("no", is_final=not is_decoupled or what < 0.03)
        elif not is_decoupled:
            asked.answer()
        elif asked.ticket.delivered == self._goals.setdefault(asked, self._chance.randrange(MOST_SENT + 1)):
            asked.end()
        elif asked.ticket.delivered - asked.credits < MOST_UNREAD:
            asked.answer(is_final=what < 0.1)

    def left(self) -> Iterator[str]:
        """What nobody has let go of."""
        for step in self.leaves:
            if step.holders:
                yield f"{step.config.name} is held"
        for ensemble in self.ensembles:
            if ensemble._holders:
                yield f"{ensemble.name} is held"
            if any(limit._inside or limit._waiting for limit in ensemble.limits.values()):
                yield f"a limit of {ensemble.name} is taken"


def _pairs(names: object, tensors: list[str]) -> str:
    return " ".join(f"{name}={tensor}" for name, tensor in zip(cast(list[str], names), tensors))


@pytest.mark.parametrize("seed", range(6))
@in_loop
async def test_every_request_ends_once_and_leaves_nothing(tmp_path: Path, seed: int) -> None:
    for number in range(25):
        chance = random.Random(f"{seed} {number}")
        scene = Scene(tmp_path, chance)
        for _ in range(20_000):
            scene.advance()
            if chance.random() < 0.3:
                await asyncio.sleep(0)
                if scene.is_over:
                    break
        await asyncio.sleep(0)
        assert scene.is_over
        assert list(scene.left()) == []
        for client in scene.clients:
            if isinstance(client, PendingAnswer):
                assert client.done()
                error = None if client.cancelled() else client.exception()
            else:
                assert client.has_ended
                error = client.error
            assert scene.fails or error is None
