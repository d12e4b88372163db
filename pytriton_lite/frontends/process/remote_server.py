"""The engine as a front end in a process of its own sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, PendingRequest, ResponseReceiver
from pytriton_lite.core.states import ServerState
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.models.catalog import STILL_LOADING, find_version
from pytriton_lite.engine.serving.admission import Admission
from pytriton_lite.engine.serving.served_version import not_ready_error
from pytriton_lite.engine.workers.intake import Intake
from pytriton_lite.engine.workers.regions import CudaRegion, Regions, SystemRegion
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.board import Board
from pytriton_lite.frontends.process.calls import RemoteCalls
from pytriton_lite.frontends.process.following import RemoteObservation, number_of
from pytriton_lite.frontends.process.frames import Checked
from pytriton_lite.frontends.process.link import FrontEndLink
from pytriton_lite.frontends.process.news import ModelNews, RegionNews, VersionNews
from pytriton_lite.frontends.process.questions import Questions
from pytriton_lite.ipc.device_segment import DeviceSegment
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.proto import model_config_pb
from pytriton_lite.repository.index import ModelId


class RemoteVersion:
    """A version that the engine has, as far as finding it and reading requests for it go."""

    def __init__(self, model: ModelId, number: int, news: VersionNews, before: RemoteVersion | None) -> None:
        """*before* is what was known by that number of a version, if anything was."""
        self.id = model
        self.model = number
        """The number by which the engine knows the model's name."""
        self.version = news.version
        self.state = news.state
        self.is_recovering = news.is_recovering
        self.stamp = news.stamp
        self._serialized = news.config
        is_same = before is not None and before._serialized == news.config
        self._config: ModelConfig | None = before._config if before is not None and is_same else None
        self._admission: Admission | None = None

    @property
    def config(self) -> ModelConfig:
        """Read when the first request needs it: whoever starts is told of all models at once, and must soon be heard again."""
        config = self._config
        if config is None:
            message: Any = model_config_pb.ModelConfig.FromString(self._serialized)
            config = self._config = ModelConfig.from_message(message)
        return config

    def not_ready_error(self) -> InferenceError:
        """What a request for this version is told while it is not READY."""
        return not_ready_error(self.id, self.version)

    def check(self, request: InferenceRequest) -> Checked:
        """Refuse what the model cannot take. Raises InferenceError(INVALID_ARG)."""
        admission = self._admission
        if admission is None:
            admission = self._admission = Admission(self.config)
        batch_size = admission.check(request)
        has_shape_key = admission.shape_key(request) is not None
        return Checked(self.model, self.stamp, batch_size, has_shape_key, self.config.decoupled)


class _Meaning:
    """What a name means."""

    __slots__ = ("id", "refusal", "versions")

    def __init__(
        self, id: ModelId | None, refusal: tuple[ErrorCode, str] | None, versions: dict[int, RemoteVersion]
    ) -> None:
        self.id = id
        self.refusal = refusal
        self.versions = versions


class RemoteServer:
    """A `frontends.door.Door`: what front ends use in place of `engine.server.Server`.

    What it finds is what the engine has said last, and before it answered whoever asked for a change.
    """

    def __init__(
        self,
        board: Board,
        number: int,
        link: FrontEndLink,
        calls: RemoteCalls,
        *,
        receive_budget: ReceiveBudget,
        intake: Intake,
    ) -> None:
        """*number* is this front end's own."""
        self._board = board
        self._link = link
        self._calls = calls
        self.questions = Questions(link.add, link.room, receive_budget)
        """What is asked of the engine."""
        self.observation = RemoteObservation(link.add)
        self.receive_budget = receive_budget
        self.intake = intake
        self.request_counts = board.counts(number)
        self.regions = Regions(is_allowed=True)
        """What the engine has registered. Only `tensor` and `window` are asked here."""
        self._names: dict[str, _Meaning] = {}

    # ------------------------------------------------------------------------------------------ what front ends ask

    def is_exiting(self) -> bool:
        """Whether no new requests are taken, because the server is about to end."""
        return self._board.state in (ServerState.EXITING, ServerState.STOPPED)

    async def metric_families(self) -> Iterable[Family]:
        """What models export themselves."""
        families: list[Family] = await self.questions.ask("metric_families")
        return families

    def find(self, name: str, version: int | None) -> RemoteVersion:
        """The version that would serve a request now. Raises InferenceError with Triton's lookup texts."""
        try:
            meaning = self._names.get(name)
            if meaning is None or meaning.id is None:
                refusal = meaning.refusal if meaning is not None else None
                raise InferenceError(
                    *(refusal or (ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found"))
                )
            return find_version(meaning.id, meaning.versions, version)
        except InferenceError as error:
            if error.code is ErrorCode.NOT_FOUND and self._board.state is ServerState.LOADING:
                raise InferenceError(ErrorCode.UNAVAILABLE, error.message + STILL_LOADING) from None
            raise

    def check(self, served: RemoteVersion, request: InferenceRequest) -> None:
        """Every rule that needs no tensor bytes. Raises InferenceError(INVALID_ARG), which the engine counts."""
        self._check(served, request)

    def _check(self, served: RemoteVersion, request: InferenceRequest) -> Checked:
        try:
            return served.check(request)
        except InferenceError:
            self._link.add(frames.said_frame(frames.REFUSED, 0, [request.model_name, served.version]))
            raise

    def infer(self, served: RemoteVersion, request: InferenceRequest, receiver: ResponseReceiver) -> PendingRequest:
        """Have the engine take *request*; *receiver* gets the responses, and what the engine refuses it with.

        Raises InferenceError for what does not fit the model.
        """
        timeline = request.timeline
        number = 0
        if timeline is not None:
            timeline.arrived(request.request_id, served.version)
            number = number_of(timeline)
        return self._calls.begin(self._check(served, request), request, receiver, number)

    # ------------------------------------------------------------------------------------------ what the engine says

    def on_model(self, number: int, news: ModelNews) -> None:
        """A name means something else, or its versions have changed; *number* is the engine's for the name."""
        if news.id is None:
            self._names[news.name] = _Meaning(None, news.refusal, {})
            return
        meaning = self._names.get(news.name)
        known = {} if meaning is None else meaning.versions
        versions = {
            version.version: RemoteVersion(news.id, number, version, known.get(version.version))
            for version in news.versions
        }
        self._names[news.name] = _Meaning(news.id, None, versions)

    def on_region(self, number: int, news: RegionNews | str, segment: ClientSegment | DeviceSegment | None) -> None:
        """A region was registered, under the engine's *number*, or is not any more: its name."""
        if isinstance(news, str):
            self.regions.forget(news)
            return
        assert segment is not None
        self._calls.know_region(segment, number)
        if isinstance(segment, DeviceSegment):
            self.regions.put(CudaRegion(news.name, news.device_id, news.byte_size, segment))
        else:
            self.regions.put(SystemRegion(news.name, news.key, news.offset, news.byte_size, segment))
