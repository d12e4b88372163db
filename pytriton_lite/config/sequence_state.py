"""Implicit state of sequences: what ``sequence_batching.state`` says, and what it may not say (model_config.md, 5.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.config.data_file import read_data_file
from pytriton_lite.config.errors import BrokenRule, invalid, raise_first
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.tensor import MAX_DIMENSIONS, element_count
from pytriton_lite.proto import model_config_pb

_Batching = model_config_pb.ModelSequenceBatching
_Group = model_config_pb.ModelInstanceGroup

_FOLDER = "initial_state"


@dataclass(frozen=True)
class SequenceState:
    """A tensor that the server keeps for each sequence between two requests.

    The model sees it as ``input_name`` and gives the next value as ``output_name``. ``dims`` are without the batch
    dimension, -1 is any size; ``initial_dims`` are those of the value that START brings, with 1 for what nobody said.
    """

    input_name: str
    output_name: str
    datatype: DataType
    dims: tuple[int, ...]
    initial_dims: tuple[int, ...]


def states_from_message(batching: _Batching) -> tuple[SequenceState, ...]:
    """The states of *batching*, without those that repeat a name (`repeated_states`)."""
    repeated = {at for at, _ in _repetitions(batching)}
    return tuple(_state(state) for at, state in enumerate(batching.state) if at not in repeated)


def repeated_states(batching: _Batching) -> tuple[str, ...]:
    """What is to be said of each state whose name is taken by one before it: it is ignored, as Triton does."""
    return tuple(text for _, text in _repetitions(batching))


def _repetitions(batching: _Batching) -> Iterator[tuple[int, str]]:
    seen: dict[str, set[str]] = {"input_name": set(), "output_name": set()}
    for at, state in enumerate(batching.state):
        taken = [field for field, names in seen.items() if getattr(state, field) in names]
        if taken:
            yield (
                at,
                f"Detected duplicate '{taken[0]}' in the state configuration: '{getattr(state, taken[0])}.' "
                "This state configuration will be ignored.",
            )
        else:
            for field, names in seen.items():
                names.add(getattr(state, field))


def _state(state: _Batching.State) -> SequenceState:
    # Triton 2.51 makes every -1 a 1, also where the initial state says how large it is, and cuts that off.
    dims = state.initial_state[0].dims if state.initial_state else state.dims
    return SequenceState(
        input_name=state.input_name,
        output_name=state.output_name,
        datatype=dtypes.BY_NUMBER.get(state.data_type, dtypes.INVALID),
        dims=tuple(state.dims),
        initial_dims=tuple(1 if dim == -1 else dim for dim in dims),
    )


def initial_states(message: model_config_pb.ModelConfig, model_dir: Path) -> dict[str, bytes]:
    """The bytes that states begin with, by the names of their inputs, for those that do not begin with zeros.

    *message* has its instance groups decided. Raises InferenceError for the first rule that is broken, in Triton's order.
    """
    raise_first(broken_states(message, model_dir))
    repeated = {at for at, _ in _repetitions(message.sequence_batching)}
    return {
        state.input_name: _from_file(
            state, f"sequence_batching.state[{at}].initial_state[0].data_file", message.name, model_dir
        )
        for at, state in enumerate(message.sequence_batching.state)
        if at not in repeated and state.initial_state and state.initial_state[0].WhichOneof("state_data") == "data_file"
    }


def broken_states(message: model_config_pb.ModelConfig, model_dir: Path) -> Iterator[BrokenRule]:
    """The first broken rule of each state. *message* has its instance groups decided."""
    initialised: set[str] = set()
    taken = {tensor.name: "an input" for tensor in message.input}
    taken |= {tensor.name: "a control input" for tensor in message.sequence_batching.control_input}
    for at, state in enumerate(message.sequence_batching.state):
        where = f"sequence_batching.state[{at}]"
        broken = (
            _broken_state(state, where, message.name, taken)
            or _broken_initial(state, where, message.name, model_dir, initialised)
            or _broken_size(state, where, message.name)
            or _broken_memory(state, where, message)
        )
        if broken is not None:
            yield broken
        if state.initial_state:
            initialised.add(state.input_name)


def _broken_state(state: _Batching.State, where: str, model_name: str, taken: Mapping[str, str]) -> BrokenRule | None:
    """What Triton takes, and dies of at the first request; and a name that stands for something else, which it hides."""
    if not state.input_name:
        return invalid(f"sequence batching state must specify 'input_name' for {model_name}", where)
    if state.input_name in taken:
        return invalid(
            f"sequence batching state '{state.input_name}' has the name of {taken[state.input_name]} for {model_name}",
            f"{where}.input_name",
        )
    if state.data_type not in dtypes.BY_NUMBER:
        return invalid(f"sequence batching state '{state.input_name}' must specify 'data_type' for {model_name}", where)
    if len(state.dims) >= MAX_DIMENSIONS:
        return invalid(
            f"sequence batching state '{state.input_name}' has {len(state.dims)} dimensions, expected less than "
            f"{MAX_DIMENSIONS} for {model_name}",
            f"{where}.dims",
        )
    if any(dim < -1 for dim in state.dims):
        return invalid(
            f"sequence batching state '{state.input_name}' dimension must be integer >= 0, or -1 to indicate a "
            f"variable-size dimension for {model_name}",
            f"{where}.dims",
        )
    return None


def _broken_initial(
    state: _Batching.State, where: str, model_name: str, model_dir: Path, initialised: set[str]
) -> BrokenRule | None:
    name, count = state.input_name, len(state.initial_state)
    if count == 0:
        return None
    where = f"{where}.initial_state"
    if count > 1:
        return invalid(
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found '{count}' "
            "elements.",
            where,
        )
    where = f"{where}[0]"
    initial = state.initial_state[0]
    if initial.data_type != state.data_type:
        return invalid(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type.",
            f"{where}.data_type",
        )
    if not initial.name:
        return invalid(f"Field 'name' must be set when using initial_state for state input '{name}'.", where)
    if name in initialised:
        return invalid(f"State input name '{name}' specified more than once.", where)
    return _broken_dims(state, initial, f"{where}.dims") or _broken_data(state, initial, where, model_name, model_dir)


def _broken_dims(state: _Batching.State, initial: _Batching.InitialState, where: str) -> BrokenRule | None:
    name = state.input_name
    if len(initial.dims) != len(state.dims):
        return invalid(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial.dims)} != {len(state.dims)}",
            where,
        )
    for dim, wanted in zip(initial.dims, state.dims):
        if dim < 0:
            return invalid(
                f"'initial_state' field for state input name '{name}' contains variable dimensions.",
                where,
            )
        if wanted not in (-1, dim):
            return invalid(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {dim} != {wanted}",
                where,
            )
    return None


def _broken_data(
    state: _Batching.State, initial: _Batching.InitialState, where: str, model_name: str, model_dir: Path
) -> BrokenRule | None:
    choice = initial.WhichOneof("state_data")
    if choice is None:
        return invalid(f"initial_state setting expects state'{state.input_name}' to have state_data set", where)
    if choice == "zero_data":
        return None
    try:
        _from_file(state, f"{where}.data_file", model_name, model_dir)
    except BrokenRule as broken:
        return broken
    return None


def _from_file(state: _Batching.State, where: str, model_name: str, model_dir: Path) -> bytes:
    """What *state* begins with. Raises BrokenRule."""
    initial = state.initial_state[0]
    datatype = dtypes.BY_NUMBER[state.data_type]
    count = element_count(tuple(initial.dims))
    try:
        content = read_data_file(model_dir, _FOLDER, initial.data_file)
        if datatype is dtypes.BYTES:
            # Triton finds it at each request.
            bytes_tensor.check(content, count=count, input_name=state.input_name, model_name=model_name, prefix="")
            return content
    except InferenceError as error:
        raise BrokenRule(error.code, error.message, where) from None
    expected = count * datatype.itemsize
    if len(content) < expected:
        raise invalid(
            f"initial_state setting expects {expected} bytes, but the data provided from {initial.data_file}only has "
            f"{len(content)} bytes.",
            where,
        )
    return content[:expected]


def _broken_size(state: _Batching.State, where: str, model_name: str) -> BrokenRule | None:
    """A first value for which there is no memory: no sequence could ever begin."""
    known = _state(state)
    nbytes = element_count(known.initial_dims) * (known.datatype.itemsize or 4)  # an empty string is its length
    try:
        bytes(nbytes)  # memory that nobody writes to is not taken
    except (MemoryError, OverflowError):
        return invalid(
            f"sequence batching state '{state.input_name}' of model '{model_name}' begins with {nbytes} bytes, more than "
            "there is memory for",
            f"{where}.dims",
        )
    return None


def _broken_memory(state: _Batching.State, where: str, message: model_config_pb.ModelConfig) -> BrokenRule | None:
    """Growable memory is a GPU's. Triton logs these for every request, which then has no state."""
    if not state.use_growable_memory:
        return None
    where = f"{where}.use_growable_memory"
    if not state.use_same_buffer_for_input_output:
        return invalid(
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name "
            f"'{state.input_name}'.",
            where,
        )
    if all(group.kind == _Group.KIND_GPU for group in message.instance_group):
        return None
    return invalid(
        "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the instance "
        f"type to KIND_GPU or set 'use_growable_memory' to false for state input '{state.input_name}'.",
        where,
    )
