"""Who may share a batch (scheduling.md, 3.3), beside the rule written down once more."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from pytriton_lite.config.model_config import ModelConfig, parse_model_config
from pytriton_lite.core import dtypes
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.serving.admission import Admission

NAMES = "ABC"
INPUTS = st.fixed_dictionaries(
    {"dims": st.sampled_from([(-1,), (2,), (-1, 2)]), "is_ragged": st.booleans(), "is_optional": st.booleans()}
)


@st.composite
def requests(draw: st.DrawFn, inputs: dict[str, dict[str, object]]) -> dict[str, tuple[int, ...]]:
    """Shapes without the batch dimension, by input, in any order."""
    names = [name for name, spec in inputs.items() if not spec["is_optional"] or draw(st.booleans())]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in draw(st.permutations(names)):
        dims = inputs[name]["dims"]
        assert isinstance(dims, tuple)
        shapes[name] = tuple(draw(st.integers(1, 3)) if dim == -1 else dim for dim in dims)
    return shapes


def config_of(inputs: dict[str, dict[str, object]], *, any_shapes: bool) -> ModelConfig:
    parts = ['name: "m" backend: "python" max_batch_size: 8 dynamic_batching { }']
    if any_shapes:
        parts.append('parameters { key: "BATCH_ANY_SHAPES" value { string_value: "yes" } }')
    for name, spec in inputs.items():
        dims = list(spec["dims"])  # type: ignore[call-overload]
        ragged, optional = str(spec["is_ragged"]).lower(), str(spec["is_optional"]).lower()
        parts.append(
            f'input {{ name: "{name}" data_type: TYPE_INT8 dims: {dims} allow_ragged_batch: {ragged} '
            f"optional: {optional} }}"
        )
    return ModelConfig.from_message(parse_model_config("\n".join(parts), source="config.pbtxt"))


def may_share(
    inputs: dict[str, dict[str, object]],
    one: dict[str, tuple[int, ...]],
    other: dict[str, tuple[int, ...]],
    *,
    any_shapes: bool,
) -> bool:
    if one.keys() != other.keys():
        return False  # there are optional inputs then
    return all(any_shapes or inputs[name]["is_ragged"] or one[name] == other[name] for name in one)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(data=st.data(), kinds=st.lists(INPUTS, min_size=1, max_size=3), any_shapes=st.booleans())
def test_requests_share_a_batch_exactly_when_the_rules_say_so(
    data: st.DataObject, kinds: list[dict[str, object]], any_shapes: bool
) -> None:
    inputs = dict(zip(NAMES, kinds))
    admission = Admission(config_of(inputs, any_shapes=any_shapes))
    one, other = data.draw(requests(inputs)), data.draw(requests(inputs))

    def key(shapes: dict[str, tuple[int, ...]], batch_size: int) -> object:
        tensors = [Tensor(name, dtypes.INT8, (batch_size, *shape), b"") for name, shape in shapes.items()]
        return admission.shape_key(InferenceRequest("m", None, inputs=tensors))

    assert (key(one, 1) == key(other, 2)) == may_share(inputs, one, other, any_shapes=any_shapes)
