"""What is said of a function or class that is to be a model, and the configuration that the server makes of it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.override import parse_config_override
from pytriton_lite.core import dtypes
from pytriton_lite.proto import model_config_pb

Function = TypeVar("Function", bound=Callable[..., Any])

SPECIFICATION = "__pytriton_lite_model__"
"""The attribute in which `model` leaves what was said."""
TAKES_REQUESTS = "__takes_requests__"
"""The attribute of functions that are given a list of requests."""
CONTEXT = "triton_context"
"""The parameter that is no input: the decorator of that name gives it."""

_OF_PYTHON: Mapping[object, dtypes.DataType] = {
    bool: dtypes.BOOL,
    int: dtypes.INT64,
    float: dtypes.FP64,
    str: dtypes.BYTES,
    bytes: dtypes.BYTES,
    object: dtypes.BYTES,
}
_NOT_HERE = ("ENV:", "EXECUTION_ENV_PATH", "REQUIREMENTS")
"""Parameters that choose an interpreter and its variables: a bound function has those of its program."""


class TimeoutAction(enum.Enum):
    """What becomes of a request whose time in the queue is over."""

    REJECT = "REJECT"
    """It ends with an error."""
    DELAY = "DELAY"
    """It is served after those whose time is not over."""


@dataclass
class QueuePolicy:
    """How requests wait in the queue of a dynamic batcher."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    """Microseconds that a request may wait; 0 is without a limit."""
    allow_timeout_override: bool = False
    """Whether a request may say so itself."""
    max_queue_size: int = 0
    """How many may wait; 0 is without a limit."""


@dataclass
class DynamicBatcher:
    """How requests are put together into batches (docs/dynamic-batching.md)."""

    max_queue_delay_microseconds: int = 0
    """Microseconds for which a request waits for others."""
    preferred_batch_size: list[int] | None = None
    """Sizes that are sent at once."""
    preserve_ordering: bool = False
    """Whether answers leave in the order of requests."""
    priority_levels: int = 0
    """How many priorities there are; 0 is none."""
    default_priority_level: int = 0
    """The priority of a request without one, from 1, the highest."""
    default_queue_policy: QueuePolicy | None = None
    """The policy of every level without one of its own."""
    priority_queue_policy: dict[int, QueuePolicy] | None = None
    """Policies by level."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model.

    ``shape`` is that of one row, without the batch dimension where the model has one; -1 is any size. ``dtype`` is one of
    numpy's, of Python's (``float`` is FP64, ``int`` INT64, ``str`` and ``bytes`` BYTES) or a name of the protocol
    (``"BF16"``). ``name`` may be left out where something else says it: the parameter of the function, or the place, which
    makes ``INPUT_1``. ``optional``: a request may do without it.
    """

    shape: tuple[int, ...]
    dtype: Any
    name: str | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.shape, int) or not all(isinstance(dim, (int, np.integer)) for dim in self.shape):
            raise TypeError(f"the shape of a tensor is a tuple of numbers, -1 for any size, not {self.shape!r}")
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        if isinstance(self.dtype, np.dtype):
            object.__setattr__(self, "dtype", self.dtype.type)
        _ = self.datatype

    @property
    def datatype(self) -> dtypes.DataType:
        """Its type in the protocol. Raises TypeError for what has none."""
        found: dtypes.DataType | None
        if isinstance(self.dtype, str) and self.dtype in dtypes.BY_NAME:
            return dtypes.BY_NAME[self.dtype]
        found = _OF_PYTHON.get(self.dtype)
        is_numpys = not isinstance(self.dtype, type) or issubclass(self.dtype, np.generic)
        if found is None and is_numpys:  # numpy takes any class for objects
            try:
                found = dtypes.from_numpy(np.dtype(self.dtype))
            except TypeError:
                found = None
            if found is None and self.dtype in (np.str_, np.bytes_):
                found = dtypes.BYTES
        if found is None:
            raise TypeError(
                f"{self.dtype!r} is no type of a tensor: use one of numpy's, bool, int, float, str or bytes, or a name of the "
                f"protocol ({', '.join(dtypes.BY_NAME)})"
            )
        return found


@dataclass(frozen=True)
class Specification:
    """A function, or several, and what was said of it. Immutable once `resolved`."""

    functions: tuple[Any, ...]
    """One, or one for each instance: functions, callable objects, or classes, which each worker makes an object of."""
    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int = 0
    """0 is without a batch dimension."""
    batcher: DynamicBatcher | None = None
    decoupled: bool = False
    response_cache: bool = False
    instances: int = 1
    parameters: Mapping[str, str] = field(default_factory=dict)
    warm_up: tuple[Mapping[str, Any], ...] = ()
    """Samples to execute before the model serves, each like an entry of ``model_warmup`` in a configuration's JSON form."""
    strict: bool = True
    """Whether types and shapes of outputs are compared with what is declared."""
    takes_requests: bool = False
    """Whether it is given a list of requests, and not arrays by name."""
    in_process: bool = False
    """Whether its instances are threads of the program."""
    version: int = 1
    """The version that clients see."""
    compares_rows: bool = True
    """Whether an output has as many rows as its request."""
    on_unrecoverable: Callable[[], None] | None = None
    """Called in the program when a function that is a thread of it has said that it cannot go on."""

    # What decorators may ask, under the names that PyTriton has for it.
    @property
    def model_name(self) -> str:
        """The model's name."""
        return self.name

    @property
    def model_version(self) -> int:
        """Its version, of which a function has one."""
        return self.version

    @property
    def batching(self) -> bool:
        """Whether arrays have a batch dimension."""
        return self.max_batch_size > 0

    def message(self) -> model_config_pb.ModelConfig:
        """The configuration. Raises ValueError for what cannot be one."""
        try:
            return parse_config_override(json.dumps(self._json(), default=operator.index))  # numbers of numpy
        except PollError as error:
            raise ValueError(f"model '{self.name}': {error.detail}") from None

    def _json(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "name": self.name,
            "backend": "python",
            "max_batch_size": self.max_batch_size,
            "input": [{**_tensor_json(tensor), "optional": tensor.optional} for tensor in self.inputs],
            "output": [_tensor_json(tensor) for tensor in self.outputs],
            "instance_group": [{"kind": "KIND_CPU", "count": self.instances}],
            "model_transaction_policy": {"decoupled": self.decoupled},
            "parameters": {key: {"string_value": value} for key, value in self.parameters.items()},
        }
        if self.batcher is not None:
            config["dynamic_batching"] = _batching_json(self.batcher)
        if self.response_cache:
            config["response_cache"] = {"enable": True}
        if self.warm_up:
            config["model_warmup"] = list(self.warm_up)
        return config


CURRENT: ContextVar[Specification | None] = ContextVar("pytriton_lite_model", default=None)
"""The model that a function is executed for, in its worker."""


def current() -> Specification:
    """The model that runs here. Raises RuntimeError outside of one."""
    found = CURRENT.get()
    if found is None:
        raise RuntimeError("this needs to know the model, and the function was called without a server")
    return found


def _tensor_json(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": tensor.datatype.config_name, "dims": list(tensor.shape)}


def _batching_json(batcher: DynamicBatcher) -> dict[str, Any]:
    found: dict[str, Any] = {
        "max_queue_delay_microseconds": batcher.max_queue_delay_microseconds,
        "preferred_batch_size": list(batcher.preferred_batch_size or ()),
        "preserve_ordering": batcher.preserve_ordering,
        "priority_levels": batcher.priority_levels,
        "default_priority_level": batcher.default_priority_level,
    }
    if batcher.default_queue_policy is not None:
        found["default_queue_policy"] = _policy_json(batcher.default_queue_policy)
    if batcher.priority_queue_policy:
        found["priority_queue_policy"] = {
            str(level): _policy_json(policy) for level, policy in batcher.priority_queue_policy.items()
        }
    return found


def _policy_json(policy: QueuePolicy) -> dict[str, Any]:
    return {**dataclasses.asdict(policy), "timeout_action": policy.timeout_action.value}


# From a function ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What was said of a function, by `model` or by who binds it; None where nothing was."""

    name: str | None = None
    inputs: Sequence[Tensor] | None = None
    outputs: Sequence[Tensor] | None = None
    max_batch_size: int | None = None
    batcher: DynamicBatcher | bool | None = None
    decoupled: bool | None = None
    response_cache: bool | None = None
    instances: int | None = None
    parameters: Mapping[str, str] | None = None
    warm_up: Sequence[Mapping[str, Any]] | None = None
    strict: bool | None = None
    in_process: bool | None = None

    def over(self, other: Said) -> Said:
        """What is said here, and elsewhere what *other* says."""
        mine = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return dataclasses.replace(other, **{name: value for name, value in mine.items() if value is not None})


def model(
    function: Function | None = None,
    *,
    name: str | None = None,
    inputs: Sequence[Tensor] | None = None,
    outputs: Sequence[Tensor] | None = None,
    max_batch_size: int | None = None,
    batcher: DynamicBatcher | bool | None = None,
    decoupled: bool | None = None,
    response_cache: bool | None = None,
    instances: int | None = None,
    parameters: Mapping[str, str] | None = None,
    warm_up: Sequence[Mapping[str, Any]] | None = None,
    strict: bool | None = None,
    in_process: bool | None = None,
) -> Any:
    """Say of a function or class how it is a model; ``server.bind`` serves it, and may say more. It stays what it is.

    *inputs* and *outputs* may be left out where annotations are tensors: ``def double(x: Tensor((-1,), np.float32)) ->
    Tensor((-1,), np.float32, "y")``. *max_batch_size* over 0 gives every array a batch dimension, and requests are put
    together as *batcher* says (False: not at all). Without a batch dimension its queue policies and priorities still hold.
    *decoupled* is what a generator is. *instances* is how many run at a time, *parameters* and *warm_up* are the
    configuration's own, in its JSON form. *strict*, the default, compares what comes out with what is declared.
    *in_process*: instances are threads of this process, and no processes.
    """
    said = Said(
        name,
        inputs,
        outputs,
        max_batch_size,
        batcher,
        decoupled,
        response_cache,
        instances,
        parameters,
        warm_up,
        strict,
        in_process,
    )

    def mark(marked: Function) -> Function:
        if not callable(marked):
            raise TypeError(f"a model is a function, a class or a callable object, not {type(marked).__name__}")
        setattr(marked, SPECIFICATION, said)
        return marked

    return mark if function is None else mark(function)


def specify(function: object, said: Said, *, takes_requests: bool = False) -> Specification:
    """What binding *function*, or one for each instance, makes of all that was said.

    *takes_requests*: it is given requests, whatever it looks like. Raises TypeError for what is no function or has another
    signature, ValueError for what is declared wrongly.
    """
    functions = tuple(function) if isinstance(function, (list, tuple)) else (function,)
    if not functions:
        raise ValueError("no function was given to bind")
    for one in functions:
        if not callable(one):
            raise TypeError(f"a model is a function, a class or a callable object, not {type(one).__name__}: {one!r}")
    first = functions[0]
    whole = _without_partials(first)
    said = said.over(getattr(first, SPECIFICATION, getattr(whole, SPECIFICATION, Said())))
    if said.name is None and getattr(whole, "__name__", "") == "<lambda>":
        raise ValueError("a lambda has no name for its model: say name=…")
    name = str(said.name if said.name is not None else getattr(whole, "__name__", type(whole).__name__))
    _check_name(name)
    called = _called(first)
    takes_requests = (
        takes_requests
        or getattr(_without_partials(called), TAKES_REQUESTS, False)
        or _first_parameter(called) == "requests"
    )
    inputs = _named(said.inputs if said.inputs is not None else _annotated_inputs(called, name), "INPUT", name)
    outputs = _named(said.outputs if said.outputs is not None else _annotated_outputs(called, name), "OUTPUT", name)
    if not takes_requests:
        for one in functions:
            _check_signature(_called(one), inputs, name)
    max_batch_size = said.max_batch_size or 0
    if max_batch_size < 0:
        raise ValueError(f"max_batch_size of model '{name}' is 0 or more, not {max_batch_size}")
    batcher = said.batcher
    if batcher in (None, True):
        batcher = DynamicBatcher() if max_batch_size else False
    is_generator = _is_generator(called)
    if is_generator and said.decoupled is False:
        raise ValueError(f"model '{name}' is a generator, so it is decoupled, and decoupled=False was said")
    instances = said.instances if said.instances is not None else len(functions)
    if instances < 1 or (len(functions) > 1 and instances != len(functions)):
        raise ValueError(f"model '{name}' has {len(functions)} functions for {instances} instances")
    parameters = dict(said.parameters or {})
    for key in parameters:
        if key.startswith(_NOT_HERE):
            raise ValueError(
                f"parameter '{key}' of model '{name}': a bound function runs in the Python of its program; a model with "
                "another environment is a folder"
            )
    if "INSTANCE_SHARING" in parameters:
        if said.in_process:
            raise ValueError(f"INSTANCE_SHARING of model '{name}' is for processes, and in_process=True has none")
        if len(functions) > 1:
            raise ValueError(f"instances of model '{name}' cannot share what each has a function of its own for")
    warm_up = said.warm_up or ()
    if not isinstance(warm_up, Sequence) or not all(isinstance(sample, Mapping) for sample in warm_up):
        raise TypeError(
            f"warm_up of model '{name}' is a list of samples, dicts like those of model_warmup in a configuration, not "
            f"{warm_up!r:.40}"
        )
    return Specification(
        functions=functions,
        name=name,
        inputs=inputs,
        outputs=outputs,
        max_batch_size=max_batch_size,
        batcher=None if batcher is False else typing.cast(Any, batcher),
        decoupled=bool(said.decoupled) or is_generator,
        response_cache=bool(said.response_cache),
        instances=instances,
        parameters=parameters,
        warm_up=tuple(warm_up),
        strict=True if said.strict is None else said.strict,
        takes_requests=takes_requests,
        in_process=bool(said.in_process),
    )


def _check_name(name: str) -> None:
    if not name or name.startswith(".") or "/" in name or not name.isprintable():
        raise ValueError(
            f"{name!r} is no name of a model: a text without '/' and control characters, which does not begin with '.'"
        )


def _without_partials(function: Any) -> Any:
    """What ``functools.partial`` was given, however often, or *function* itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_class(function: object) -> bool:
    """Whether each worker makes an object of it: a class, or a partial of one, which has arguments for its ``__init__``."""
    return inspect.isclass(_without_partials(function))


def _called(function: Any) -> Callable[..., Any]:
    """What is called for a request: the function itself, or ``__call__`` of an object or of what a class makes."""
    if is_class(function):
        made = _without_partials(function)
        if "__call__" not in dir(made):
            raise TypeError(f"class {made.__name__} has no __call__, which would be its model")
        return typing.cast("Callable[..., Any]", getattr(made, "__call__"))  # noqa: B004, B009
    if (
        inspect.isroutine(function)
        or isinstance(function, functools.partial)
        or inspect.isfunction(inspect.unwrap(function))
    ):
        return typing.cast("Callable[..., Any]", function)
    return typing.cast("Callable[..., Any]", getattr(function, "__call__"))  # noqa: B004, B009


def _parameters(called: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # what C has made
        return []
    return found[1:] if found and found[0].name == "self" else found


def _first_parameter(called: Callable[..., Any]) -> str:
    found = _parameters(called)
    return found[0].name if found else ""


def _innermost(called: Any) -> Any:
    """What was written: *called* without its decorators and partials."""
    while (inner := inspect.unwrap(_without_partials(called))) is not called:
        called = inner
    return called


def _is_generator(called: Callable[..., Any]) -> bool:
    inner = _innermost(called)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def _hints(called: Callable[..., Any], name: str) -> dict[str, Any]:
    inner = _innermost(called)
    inner = getattr(inner, "__func__", inner)
    raw = dict(getattr(inner, "__annotations__", {}))
    if not any(isinstance(value, str) for value in raw.values()):
        return raw
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except Exception as error:
        # Names of an enclosing function, under ``from __future__ import annotations``, or no types at all.
        closure = inspect.getclosurevars(inner) if inspect.isfunction(inner) else None
        names = {**closure.globals, **closure.nonlocals} if closure is not None else {}
        found = {}
        for key, value in raw.items():
            try:
                found[key] = eval(value, getattr(inner, "__globals__", {}), names) if isinstance(value, str) else value
            except Exception:
                raise TypeError(
                    f"the annotation of '{key}' of model '{name}' cannot be read ({error}): declare inputs and outputs instead"
                ) from None
        return found


def _tensor_in(annotation: object) -> Tensor | None:
    """The tensor that *annotation* is, or that ``Annotated[…, Tensor(…)]`` has."""
    if isinstance(annotation, Tensor):
        return annotation
    return next((found for found in getattr(annotation, "__metadata__", ()) if isinstance(found, Tensor)), None)


def _annotated_inputs(called: Callable[..., Any], name: str) -> list[Tensor]:
    hints = _hints(called, name)
    found: list[Tensor] = []
    given = called.keywords if isinstance(called, functools.partial) else {}
    for parameter in _parameters(inspect.unwrap(called)):
        if parameter.name in given or parameter.name == CONTEXT:
            continue
        tensor = _tensor_in(hints.get(parameter.name))
        if tensor is None:
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            raise TypeError(
                f"the inputs of model '{name}' are not known: say inputs=[…], or annotate parameter '{parameter.name}' with a "
                "Tensor"
            )
        is_optional = tensor.optional or parameter.default is not parameter.empty
        found.append(dataclasses.replace(tensor, name=tensor.name or parameter.name, optional=is_optional))
    return found


def _annotated_outputs(called: Callable[..., Any], name: str) -> list[Tensor]:
    annotation = _hints(called, name).get("return")
    tensors = annotation if isinstance(annotation, (list, tuple)) else [annotation]
    if typing.get_origin(annotation) is tuple:
        tensors = list(typing.get_args(annotation))
    found = [_tensor_in(one) for one in tensors]
    if not found or any(one is None for one in found):
        raise TypeError(
            f"the outputs of model '{name}' are not known: say outputs=[…], or annotate what it returns with a Tensor, or a "
            "tuple of them"
        )
    return typing.cast("list[Tensor]", found)


def _named(tensors: Sequence[Tensor], prefix: str, name: str) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for number, tensor in enumerate(tensors, start=1):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{prefix.lower()}s of model '{name}' are Tensor(…)s, not {type(tensor).__name__}: {tensor!r}"
            )
        found.append(tensor if tensor.name else dataclasses.replace(tensor, name=f"{prefix}_{number}"))
    names = [tensor.name for tensor in found]
    doubled = {each for each in names if names.count(each) > 1}
    if doubled:
        raise ValueError(f"model '{name}' has several {prefix.lower()}s called {', '.join(sorted(map(repr, doubled)))}")
    return tuple(found)


def _check_signature(called: Callable[..., Any], inputs: Sequence[Tensor], name: str) -> None:
    """Raises TypeError where *called* cannot be given *inputs* by their names."""
    found = _parameters(called)
    if not found and inputs and not inspect.isfunction(inspect.unwrap(called)):
        return  # what C has made says nothing of itself
    names = {parameter.name: parameter for parameter in found if parameter.kind is not parameter.VAR_POSITIONAL}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in found)
    hint = "a function is given its inputs by name, or, if its first parameter is called 'requests', a list of requests"
    for tensor in inputs:
        parameter = names.get(tensor.name or "")
        if parameter is None or parameter.kind is parameter.VAR_KEYWORD:
            if not takes_all:
                raise TypeError(f"model '{name}' has no parameter for input '{tensor.name}': {hint}")
        elif tensor.optional and parameter.default is parameter.empty:
            raise TypeError(
                f"input '{tensor.name}' of model '{name}' is optional, so its parameter needs a default, None for instance"
            )
    known = {tensor.name for tensor in inputs}
    for parameter in names.values():
        is_needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if is_needed and parameter.name not in known and parameter.name != CONTEXT:
            raise TypeError(f"parameter '{parameter.name}' of model '{name}' is none of its inputs: {hint}")
