"""A model's configuration: the noun, and the two steps that make it.

`read_model_config` is the way of a config.pbtxt through parsing, completion, normalisation and the rules for a
configuration as a whole (model_config.md, section 3, steps 1 to 7). `check_for_load` is what follows when a version is
loaded (step 9): the instances on this machine, the tensors, the files that the configuration names.
"""

from __future__ import annotations

import copy
import enum
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pytriton_lite.config import effects, load_checks, parameters
from pytriton_lite.config.batch_io import BatchTensors, batch_tensors_from_message, broken_batch_tensors
from pytriton_lite.config.complete import complete, complete_python_based
from pytriton_lite.config.ensemble import EnsembleScheduling, ensemble_from_message
from pytriton_lite.config.errors import BrokenRule, PollError, cannot_open, invalid, raise_first
from pytriton_lite.config.instances import (
    InstanceGroup,
    InstanceKind,
    InstanceSpec,
    group_from_message,
    instances_of,
    resolve_instance_groups,
)
from pytriton_lite.config.json_form import json_form
from pytriton_lite.config.normalise import normalise
from pytriton_lite.config.openai import ChatTemplate, Declaration, check_openai, declaration_of
from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.config.sequence_state import SequenceState, initial_states, repeated_states, states_from_message
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.config.validate import broken_model
from pytriton_lite.config.validate_tensors import broken_tensors
from pytriton_lite.config.warm_up import WarmUpSample, samples_from_message
from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.sharing import InstanceSharing
from pytriton_lite.proto import model_config_pb

__all__ = [
    "FIRST_RESPONSE_FAMILY",
    "ControlKind",
    "DirectStrategy",
    "DynamicBatching",
    "InstanceGroup",
    "InstanceKind",
    "InstanceSpec",
    "ModelConfig",
    "OldestStrategy",
    "PollError",
    "QueuePolicy",
    "SequenceBatching",
    "SequenceControl",
    "TensorSpec",
    "TimeoutAction",
    "broken_agents",
    "broken_name",
    "check_for_load",
    "config_path",
    "instance_names",
    "parse_model_config",
    "read_model_config",
    "regrouped",
    "resolve_for_load",
    "with_one_instance",
]

FIRST_RESPONSE_FAMILY = "nv_inference_first_response_histogram_ms"
"""The one family of metrics that ``model_metrics`` can change."""

_FIRST_RESPONSE_BUCKETS = (100.0, 500.0, 2000.0, 5000.0)


_NO_BACKENDS: Mapping[str, Path] = {}


@dataclass(frozen=True)
class TensorSpec:
    """An input or output as declared. ``dims`` and ``reshape`` are without the batch dimension, -1 is any size.

    An output is never ``optional`` nor ``allow_ragged_batch``; an input has no ``label_filename``.
    """

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None
    optional: bool
    allow_ragged_batch: bool
    label_filename: str


class TimeoutAction(enum.Enum):
    """What becomes of a request whose time in the queue is over."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass(frozen=True)
class QueuePolicy:
    """``default_timeout_us`` 0 is no timeout, ``max_queue_size`` 0 is no limit."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True)
class DynamicBatching:
    """``priority_levels`` 0 is no priorities; ``priority_queue_policies`` are by level, 1 the highest."""

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int
    preserve_ordering: bool
    priority_levels: int
    default_priority_level: int
    default_queue_policy: QueuePolicy
    priority_queue_policies: dict[int, QueuePolicy]


class ControlKind(enum.Enum):
    """What a control tensor tells the model."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    CORRID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True)
class SequenceControl:
    """One control tensor. ``false_true`` are the values for no and yes, None for a correlation id."""

    name: str
    kind: ControlKind
    datatype: DataType
    false_true: tuple[float, float] | None


@dataclass(frozen=True)
class DirectStrategy:
    """Every sequence has a row of the batch to itself. ``minimum_slot_utilization`` is from 0 to 1."""

    max_queue_delay_us: int = 0
    minimum_slot_utilization: float = 0.0


@dataclass(frozen=True)
class OldestStrategy:
    """Batches are made of the sequences' next requests. ``max_candidate_sequences`` 0 is as many as a batch holds."""

    max_candidate_sequences: int
    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int
    preserve_ordering: bool


@dataclass(frozen=True)
class SequenceBatching:
    """``controls`` are in the order of the configuration; a tensor that tells two things is in it twice.

    ``repeated_states`` says what is wrong with those that are not in ``states``.
    """

    max_sequence_idle_us: int
    controls: tuple[SequenceControl, ...]
    strategy: DirectStrategy | OldestStrategy
    is_iterative: bool
    states: tuple[SequenceState, ...] = ()
    repeated_states: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ModelConfig:
    """A completed and normalised configuration. Make it with `from_message`; nobody changes it or its ``message``.

    ``instance_groups`` are decided (names, kinds, counts, GPUs) once `check_for_load` has returned it.
    """

    message: model_config_pb.ModelConfig
    name: str
    backend: str
    platform: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    inputs_by_name: dict[str, TensorSpec]
    outputs_by_name: dict[str, TensorSpec]
    required_inputs: tuple[str, ...]
    dynamic_batching: DynamicBatching | None
    sequence_batching: SequenceBatching | None
    instance_groups: tuple[InstanceGroup, ...]
    parameters: dict[str, str]
    metric_tags: dict[str, str]
    default_model_filename: str
    decoupled: bool
    ensemble: EnsembleScheduling | None
    warm_up: tuple[WarmUpSample, ...]
    without_effect: tuple[str, ...]
    """Paths of fields that are not at their default and mean nothing to a Python model."""
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Lines of the label file, by output that has one; there once `check_for_load` has returned it."""
    initial_states: Mapping[str, bytes] = field(default_factory=dict)
    """What states of sequences begin with that do not begin with zeros, by the names of their inputs; there once
    `check_for_load` has returned it."""
    keeps_sequences: bool = False
    """Whether an answer may depend on the requests of its sequence before: of an ensemble, once it is planned, whether a step's
    may. An iterative request is a sequence of its own."""
    chat_template: ChatTemplate | None = None
    """What makes prompts of chats, of a model that needs it; there once `check_for_load` has returned it."""

    @classmethod
    def from_message(cls, message: model_config_pb.ModelConfig) -> ModelConfig:
        """Take over *message*, which must be normalised and must not be changed afterwards."""
        inputs = tuple(_input_spec(tensor) for tensor in message.input)
        outputs = tuple(_output_spec(tensor) for tensor in message.output)
        return cls(
            message=message,
            name=message.name,
            backend=message.backend,
            platform=message.platform,
            max_batch_size=message.max_batch_size,
            inputs=inputs,
            outputs=outputs,
            inputs_by_name={spec.name: spec for spec in inputs},
            outputs_by_name={spec.name: spec for spec in outputs},
            required_inputs=tuple(spec.name for spec in inputs if not spec.optional),
            dynamic_batching=_dynamic_batching(message.dynamic_batching)
            if message.HasField("dynamic_batching")
            else None,
            sequence_batching=_sequence_batching(message.sequence_batching)
            if message.HasField("sequence_batching")
            else None,
            instance_groups=tuple(group_from_message(group) for group in message.instance_group),
            parameters={key: value.string_value for key, value in sorted(message.parameters.items())},
            metric_tags=dict(sorted(message.metric_tags.items())),
            default_model_filename=message.default_model_filename,
            decoupled=message.model_transaction_policy.decoupled,
            ensemble=ensemble_from_message(message.ensemble_scheduling)
            if message.HasField("ensemble_scheduling")
            else None,
            warm_up=samples_from_message(message.model_warmup),
            without_effect=effects.without_effect(message),
            keeps_sequences=message.HasField("sequence_batching") and not message.sequence_batching.iterative_sequence,
        )

    def with_message(self, message: model_config_pb.ModelConfig) -> ModelConfig:
        """What *message*, as for `from_message`, says, with what was read of the model's files for this one."""
        return replace(
            ModelConfig.from_message(message),
            labels=self.labels,
            initial_states=self.initial_states,
            chat_template=self.chat_template,
        )

    @property
    def preserves_ordering(self) -> bool:
        """Whether answers leave in the order in which the requests were taken from the queue."""
        if self.sequence_batching is not None:
            strategy = self.sequence_batching.strategy
            return isinstance(strategy, OldestStrategy) and strategy.preserve_ordering
        return self.dynamic_batching is not None and self.dynamic_batching.preserve_ordering

    @property
    def has_no_tensors(self) -> bool:
        """Whether nobody has said what goes in or comes out."""
        return not self.inputs and not self.outputs

    @property
    def uses_response_cache(self) -> bool:
        """Whether its answers may be kept, where the server has a response cache."""
        return self.message.response_cache.enable and not (self.decoupled or self.keeps_sequences)

    @property
    def execute_concurrency(self) -> int:
        """How many coroutines of ``execute`` may run at a time on an instance in default mode; 1 is Triton's."""
        return parameters.EXECUTE_CONCURRENCY.read(self.parameters) or 1

    @property
    def cancels_coroutines(self) -> bool:
        """Whether the coroutine of ``execute`` is cancelled when nobody waits for any of its requests."""
        return parameters.CANCEL_COROUTINES.read(self.parameters) or False

    @property
    def shared_memory_views(self) -> bool:
        """Whether the model gets tensors that others can see, too, as read-only views (docs/shared-memory.md)."""
        return parameters.SHARED_MEMORY_VIEWS.read(self.parameters) or False

    @property
    def takes_device_inputs(self) -> bool:
        """Whether inputs stay on the device that they come from; otherwise they are copied to the host (docs/gpu.md)."""
        return parameters.FORCE_CPU_ONLY_INPUT_TENSORS.read(self.parameters) is False

    @property
    def keeps_freed_memory(self) -> bool:
        """Whether its workers keep memory that requests have freed, until they are idle (docs/python-backend.md)."""
        return parameters.KEEP_FREED_MEMORY.read(self.parameters) is not False

    @property
    def instance_sharing(self) -> InstanceSharing:
        """How its instances come by the model (docs/instances.md)."""
        return parameters.INSTANCE_SHARING.read(self.parameters) or InstanceSharing.NONE

    @property
    def execution_timeout_s(self) -> float | None:
        """Limit of one execution, 0 for none; None where the server's holds."""
        return parameters.EXECUTION_TIMEOUT_SECONDS.read(self.parameters)

    @property
    def max_queue_size(self) -> int:
        """How many requests may wait for a model without dynamic batching; for an ensemble, be under way. 0 is no limit."""
        return parameters.MAX_QUEUE_SIZE.read(self.parameters) or 0

    @property
    def max_unanswered_requests(self) -> int | None:
        """How many clients' requests may be accepted and not yet answered; 0 is no limit, None is what the server says."""
        return parameters.MAX_UNANSWERED_REQUESTS.read(self.parameters)

    @property
    def max_unanswered_bytes(self) -> int | None:
        """Bytes of inputs that unanswered requests may have together; None and 0 as in `max_unanswered_requests`."""
        return parameters.MAX_UNANSWERED_BYTES.read(self.parameters)

    @property
    def batches_any_shapes(self) -> bool:
        """Whether requests may share a batch that differ in the shapes of their inputs (docs/dynamic-batching.md)."""
        return parameters.BATCH_ANY_SHAPES.read(self.parameters) or False

    @cached_property
    def batch_tensors(self) -> BatchTensors | None:
        """The batch inputs and outputs of a model that asks for them; None for all others."""
        return batch_tensors_from_message(self.message)

    @cached_property
    def openai(self) -> Declaration | None:
        """What it is to clients of OpenAI's API; None for a model that says nothing of it (docs/openai.md)."""
        return declaration_of(self.message)

    @property
    def customizes_first_responses(self) -> bool:
        """Whether ``model_metrics`` says which buckets the histogram of first responses has."""
        controls = self.message.model_metrics.metric_control
        return any(control.metric_identifier.family == FIRST_RESPONSE_FAMILY for control in controls)

    @property
    def first_response_buckets(self) -> tuple[float, ...]:
        """Milliseconds: ``model_metrics`` for the histogram of first responses, or Triton's (metrics spec, section 2)."""
        for control in self.message.model_metrics.metric_control:
            if control.metric_identifier.family == FIRST_RESPONSE_FAMILY:
                return tuple(sorted({bound for bound in control.histogram_options.buckets if math.isfinite(bound)}))
        return _FIRST_RESPONSE_BUCKETS

    @property
    def unknown_metric_families(self) -> tuple[str, ...]:
        """What ``model_metrics`` names and cannot change."""
        families = (control.metric_identifier.family for control in self.message.model_metrics.metric_control)
        return tuple(family for family in families if family != FIRST_RESPONSE_FAMILY)

    def metadata_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """The shape of *spec* as clients see it: with a leading -1 where the model batches."""
        return (-1, *spec.dims) if self.max_batch_size else spec.dims

    @cached_property
    def json(self) -> dict[str, Any]:
        """The JSON form of section 2.1, shared by everybody who asks: copy it before a change."""
        return json_form(self.message)

    @cached_property
    def json_text(self) -> str:
        """The JSON form without blanks."""
        return json.dumps(self.json, separators=(",", ":"), ensure_ascii=False)


def instance_names(config: ModelConfig) -> Iterator[InstanceSpec]:
    """The instances of a *config* that `check_for_load` has returned, in the order in which they are created."""
    return instances_of(config.instance_groups)


def with_one_instance(config: ModelConfig) -> ModelConfig:
    """A *config* that `check_for_load` has returned, with the first of its instances that execute, and no other.

    Which has nobody to share its model with.
    """
    message = copy.deepcopy(config.message)
    groups = list(message.instance_group)
    single = copy.deepcopy(next((group for group in groups if not group.passive), groups[0]))
    single.count = 1
    del single.gpus[1:]
    del message.instance_group[:]
    message.instance_group.append(single)
    if parameters.INSTANCE_SHARING.name in message.parameters:
        del message.parameters[parameters.INSTANCE_SHARING.name]
    return config.with_message(message)


def regrouped(served: ModelConfig, new: ModelConfig, *, gpu_ids: Sequence[int]) -> ModelConfig:
    """*served*, which `check_for_load` has returned, with the instance groups and the version policy of *new*.

    Everything else stays: what the model completed, what was read of its files. *gpu_ids* as for `check_for_load`.
    Raises InferenceError when the groups are not valid on this machine.
    """
    message = copy.deepcopy(served.message)
    del message.instance_group[:]
    message.instance_group.extend(new.message.instance_group)
    message.version_policy.CopyFrom(new.message.version_policy)
    resolve_instance_groups(message, gpu_ids)
    raise_first(load_checks.broken_sharing(message))
    return served.with_message(message)


def read_model_config(
    model_dir: Path,
    *,
    strict: bool = False,
    config_name: str = "",
    versions: Sequence[int],
    override: model_config_pb.ModelConfig | None = None,
) -> ModelConfig:
    """Read and check the configuration of the model in *model_dir*, which has the directories of *versions*.

    *strict* asks for a complete file (``--disable-auto-complete-config``): it must be there, and its tensors are checked
    at once. *config_name* chooses ``configs/<config_name>.pbtxt`` where the model has one. *override* takes the place of
    the file, and is changed.
    Raises PollError.
    """
    message = _read(config_path(model_dir, config_name), must_exist=strict) if override is None else override
    _refuse(broken_agents(message))
    complete(message, model_dir=model_dir, versions=versions)
    normalise(message)
    _refuse(broken_model(message))
    if strict:
        _refuse(broken_tensors(message))
    _refuse(broken_name(message, model_dir))
    return ModelConfig.from_message(message)


def resolve_for_load(
    config: ModelConfig,
    *,
    model_dir: Path,
    gpu_ids: Sequence[int],
    backends: Mapping[str, Path] = _NO_BACKENDS,
) -> ModelConfig:
    """*config* as ``auto_complete_config`` gets to see it: its backend is there, its instance groups are decided.

    Arguments as for `check_for_load`, which does this, too. Raises InferenceError, the reason of a failed load.
    """
    message = copy.deepcopy(config.message)
    raise_first(load_checks.broken_backend(message, model_dir, backends))
    if message.backend in backends:
        complete_python_based(message, backends[message.backend])
    resolve_instance_groups(message, gpu_ids)
    raise_first(load_checks.broken_parameters(message))
    return ModelConfig.from_message(message)


def check_for_load(
    config: ModelConfig,
    *,
    model_dir: Path,
    gpu_ids: Sequence[int],
    backends: Mapping[str, Path] = _NO_BACKENDS,
) -> ModelConfig:
    """Check what depends on this machine and on the model's files; return *config* with its instance groups decided.

    *gpu_ids* are the GPUs that the server may use, *backends* the folders of the Python-based backends by name. The order
    of the checks is Triton's, which can be seen where a configuration breaks several rules.
    Raises InferenceError, the reason of a failed load.
    """
    config = resolve_for_load(config, model_dir=model_dir, gpu_ids=gpu_ids, backends=backends)
    raise_first(broken_tensors(config.message))
    raise_first(broken_batch_tensors(config.message))
    labels = load_checks.read_labels(config.message, model_dir)
    raise_first(load_checks.broken_batching_library(config.message))
    raise_first(load_checks.broken_metric_tags(config.message))
    template = check_openai(config.message, model_dir)
    states = initial_states(config.message, model_dir)
    return replace(config, labels=labels, initial_states=states, chat_template=template)


def config_path(model_dir: Path, config_name: str) -> Path:
    """The file that says how the model in *model_dir* is configured; it need not be there."""
    if config_name:
        chosen = model_dir / "configs" / f"{config_name}.pbtxt"
        if chosen.exists():
            return chosen
    return model_dir / "config.pbtxt"


def _read(path: Path, *, must_exist: bool) -> model_config_pb.ModelConfig:
    try:
        text = read_regular_file(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError as error:
        if not must_exist:
            return model_config_pb.ModelConfig()
        raise PollError(cannot_open(path, error)) from None
    except OSError as error:
        raise PollError(cannot_open(path, error)) from None
    return parse_model_config(text, source=str(path))


def broken_agents(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """Section 4.12: an agent is a native library, and none can be loaded here."""
    for at, agent in enumerate(message.model_repository_agents.agents):
        yield invalid(
            f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent '{agent.name}', searched: nowhere, "
            "pytriton-lite loads no native repository agents",
            f"model_repository_agents.agents[{at}]",
        )


def broken_name(message: model_config_pb.ModelConfig, model_dir: Path) -> Iterator[BrokenRule]:
    """A model is called like its directory."""
    if message.name != model_dir.name:
        yield invalid(
            f"unexpected directory name '{model_dir.name}' for model '{message.name}', directory name must equal model "
            "name",
            "name",
        )


def _refuse(broken: Iterator[BrokenRule]) -> None:
    """The first of *broken* ends the poll."""
    for error in broken:
        raise PollError(error.message)


def _input_spec(tensor: model_config_pb.ModelInput) -> TensorSpec:
    return TensorSpec(
        name=tensor.name,
        datatype=dtypes.BY_NUMBER.get(tensor.data_type, dtypes.INVALID),
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        optional=tensor.optional,
        allow_ragged_batch=tensor.allow_ragged_batch,
        label_filename="",
    )


def _output_spec(tensor: model_config_pb.ModelOutput) -> TensorSpec:
    return TensorSpec(
        name=tensor.name,
        datatype=dtypes.BY_NUMBER.get(tensor.data_type, dtypes.INVALID),
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        optional=False,
        allow_ragged_batch=False,
        label_filename=tensor.label_filename,
    )


def _dynamic_batching(batching: model_config_pb.ModelDynamicBatching) -> DynamicBatching:
    return DynamicBatching(
        preferred_batch_sizes=tuple(batching.preferred_batch_size),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        priority_queue_policies={
            level: _queue_policy(policy) for level, policy in sorted(batching.priority_queue_policy.items())
        },
    )


def _sequence_batching(batching: model_config_pb.ModelSequenceBatching) -> SequenceBatching:
    strategy: DirectStrategy | OldestStrategy
    if batching.HasField("oldest"):
        strategy = OldestStrategy(
            max_candidate_sequences=batching.oldest.max_candidate_sequences,
            preferred_batch_sizes=tuple(batching.oldest.preferred_batch_size),
            max_queue_delay_us=batching.oldest.max_queue_delay_microseconds,
            preserve_ordering=batching.oldest.preserve_ordering,
        )
    else:
        strategy = DirectStrategy(
            max_queue_delay_us=batching.direct.max_queue_delay_microseconds,
            minimum_slot_utilization=batching.direct.minimum_slot_utilization,
        )
    return SequenceBatching(
        max_sequence_idle_us=batching.max_sequence_idle_microseconds,
        controls=tuple(
            _sequence_control(tensor.name, control) for tensor in batching.control_input for control in tensor.control
        ),
        strategy=strategy,
        is_iterative=batching.iterative_sequence,
        states=states_from_message(batching),
        repeated_states=repeated_states(batching),
    )


def _sequence_control(name: str, control: model_config_pb.ModelSequenceBatching.Control) -> SequenceControl:
    kind = ControlKind(model_config_pb.ModelSequenceBatching.Control.Kind.Name(control.kind))
    if kind is ControlKind.CORRID:
        return SequenceControl(name, kind, dtypes.BY_NUMBER.get(control.data_type, dtypes.INVALID), None)
    # Exactly one of the three pairs is there: validate_sequence.py.
    if control.fp32_false_true:
        return SequenceControl(name, kind, dtypes.FP32, (control.fp32_false_true[0], control.fp32_false_true[1]))
    if control.bool_false_true:
        return SequenceControl(name, kind, dtypes.BOOL, (control.bool_false_true[0], control.bool_false_true[1]))
    return SequenceControl(name, kind, dtypes.INT32, (control.int32_false_true[0], control.int32_false_true[1]))


def _queue_policy(policy: model_config_pb.ModelQueuePolicy) -> QueuePolicy:
    delays = policy.timeout_action == model_config_pb.ModelQueuePolicy.DELAY
    return QueuePolicy(
        timeout_action=TimeoutAction.DELAY if delays else TimeoutAction.REJECT,
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )
