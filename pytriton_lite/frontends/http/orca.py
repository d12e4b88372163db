"""The response header by which a back end of a language model tells a balancer how full it is (HTTP spec, section 15).

ORCA is the "open request cost aggregation" of the xDS protocols. Triton derives two numbers from the gauges of
TensorRT-LLM's key-value cache; here they come from whatever model exports gauges of that name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import orjson

from pytriton_lite.core.custom_metrics import Family, Number

REQUEST_HEADER = b"endpoint-load-metrics-format"
RESPONSE_HEADER = b"endpoint-load-metrics"

_FAMILY = "nv_trt_llm_kv_cache_block_metrics"
_LABEL = "kv_cache_block_type"


def load_header(families: Iterable[Family], form: bytes) -> bytes | None:
    """The header's value in *form*, ``json`` or ``text``; None for other forms, and where nobody exports the numbers.

    None, too, where they are infinite or none, or more than 64 bits hold.
    """
    blocks = _blocks(families)
    if not {"tokens_per", "used", "max"} <= blocks.keys():
        return None
    most = blocks["max"]
    utilization = blocks["used"] / most if most > 0 else 0.0
    tokens = most * blocks["tokens_per"]
    if not (math.isfinite(utilization) and abs(tokens) < 1 << 63):
        return None
    capacity = int(tokens)
    if form == b"json":
        named = {"kv_cache_utilization": utilization, "max_token_capacity": capacity}
        return b"JSON " + orjson.dumps({"named_metrics": named})
    if form == b"text":
        return (
            f"TEXT named_metrics.kv_cache_utilization={utilization:f}, named_metrics.max_token_capacity={capacity}"
        ).encode()
    return None


def _blocks(families: Iterable[Family]) -> dict[str, float]:
    """The number of each type of block. Where several models have one type, the last counts, as for Triton."""
    return {
        dict(labels)[_LABEL]: series.value
        for family in families
        if family.name == _FAMILY
        for labels, series in family.series.items()
        if isinstance(series, Number) and _LABEL in dict(labels)
    }
