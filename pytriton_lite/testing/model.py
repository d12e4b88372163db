"""A model folder run in the process of a test, on the test's own thread, by the rules of a worker.

The configuration is read, completed by the model's ``auto_complete_config`` and checked as on the server; requests are
admitted, and responses checked, by the same code. What a server adds is left out: no other process, no scheduler, no
environment of the model's own. What the model raises is raised, with its traceback, so that a debugger stops where it was.
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CoroutineType, ModuleType
from typing import TYPE_CHECKING, Any

from pytriton_lite.config.auto_complete import merge_completed
from pytriton_lite.config.model_config import (
    InstanceSpec,
    ModelConfig,
    check_for_load,
    instance_names,
    read_model_config,
    resolve_for_load,
)
from pytriton_lite.config.reshape import reshaped
from pytriton_lite.core import request as core
from pytriton_lite.core.arrays import tensor_of
from pytriton_lite.core.custom_metrics import Histogram
from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.core.tensor import Tensor as CoreTensor
from pytriton_lite.engine.environments.environment import parameter_variables
from pytriton_lite.engine.serving.admission import Admission
from pytriton_lite.engine.workers.backends import Backend, Backends
from pytriton_lite.engine.workers.outputs import BatchOutputs
from pytriton_lite.engine.workers.settings import WorkerSettings, model_start
from pytriton_lite.engine.workers.state_outputs import states_of
from pytriton_lite.ipc import device
from pytriton_lite.repository.index import read_model_directory
from pytriton_lite.scheduling.batch_tensors import BatchInputs
from pytriton_lite.scheduling.control_tensors import ControlTensors
from pytriton_lite.scheduling.queue import NOT_ITERATIVE_TEXT
from pytriton_lite.testing.exchange import Outcome, Request, Response
from pytriton_lite.testing.host import InProcessHost, LogLine, Outputs
from pytriton_lite.testing.stand_ins import StandIns
from pytriton_lite.testing.states import KeptStates, OpenSequences
from pytriton_lite.worker.auto_complete import ask_model
from pytriton_lite.worker.coroutines import ModelLoop
from pytriton_lite.worker.execute import ExecuteFailed, check_nothing, check_responses, execute_of
from pytriton_lite.worker.loader import (
    ModelFiles,
    construct,
    find_class,
    import_model,
    initialize,
    install_pb_utils,
)
from pytriton_lite.worker.process import Host, Phase, host, install
from pytriton_lite.worker.request import InferenceRequest
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.tensor import Tensor

if TYPE_CHECKING:
    import asyncio

_MOST_ROUNDS = 1000
"""Times that a model may reschedule a request before we take it for one that never ends."""

_NO_WORKERS = WorkerSettings(
    executable=sys.executable, shm_prefix="", ring_bytes=0, hello_timeout_s=0, ready_timeout_s=0
)
"""For START; none is started."""

_API_MODULES = ("triton_python_backend_utils", "c_python_backend_utils")


class ModelUnderTest:
    """A model that has been initialized; one at a time in a process. `close`, or the end of ``with``, finalizes it.

    ``instance`` is the TritonPythonModel, ``args`` what its ``initialize`` got, ``config`` the completed configuration in
    its JSON form, ``stand_ins`` the models that it calls.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        version: int | None = None,
        stand_ins: StandIns | None = None,
        auto_complete: bool = True,
        backend_directory: str | Path | None = None,
    ) -> None:
        """Load *version*, the highest without it, of the model in *folder*.

        Without *auto_complete* the configuration must be complete, as under ``--disable-auto-complete-config``.
        *backend_directory* is where Python-based backends are, beside those that are shipped.
        Raises PollError or InferenceError for a configuration that the server would refuse, ValueError for an ensemble, and
        whatever the model raises.
        """
        if host().phase is not Phase.OUTSIDE:
            raise RuntimeError("another model is loaded in this process; close it first")
        self.stand_ins = StandIns() if stand_ins is None else stand_ins
        self._host = InProcessHost(self.stand_ins)
        self._loop = ModelLoop()
        self._batches = itertools.count(1)
        backends = Backends(None if backend_directory is None else Path(backend_directory).resolve())
        self._process = _ProcessState(Path(folder).resolve(), install(self._host))
        try:
            self.instance = self._load(Path(folder).resolve(), version, backends, auto_complete=auto_complete)
        except BaseException:
            self._leave()
            raise
        self._host.phase = Phase.SERVING

    def __enter__(self) -> ModelUnderTest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> list[LogLine]:
        """The lines of pb_utils.Logger so far, of every level. They go to the logger ``pytriton_lite.model``, too."""
        return self._host.log_lines

    def metric(self, family: str, labels: Mapping[str, str] | None = None) -> float | Histogram:
        """The present value of a custom metric. Raises KeyError for one that the model has not, or has let go."""
        key = tuple(sorted((labels or {}).items()))
        for known in self._host.metrics.families():
            if known.name == family and key in known.series:
                series = known.series[key]
                return series if isinstance(series, Histogram) else series.value
        raise KeyError(f"the model has no metric '{family}' with labels {dict(key)}")

    # ------------------------------------------------------------------------------------------ life

    def _load(self, folder: Path, version: int | None, backends: Backends, *, auto_complete: bool) -> Any:
        if not folder.is_dir():
            raise FileNotFoundError(f"the model folder {folder} is no directory")
        directory = read_model_directory(folder)
        if not directory.versions:
            raise FileNotFoundError(f"the model folder {folder} has no version directory, such as {folder / '1'}")
        version = max(directory.versions) if version is None else version
        gpu_ids, backend_folders = device.visible_device_ids(), backends.folders()
        config = read_model_config(folder, versions=directory.versions, strict=not auto_complete)
        if config.ensemble is not None:
            raise ValueError(
                f"'{config.name}' is an ensemble, which has no code of its own: test it on a server, with the fixture "
                "triton_server"
            )
        config = resolve_for_load(config, model_dir=folder, gpu_ids=gpu_ids, backends=backend_folders)
        files = _files(config, version, folder, backends.find(config.backend, backend_folders))
        if files.backend_dir is not None:
            self._process.folders.append(files.backend_dir)
        variables = parameter_variables(config.name, config.parameters)
        self._process.set_variables(variables)
        module: ModuleType | None = None
        if auto_complete:
            module = _imported(files)
            completed = ask_model(find_class(module), name=config.name, model_config=config.json_text)
            if completed is not None:
                config = merge_completed(config, completed)
                # On a server that was another process: what the method left behind is not seen by the instance.
                self._process.restore()
                self._process.set_variables(variables)
                module = None
        config = check_for_load(config, model_dir=folder, gpu_ids=gpu_ids, backends=backend_folders)
        plan = min(instance_names(config), key=lambda plan: plan.passive)
        self._configure(config, plan, files)
        self._host.phase = Phase.INITIALIZE
        instance = construct(_imported(files) if module is None else module)
        initialize(instance, self.args)
        return instance

    def _configure(self, config: ModelConfig, plan: InstanceSpec, files: ModelFiles) -> None:
        self.config = copy.deepcopy(config.json)
        # By the code that tells a worker: what an option of the model makes of it, it makes of this one.
        start = model_start(config, plan, version=files.version, directory=files.model_dir, workers=_NO_WORKERS)
        self.args = start.initialize_args
        self._config = config
        self._path = str(files.path)
        self._admission = Admission(config)
        sequences = config.sequence_batching
        self._is_iterative = sequences is not None and sequences.is_iterative
        self._controls = self._sequences = None
        if sequences is not None:
            self._controls = ControlTensors(sequences.controls, model=config.name, max_batch_size=config.max_batch_size)
            self._sequences = OpenSequences(config.name, self._controls, is_iterative=sequences.is_iterative)
        tensors = config.batch_tensors
        self._batch_inputs = BatchInputs(
            () if tensors is None else tensors.inputs, max_batch_size=config.max_batch_size
        )
        outputs = Outputs(
            frozenset(start.outputs),
            {spec.name: (spec.reshape, spec.dims) for spec in config.outputs if spec.reshape is not None},
            is_batched=config.max_batch_size > 0,
            batch_outputs=BatchOutputs(config) if tensors is not None else None,
            states=KeptStates(config) if states_of(config) else None,
        )
        self._host.configure(start, outputs)

    def close(self) -> None:
        """Call ``finalize``, if the model has it, and leave the process as it was. What it raises is raised. Once."""
        if self._host.phase is not Phase.SERVING:
            return
        self._host.phase = Phase.FINALIZE
        self._loop.close()
        try:
            finalize = getattr(self.instance, "finalize", None)
            if finalize is not None:
                finalize()
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            self._process.restore()
        finally:
            install(self._process.previous_host)
            self._host.phase = Phase.OUTSIDE

    # ------------------------------------------------------------------------------------------ requests

    def infer(self, inputs: Mapping[str, object], **fields: Any) -> Response:
        """The only response to one request; *fields* are those of `Request`."""
        return self.execute([Request(inputs, **fields)])[0].response

    def execute(self, requests: Sequence[Request]) -> list[Outcome]:
        """Call ``execute`` with all *requests*, and again with those that it reschedules; an outcome for each.

        A coroutine of a model in default mode is awaited. Of a decoupled model, and where senders are left to threads,
        responses may still come: see `Outcome.wait`.
        Raises InferenceError for a request that the server would refuse, ExecuteFailed for what ``execute`` may not return,
        and whatever it raises; the server would answer every request of the batch with that.
        """
        outcomes = [Outcome(request, self._host.changed) for request in requests]
        sent = [(self._admitted(outcome.request), outcome) for outcome in outcomes]
        while sent:
            sent = self._round(sent)
            if not all(outcome.is_final for outcome in outcomes):
                gc.collect()  # requests that only refer to each other have nobody left who could answer them
        return outcomes

    def _admitted(self, request: Request) -> core.InferenceRequest:
        declared = self._config.inputs_by_name
        admitted = core.InferenceRequest(
            self._config.name,
            None,
            request_id=request.request_id,
            inputs=[
                CoreTensor(name, value._datatype, tuple(value._shape), bytes(value._buffer()))
                if isinstance(value, Tensor)
                else tensor_of(name, value, declared[name].datatype if name in declared else None)
                for name, value in request.inputs.items()
            ],
            requested_outputs=list(request.requested_outputs),
            parameters=dict(request.parameters),
            correlation_id=request.correlation_id,
            sequence_flags=request.sequence_start * core.SEQUENCE_START | request.sequence_end * core.SEQUENCE_END,
            timeout_us=request.timeout_us,
        )
        batch_size = self._admission.check(admitted)
        if self._sequences is not None:
            self._sequences.admit(admitted, batch_size=batch_size)
        return admitted

    def _round(self, sent: list[tuple[core.InferenceRequest, Outcome]]) -> list[tuple[core.InferenceRequest, Outcome]]:
        """One call of ``execute``; what it rescheduled."""
        number = next(self._batches)
        requests = []
        batch_inputs = self._batch_inputs.of([admitted for admitted, _ in sent], self._shape_for_model)
        for index, (admitted, outcome) in enumerate(sent):
            outcome.rounds += 1
            if outcome.rounds > _MOST_ROUNDS:
                raise ExecuteFailed(f"the model has rescheduled a request {_MOST_ROUNDS} times")
            requests.append(self._received((number, index), outcome, admitted, batch_inputs[index]))
        try:
            returned = execute_of(self.instance, path=self._path)(requests)
            responses = self._await(returned, requests)
        except BaseException:
            for request in requests:
                if request._answering is not None:
                    self._host.close(request._answering)
            raise
        again = []
        for index, ((admitted, outcome), request, response) in enumerate(zip(sent, requests, responses)):
            if not self._host.conclude(request, response):
                continue
            if self._is_iterative:
                admitted.sequence_flags = 0
                again.append((admitted, outcome))
            else:
                answering = self._host.answering((number, index), outcome, admitted, request._requested_outputs)
                self._host.refuse(answering, NOT_ITERATIVE_TEXT, ErrorCode.INVALID_ARG)
        return again

    def _await(self, returned: object, requests: list[InferenceRequest]) -> list[InferenceResponse | None]:
        if self._config.decoupled:
            if isinstance(returned, CoroutineType):
                self._start_decoupled(returned, requests)
                returned = None
            check_nothing(returned, instance=self._host.instance_name)
            return [None] * len(requests)
        if isinstance(returned, CoroutineType):
            returned = self._completed(returned)
        return check_responses(returned, requests)

    def _completed(self, coroutine: CoroutineType[Any, Any, Any]) -> object:
        done = threading.Event()
        ended: list[asyncio.Future[Any]] = []

        def on_done(task: asyncio.Future[Any]) -> None:
            ended.append(task)
            done.set()

        self._loop.prepare(coroutine, on_done).start()
        done.wait()
        return ended[0].result()

    def _start_decoupled(self, coroutine: CoroutineType[Any, Any, Any], requests: list[InferenceRequest]) -> None:
        answerings = [answering for request in requests if (answering := request._answer()) is not None]
        instance = self._host.instance_name

        def on_done(task: asyncio.Future[Any]) -> None:
            try:
                check_nothing(task.result(), instance=instance)
            except BaseException as error:
                for answering in answerings:
                    self._host.fail(answering, error)
            answerings.clear()

        self._loop.prepare(coroutine, on_done).start()

    def _received(
        self,
        key: tuple[int, int],
        outcome: Outcome,
        admitted: core.InferenceRequest,
        batch_inputs: list[CoreTensor],
    ) -> InferenceRequest:
        """*admitted* as the worker shows it to the model, controls, states and *batch_inputs* first."""
        controls = [] if self._controls is None else self._controls.of(admitted)
        states = self._host.outputs.states
        if states is not None:
            controls = [*controls, *states.inputs_of(admitted)]
        outputs = frozenset(admitted.requested_outputs or self._config.outputs_by_name)
        return InferenceRequest._received(
            model_name=admitted.model_name,
            model_version=-1 if admitted.version is None else admitted.version,
            request_id=admitted.request_id,
            correlation_id=admitted.correlation_id,
            flags=admitted.sequence_flags,
            timeout_us=admitted.timeout_us,
            parameters=json.dumps(admitted.parameters, separators=(",", ":")) if admitted.parameters else "",
            requested_outputs=outputs,
            inputs=[self._given(tensor) for tensor in (*controls, *batch_inputs, *admitted.inputs)],
            answering_of=partial(self._host.answering, key, outcome, admitted, outputs),
        )

    def _given(self, tensor: CoreTensor) -> Tensor:
        assert tensor.data is not None
        shape = self._shape_for_model(tensor)
        return Tensor._of_request(tensor.name, tensor.datatype, shape, None, partial(bytearray, bytes(tensor.data)))

    def _shape_for_model(self, tensor: CoreTensor) -> tuple[int, ...]:
        spec = self._config.inputs_by_name.get(tensor.name)
        if spec is None or spec.reshape is None:
            return tensor.shape
        batch = tensor.shape[:1] if self._config.max_batch_size else ()
        inner = reshaped(spec.dims, spec.reshape, tensor.shape[len(batch) :])
        return tensor.shape if inner is None else batch + inner


def _files(config: ModelConfig, version: int, folder: Path, backend: Backend | None) -> ModelFiles:
    return ModelFiles(
        folder,
        version,
        config.default_model_filename,
        backend_dir=None if backend is None else backend.folder,
        backend_settings={} if backend is None else backend.settings,
    )


def _imported(files: ModelFiles) -> ModuleType:
    install_pb_utils(str(files.version_dir))
    return import_model(files)


class _ProcessState:
    """What loading a model changes in a process: the path, modules, and the variables that its parameters set.

    `restore` takes it back, also several times.
    """

    def __init__(self, folder: Path, previous_host: Host) -> None:
        self.previous_host = previous_host
        self.folders = [folder]
        self._path = list(sys.path)
        self._modules: dict[str, ModuleType] = dict(sys.modules)
        self._variables: dict[str, str | None] = {}
        """The variables that were set, as they were before; None for one that was not there."""

    def set_variables(self, variables: Mapping[str, str]) -> None:
        self._variables = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)

    def restore(self) -> None:
        """Forget the model's module, and modules from its folder: another model may have some of the same name."""
        for name, before in self._variables.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
        sys.path[:] = self._path
        for name in [name for name, module in sys.modules.items() if self._is_the_models(name, module)]:
            del sys.modules[name]
        for name in _API_MODULES:
            if name in self._modules:
                sys.modules[name] = self._modules[name]
            else:
                sys.modules.pop(name, None)

    def _is_the_models(self, name: str, module: ModuleType) -> bool:
        """Whether it came since, from one of the folders."""
        if self._modules.get(name) is module:
            return False
        return any(Path(path).is_relative_to(folder) for path in _paths_of(module) for folder in self.folders)


def _paths_of(module: object) -> list[str]:
    """The paths that *module* gives for itself. In ``sys.modules`` may lie any object, with anything under these names."""
    found: list[str] = []
    for name in ("__file__", "__path__"):
        try:
            value = getattr(module, name)
            found += [path for path in ([value] if isinstance(value, str) else value) if isinstance(path, str)]
        except Exception:  # whatever the object's own code raises: torch.classes gives a namespace that is no list
            continue
    return found
