"""Clients of every kind. Each request has an id and an input of its own, so that an answer to another one is seen as wrong."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from pytriton_lite.proto.grpc_service_pb import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from tools.torture.http_client import Answer, ConnectionLost, HttpConnection, Tally, Unasked, ask, head
from tools.torture.models import MISDEEDS, MODELS, SEQUENCES, STORMS, line_of
from tools.torture.records import Cause, Ledger, Outcome, Record

END_BOUND_S = 40.0
"""A request that has not ended then hangs. Longer than any stop, limit of executions and back-off of workers together."""

_PAUSE_S = 0.02
_REGION_BYTES = 1 << 18
_ARRAYS = ("plain", "batched", "coroutine", "calls_twice", "calls_thrice", "chain", "nested", "cached", *STORMS)
_SERVICE = "/inference.GRPCInferenceService/"
_GRPC_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True)
class Target:
    """Where the server is."""

    pid: int
    http_port: int
    grpc_address: str
    metrics_port: int
    shared_memory: Path
    """The folder that the server sees as /dev/shm."""
    scratch: Path
    """The folder that it sees as that of temporary and log files."""


@dataclass
class Sightings:
    """What else clients saw than ends of requests."""

    lies: list[str] = field(default_factory=list)
    """Readiness that was true while a request was refused for lack of a worker."""
    unasked: list[str] = field(default_factory=list)
    """Bytes, responses and ends that belong to nothing."""
    readiness: list[tuple[float, bool]] = field(default_factory=list)
    """When the server was asked whether it is ready, and what it said."""


class Load:
    """All clients of one round. `run` returns when each has ended what it had begun."""

    def __init__(self, target: Target, ledger: Ledger, tally: Tally, sightings: Sightings, seed: str) -> None:
        self.target = target
        self.ledger = ledger
        self.tally = tally
        self.sightings = sightings
        self.calls: Counter[str] = Counter()
        """Unary calls by the status that they ended with."""
        self.regions: set[int] = set()
        """Descriptors of the regions that are in use."""
        self._seed = seed
        self._is_over = False

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_over = True

    async def run(self) -> None:
        kinds: list[tuple[str, int, Callable[[random.Random], Awaitable[None]]]] = [
            ("HTTP binary", 3, self._http_binary),
            ("HTTP JSON", 2, self._http_json),
            ("large tensors", 1, self._large),
            ("gRPC", 3, self._grpc_unary),
            ("gRPC stream", 2, self._grpc_stream),
            ("regions", 1, self._regions),
            ("sequences", 3, self._sequences),
            ("generate_stream", 1, self._generate),
            ("rude", 2, self._rude),
            ("rude gRPC", 1, self._rude_grpc),
            ("probe", 2, self._probe),
        ]
        async with grpc.aio.insecure_channel(self.target.grpc_address, options=_GRPC_OPTIONS) as channel:
            self._infer = channel.unary_unary(
                _SERVICE + "ModelInfer",
                request_serializer=ModelInferRequest.SerializeToString,
                response_deserializer=ModelInferResponse.FromString,
            )
            self._stream = channel.stream_stream(
                _SERVICE + "ModelStreamInfer",
                request_serializer=ModelInferRequest.SerializeToString,
                response_deserializer=ModelStreamInferResponse.FromString,
            )
            clients = [
                asyncio.create_task(self._repeat(repeated, random.Random(f"{self._seed}/{kind}/{number}")))
                for kind, count, repeated in kinds
                for number in range(count)
            ]
            try:
                await asyncio.gather(*clients)
            finally:  # also when one of them has a mistake of ours
                for client in clients:
                    client.cancel()

    async def _repeat(self, client: Callable[[random.Random], Awaitable[None]], rng: random.Random) -> None:
        while not self._is_over:
            await client(rng)
            await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))

    # ------------------------------------------------------------------------------------------ HTTP

    async def _http(self, rng: random.Random, one: Callable[[HttpConnection], Awaitable[None]]) -> None:
        """Up to 20 requests on one connection."""
        try:
            connection = await HttpConnection.connect(self.target.http_port, self.tally)
        except ConnectionLost:
            await asyncio.sleep(0.2)  # nothing was asked, so nothing is owed; the audit asks whether the server lives
            return
        try:
            for _ in range(rng.randrange(1, 20)):
                if self._is_over or connection.is_lost:
                    return
                await one(connection)
                await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
        finally:
            connection.close()

    async def exchange(
        self,
        connection: HttpConnection,
        record: Record,
        path: str,
        body: bytes,
        check: Callable[[Answer], str],
        headers: dict[str, str] | None = None,
    ) -> bool:
        """Ask, and end *record*; *check* tells what is wrong with an answer of 200, empty for nothing. Whether it is right."""
        try:
            connection.send("POST", path, body, headers)
            return await self._hear(connection, record, check)
        except Unasked as error:
            self.sightings.unasked.append(f"before {record}: {error}")
            self.ledger.end(record, Outcome.LOST, text=f"unasked: {error}")
            connection.is_lost = True
        except ConnectionLost as error:
            self.ledger.end(record, Outcome.LOST, text=str(error))
            connection.is_lost = True
        return False

    async def _hear(self, connection: HttpConnection, record: Record, check: Callable[[Answer], str]) -> bool:
        try:
            answer = await asyncio.wait_for(connection.receive(), END_BOUND_S)
        except (asyncio.TimeoutError, TimeoutError):
            self.ledger.end(record, Outcome.HANG)
            connection.is_lost = True
            return False
        return self._end(record, answer, check)

    def _end(self, record: Record, answer: Answer, check: Callable[[Answer], str]) -> bool:
        if answer.status != 200:
            self.ledger.fail(record, str(answer.status), answer.error)
            return False
        try:
            wrong = check(answer)
        except _Failed as failed:
            self.ledger.fail(record, "200", str(failed))
            return False
        except Exception as error:
            wrong = f"{error!r} in {answer.body[:200]!r}"
        self.ledger.end(record, Outcome.WRONG if wrong else Outcome.RIGHT, status="200", text=wrong)
        return not wrong

    async def _http_binary(self, rng: random.Random) -> None:
        async def one(connection: HttpConnection) -> None:
            await self._infer_binary(connection, "HTTP binary", rng.choice(_ARRAYS), rng.choice((1, 8, 700, 3000)))

        await self._http(rng, one)

    async def _large(self, rng: random.Random) -> None:
        async def one(connection: HttpConnection) -> None:
            model = rng.choice(("large", "large", "chain", "plain"))
            await self._infer_binary(connection, "large tensors", model, rng.choice((40_000, 200_000, 700_000)))

        await self._http(rng, one)

    async def _infer_binary(self, connection: HttpConnection, kind: str, model: str, size: int) -> bool:
        record = self.ledger.begin(kind, model)
        values = values_of(record, size)
        path, body, headers = binary_request(record, values)
        return await self.exchange(
            connection, record, path, body, lambda answer: check_answer(record, values, answer), headers
        )

    async def _http_json(self, rng: random.Random) -> None:
        async def one(connection: HttpConnection) -> None:
            record = self.ledger.begin("HTTP JSON", rng.choice(_ARRAYS))
            values = values_of(record, rng.choice((1, 3, 50)))
            path, body = json_request(record, values)
            await self.exchange(connection, record, path, body, lambda answer: check_answer(record, values, answer))

        await self._http(rng, one)

    async def burst(self, model: str, count: int) -> None:
        """*count* calls at once."""
        await asyncio.gather(*(self._call("burst", model, 20) for _ in range(count)))

    async def misbehave(self, model: str, misdeed: str) -> Record:
        """One request that has *model* misbehave; its record, ended."""
        record = self.ledger.begin("hostile model", model, misdeed=misdeed)
        values = values_of(record, 1)
        more: dict[str, Any] = {}
        inputs = [_json_input(record, "MISDEED", [MISDEEDS.index(misdeed)])]
        if model == "count":
            inputs.append(_json_input(record, "COUNT", [2]))
        if model in SEQUENCES:
            number = int(record.request_id.rpartition("-")[2]) + (1 << 30)
            more = {"parameters": {"sequence_id": number, "sequence_start": True, "sequence_end": True}}
        if model == "count":
            await self._misbehave_in_a_stream(record, misdeed)
            return record
        path, body = json_request(record, values, inputs, **more)
        try:
            connection = await HttpConnection.connect(self.target.http_port, self.tally)
        except ConnectionLost as error:
            self.ledger.end(record, Outcome.VANISHED, text=str(error))
            return record
        right = (1, 0) if model in SEQUENCES else None
        try:
            await self.exchange(
                connection, record, path, body, lambda answer: check_answer(record, values, answer, right)
            )
        finally:
            connection.close()
        return record

    async def _misbehave_in_a_stream(self, record: Record, misdeed: str) -> None:
        request = _grpc_request(record, values_of(record, 1), [("MISDEED", MISDEEDS.index(misdeed)), ("COUNT", 2)])
        await self._converse([(record, request, _Counting(record, 2))])

    # ------------------------------------------------------------------------------------------ gRPC

    async def _grpc_unary(self, rng: random.Random) -> None:
        model = rng.choice((*_ARRAYS, "large"))
        await self._call("gRPC", model, rng.choice((1, 10, 3000, 50_000) if model == "large" else (1, 10, 3000)))

    async def _call(self, kind: str, model: str, size: int) -> None:
        record = self.ledger.begin(kind, model)
        values = values_of(record, size)
        call = self._infer(_grpc_request(record, values))
        try:
            response = await asyncio.wait_for(call, END_BOUND_S)
        except (asyncio.TimeoutError, TimeoutError):
            call.cancel()
            self.ledger.end(record, Outcome.HANG)
        except grpc.aio.AioRpcError as error:
            self._fail_call(record, error)
            if record.outcome is not Outcome.LOST:  # a status of the server, and not of its client
                self.calls[error.code().name] += 1
        else:
            self.calls["OK"] += 1
            wrong = _check_response(record, values, response)
            self.ledger.end(record, Outcome.WRONG if wrong else Outcome.RIGHT, status="OK", text=wrong)

    def _fail_call(self, record: Record, error: grpc.aio.AioRpcError) -> None:
        text = error.details() or ""
        if any(
            words in text
            for words in ("Socket closed", "Connection reset", "failed to connect", "GOAWAY", "Broken pipe")
        ):
            self.ledger.end(record, Outcome.LOST, status=error.code().name, text=text)
        else:
            self.ledger.fail(record, error.code().name, text)

    async def _grpc_stream(self, rng: random.Random) -> None:
        """One stream with several requests, each of which is answered once or many times."""
        conversation: list[tuple[Record, ModelInferRequest, _Listening]] = []
        for _ in range(rng.randrange(1, 8)):
            record = self.ledger.begin("gRPC stream", rng.choice(("count", "count", "count", "plain", "calls_twice")))
            size = 1 if MODELS[record.model].is_small else 5
            values = values_of(record, size)
            if record.model == "count":
                count = rng.choice((0, 1, 3, 20, 100))
                request = _grpc_request(record, values, [("COUNT", count)])
                conversation.append((record, request, _Counting(record, count)))
            else:
                conversation.append((record, _grpc_request(record, values), _Once(record, values)))
        await self._converse(conversation)

    async def _converse(self, conversation: list[tuple[Record, ModelInferRequest, _Listening]]) -> None:
        """Send all requests on one stream, and hear until it ends."""
        open_requests = {record.request_id: (record, listening) for record, _, listening in conversation}
        ended: set[str] = set()
        call = self._stream()

        async def talk() -> None:
            for _, request, _ in conversation:
                await call.write(request)
            await call.done_writing()
            async for message in call:
                self._hear_message(message, open_requests, ended)

        try:
            await asyncio.wait_for(talk(), END_BOUND_S)
        except (asyncio.TimeoutError, TimeoutError):
            call.cancel()
            for record, _ in open_requests.values():
                self.ledger.end(record, Outcome.HANG)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            failure = error if isinstance(error, grpc.aio.AioRpcError) else None
            for record, _ in open_requests.values():
                if failure is not None:
                    self._fail_call(record, failure)
                else:
                    self.ledger.end(record, Outcome.LOST, text=repr(error))
        else:
            for record, listening in open_requests.values():
                self.ledger.end(record, Outcome.LOST, text=f"the stream ended without an end of it: {listening.heard}")

    def _hear_message(
        self,
        message: ModelStreamInferResponse,
        open_requests: dict[str, tuple[Record, _Listening]],
        ended: set[str],
    ) -> None:
        response = message.infer_response
        known = open_requests.get(response.id)
        if known is None:
            what = "behind its end" if response.id in ended else "that nobody asked for"
            self.sightings.unasked.append(f"a response to {response.id!r} {what}: {str(message)[:300]}")
            return
        record, listening = known
        # What is refused before the model sees it has no flag, as in Triton, and is the end all the same.
        is_refused = bool(message.error_message) and "triton_final_response" not in response.parameters
        is_final = is_refused or response.parameters["triton_final_response"].bool_param
        if message.error_message:
            if is_final or not isinstance(listening, _Counting):
                self.ledger.fail(record, "stream", message.error_message)
            else:
                listening.errors.append(message.error_message)
        else:
            listening.hear(response)
        if is_final or message.error_message:
            if record.outcome is None:
                wrong = listening.verdict()
                if listening.errors and not wrong:
                    self.ledger.fail(record, "stream", listening.errors[0])
                else:
                    self.ledger.end(record, Outcome.WRONG if wrong else Outcome.RIGHT, status="stream", text=wrong)
            if is_final or not isinstance(listening, _Counting):
                del open_requests[response.id]
                ended.add(response.id)

    # ------------------------------------------------------------------------------------------ regions

    async def _regions(self, rng: random.Random) -> None:
        """A client that registers a region, uses it, and takes it away again."""
        name = f"torture_{rng.getrandbits(48):x}"
        path = self.target.shared_memory / name
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except OSError:
            await asyncio.sleep(0.5)
            return
        try:
            os.posix_fallocate(fd, 0, 2 * _REGION_BYTES)
            self.regions.add(fd)
            await self._use_region(rng, name, fd)
        except OSError:
            await asyncio.sleep(0.5)  # no room: it has none for regions of others, either
        finally:
            self.regions.discard(fd)
            os.close(fd)
            os.unlink(path)

    async def _use_region(self, rng: random.Random, name: str, fd: int) -> None:
        where = f"/v2/systemsharedmemory/region/{name}"
        document = json.dumps({"key": f"/{name}", "offset": 0, "byte_size": 2 * _REGION_BYTES}).encode()
        try:
            answer = await ask(self.target.http_port, self.tally, f"{where}/register", method="POST", body=document)
            if answer.status != 200:
                return  # no descriptors, for instance
            connection = await HttpConnection.connect(self.target.http_port, self.tally)
        except ConnectionLost:
            return
        try:
            for _ in range(rng.randrange(3, 20)):
                if self._is_over or connection.is_lost:
                    break
                model = rng.choice(("plain", "large", "chain", "calls_twice"))
                await self._infer_in_region(connection, model, name, fd, rng.choice((10, 5000, 60_000)))
                await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
        finally:
            connection.close()
            await self._unregister(where)

    async def _unregister(self, where: str) -> None:
        """Until it is done: the server has a descriptor of it."""
        for _ in range(50):
            try:
                answer = await ask(self.target.http_port, self.tally, f"{where}/unregister", method="POST")
                if answer.status == 200:
                    return
            except ConnectionLost:
                pass
            await asyncio.sleep(0.2)

    async def _infer_in_region(self, connection: HttpConnection, model: str, region: str, fd: int, size: int) -> None:
        record = self.ledger.begin("regions", model)
        values = values_of(record, size)
        # Not through a mapping: a model that truncates the region would end this process.
        try:
            os.posix_fallocate(fd, 0, 2 * _REGION_BYTES)
            os.pwrite(fd, values.tobytes(), 0)
            os.pwrite(fd, bytes(values.nbytes), _REGION_BYTES)
        except OSError as error:
            self.ledger.end(record, Outcome.VANISHED, text=f"the region has no room any more: {error}")
            return
        there = {"shared_memory_region": region, "shared_memory_byte_size": values.nbytes}
        document = {
            "id": record.request_id,
            "inputs": [{"name": "IN", "datatype": "INT32", "shape": list(values.shape), "parameters": there}],
            "outputs": [{"name": "OUT", "parameters": {**there, "shared_memory_offset": _REGION_BYTES}}],
        }

        def check(answer: Answer) -> str:
            if json.loads(answer.body)["id"] != record.request_id:
                return "the answer has another id"
            came = os.pread(fd, values.nbytes, _REGION_BYTES)
            if len(came) < values.nbytes:
                raise _Failed("the region was made smaller")
            return _difference(record, values, np.frombuffer(came, np.int32))

        path = f"/v2/models/{model}/infer"
        await self.exchange(connection, record, path, json.dumps(document).encode(), check)

    # ------------------------------------------------------------------------------------------ sequences

    async def _sequences(self, rng: random.Random) -> None:
        """One sequence; the sum of what it sent is the answer to each. It is given up at the first error."""
        model, total, length = rng.choice(SEQUENCES), 0, rng.randrange(1, 9)
        sequence = rng.randrange(1, 1 << 30)

        async def step(connection: HttpConnection, at: int) -> bool:
            nonlocal total
            record = self.ledger.begin("sequences", model)
            values = values_of(record, 1)
            total += int(values[0])
            goal = total
            flags = {"sequence_id": sequence, "sequence_start": at == 0, "sequence_end": at == length - 1}
            path, body = json_request(record, values, parameters=flags)

            def check(answer: Answer) -> str:
                document = json.loads(answer.body)
                data = document["outputs"][0]["data"]
                return "" if document["id"] == record.request_id and data == [goal] else f"{data} instead of [{goal}]"

            return await self.exchange(connection, record, path, body, check)

        try:
            connection = await HttpConnection.connect(self.target.http_port, self.tally)
        except ConnectionLost:
            await asyncio.sleep(0.2)
            return
        try:
            for at in range(length):
                if not await step(connection, at):
                    return
                await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
        finally:
            connection.close()

    # ------------------------------------------------------------------------------------------ generate

    async def _generate(self, rng: random.Random) -> None:
        async def one(connection: HttpConnection) -> None:
            record = self.ledger.begin("generate_stream", "count")
            first, count = int(values_of(record, 1)[0]), rng.choice((1, 2, 30))
            body = json.dumps({"id": record.request_id, "IN": first, "COUNT": count}).encode()

            def check(answer: Answer) -> str:
                events = [json.loads(line[6:]) for line in answer.body.decode().split("\n\n") if line]
                for event in events:
                    if "error" in event:
                        raise _Failed(event["error"])
                came = [event["OUT"] for event in events]
                return "" if came == list(range(first, first + count)) else f"{came} for {count} from {first} on"

            await self.exchange(connection, record, "/v2/models/count/generate_stream", body, check)

        await self._http(rng, one)

    # ------------------------------------------------------------------------------------------ rude clients

    async def _rude(self, rng: random.Random) -> None:
        """Clients that go away in the middle, close their side, or do not read for a while."""
        how = rng.choice(("half a request", "reset", "half-closed", "slow reader", "slow reader that leaves"))
        is_slow = how.startswith("slow")
        record = self.ledger.begin(
            "rude", "large" if is_slow else rng.choice(("plain", "batched", "calls_thrice", "chain"))
        )
        values = values_of(record, 500_000 if is_slow else rng.choice((5, 5000)))
        path, body, headers = binary_request(record, values)
        try:
            connection = await HttpConnection.connect(
                self.target.http_port, self.tally, receive_bytes=4096 if is_slow else None
            )
        except ConnectionLost as error:
            self.ledger.end(record, Outcome.VANISHED, text=str(error))
            await asyncio.sleep(0.2)
            return
        try:
            if how == "half a request":
                everything = head("POST", path, len(body), headers) + body
                connection.write(everything[: rng.randrange(1, len(everything))])
                await asyncio.sleep(rng.random() * 0.1)
                self.ledger.end(record, Outcome.VANISHED, text="left in the middle of its request")
                connection.reset()
                return
            connection.send("POST", path, body, headers)
            if how == "half-closed":
                connection.finish_sending()
            elif how != "reset":
                await asyncio.sleep(rng.random())
            if how in ("half-closed", "slow reader"):
                await self._hear(connection, record, lambda answer: check_answer(record, values, answer))
                return
            await asyncio.sleep(rng.random() * 0.05)
            self.ledger.end(record, Outcome.VANISHED, text=how)
            connection.reset()
        except ConnectionLost as error:
            self.ledger.end(record, Outcome.LOST, text=str(error))
        finally:
            connection.close()

    async def _rude_grpc(self, rng: random.Random) -> None:
        """Calls and streams that are cancelled."""
        if rng.random() < 0.5:
            record = self.ledger.begin(
                "rude gRPC", rng.choice(("plain", "batched", "calls_thrice", "coroutine", "nested"))
            )
            call = self._infer(_grpc_request(record, values_of(record, 5)))
            await asyncio.sleep(rng.random() * 0.02)
        else:
            record = self.ledger.begin("rude gRPC", "count")
            stream = call = self._stream()
            try:
                await asyncio.wait_for(
                    stream.write(_grpc_request(record, values_of(record, 1), [("COUNT", 1000)])), END_BOUND_S
                )
                await asyncio.sleep(rng.random() * 0.1)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.TimeoutError, TimeoutError):
                pass  # it was to be cancelled anyway
        call.cancel()
        self.ledger.end(record, Outcome.VANISHED, text="cancelled")
        await asyncio.wait([asyncio.ensure_future(_ended(call))])

    # ------------------------------------------------------------------------------------------ readiness

    async def _probe(self, rng: random.Random) -> None:
        """Ask for readiness, for an inference and for readiness again, in one breath: they must agree."""
        model = rng.choice(("plain", "batched", "coroutine", "cached", "large", *STORMS))
        record = self.ledger.begin("probe", model)
        values = values_of(record, 2)
        path, body = json_request(record, values)
        ready = f"/v2/models/{model}/ready"
        try:
            connection = await HttpConnection.connect(self.target.http_port, self.tally)
        except ConnectionLost as error:
            self.ledger.end(record, Outcome.VANISHED, text=str(error))
            await asyncio.sleep(0.2)
            return
        try:
            connection.send("GET", "/v2/health/ready")
            connection.send("GET", ready)
            connection.send("POST", path, body)
            connection.send("GET", ready)
            connection.send("GET", "/v2/health/ready")
            before = [(await self._bounded(connection)).status == 200 for _ in range(2)]
            await self._hear(connection, record, lambda answer: check_answer(record, values, answer))
            after = [(await self._bounded(connection)).status == 200 for _ in range(2)]
        except (ConnectionLost, asyncio.TimeoutError, TimeoutError) as error:
            # What came behind the inference may be lost alone.
            lost = record if record.outcome is None else self.ledger.begin("probe", model)
            self.ledger.end(lost, Outcome.LOST, text=repr(error))
            return
        finally:
            connection.close()
        self.sightings.readiness.append((self.ledger.clock(), before[0]))
        if record.cause is Cause.NOT_READY:
            if before[1] and after[0]:
                self.sightings.lies.append(f"model '{model}' said that it is ready around {record}")
            if model not in STORMS and before[0] and after[1]:
                self.sightings.lies.append(f"the server said that it is ready around {record}")

    async def _bounded(self, connection: HttpConnection) -> Answer:
        return await asyncio.wait_for(connection.receive(), END_BOUND_S)


class _Failed(Exception):
    """An answer of 200 that tells of an error."""


# ---------------------------------------------------------------------------------------------- requests and answers


def values_of(record: Record, size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The input of a request, which no other request of the round has; where the response cache is to be hit, few others."""
    number = int(record.request_id.rpartition("-")[2])
    if MODELS[record.model].is_cached:
        number %= 40
    first = 8 * (number % 500_000)
    return (first + np.arange(size, dtype=np.int32) % 7).astype(np.int32)


def _shape(record: Record, size: int) -> list[int]:
    return [1, size] if MODELS[record.model].is_batching else [size]


def _json_input(record: Record, name: str, data: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": "INT32", "shape": _shape(record, len(data)), "data": data}


def json_request(
    record: Record, values: np.ndarray[Any, Any], more_inputs: list[dict[str, Any]] | None = None, **more: Any
) -> tuple[str, bytes]:
    inputs = [_json_input(record, "IN", values.tolist()), *(more_inputs or [])]
    document = {"id": record.request_id, "inputs": inputs, **more}
    return f"/v2/models/{record.model}/infer", json.dumps(document).encode()


def binary_request(record: Record, values: np.ndarray[Any, Any]) -> tuple[str, bytes, dict[str, str]]:
    shape = _shape(record, values.size)
    given = {"name": "IN", "datatype": "INT32", "shape": shape, "parameters": {"binary_data_size": values.nbytes}}
    document = json.dumps(
        {"id": record.request_id, "inputs": [given], "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(document))}
    return f"/v2/models/{record.model}/infer", document + values.tobytes(), headers


def _difference(
    record: Record, values: np.ndarray[Any, Any], came: np.ndarray[Any, Any], line: tuple[int, int] | None = None
) -> str:
    factor, offset = line or line_of(record.model)
    wanted = values.astype(np.int32) * factor + offset
    if came.size == wanted.size and np.array_equal(came.reshape(-1), wanted):
        return ""
    return f"{came.reshape(-1)[:4].tolist()}... of {came.size} instead of {wanted[:4].tolist()}... of {wanted.size}"


def check_answer(
    record: Record, values: np.ndarray[Any, Any], answer: Answer, line: tuple[int, int] | None = None
) -> str:
    """What is wrong with an answer; empty for nothing. *line* is (a, b), where OUT is to be a * IN + b, if not the model's."""
    length = answer.headers.get("inference-header-content-length")
    document = json.loads(answer.body if length is None else answer.body[: int(length)])
    if document["id"] != record.request_id or document["model_name"] != record.model:
        return f"the answer is to {document['id']!r} of {document['model_name']!r}"
    if length is None:
        came = np.array(document["outputs"][0]["data"], np.int32)
    else:
        came = np.frombuffer(answer.body[int(length) :], np.int32)
    return _difference(record, values, came, line)


def _grpc_request(
    record: Record, values: np.ndarray[Any, Any], more_inputs: list[tuple[str, int]] | None = None
) -> ModelInferRequest:
    request = ModelInferRequest(model_name=record.model, id=record.request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, array in [("IN", values), *((name, np.array([one], np.int32)) for name, one in more_inputs or [])]:
        given = request.inputs.add()
        given.name, given.datatype = name, "INT32"
        given.shape.extend(_shape(record, array.size))
        request.raw_input_contents.append(array.tobytes())
    return request


def _check_response(record: Record, values: np.ndarray[Any, Any], response: ModelInferResponse) -> str:
    if response.id != record.request_id or response.model_name != record.model:
        return f"the answer is to {response.id!r} of {response.model_name!r}"
    return _difference(record, values, np.frombuffer(response.raw_output_contents[0], np.int32))


class _Listening:
    """What has come for one request of a stream."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.heard: list[int] = []
        self.errors: list[str] = []

    def hear(self, response: ModelInferResponse) -> None:
        raise NotImplementedError

    def verdict(self) -> str:
        """What is wrong with what came; empty for nothing."""
        raise NotImplementedError


class _Counting(_Listening):
    """To ``count``: so many responses in order, and an empty one."""

    def __init__(self, record: Record, count: int) -> None:
        super().__init__(record)
        self._count = count

    def hear(self, response: ModelInferResponse) -> None:
        self.heard += [int(np.frombuffer(raw, np.int32)[0]) for raw in response.raw_output_contents]

    def verdict(self) -> str:
        first = int(values_of(self.record, 1)[0])
        wanted = list(range(first, first + self._count))
        if self.errors:
            wanted = wanted[: len(self.heard)]
        return "" if self.heard == wanted else f"{self.heard[:8]}... of {len(self.heard)} instead of {wanted[:8]}..."


class _Once(_Listening):
    """To a model with one response."""

    def __init__(self, record: Record, values: np.ndarray[Any, Any]) -> None:
        super().__init__(record)
        self._values = values
        self._wrong: list[str] = []

    def hear(self, response: ModelInferResponse) -> None:
        self.heard.append(1)
        self._wrong.append(_check_response(self.record, self._values, response))

    def verdict(self) -> str:
        return f"{len(self.heard)} responses" if len(self.heard) != 1 else self._wrong[0]


async def _ended(call: Any) -> None:
    """Wait until a cancelled call has ended on this side."""
    try:
        await call.code()
    except asyncio.CancelledError:
        pass
