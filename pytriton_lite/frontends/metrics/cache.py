"""The response cache in this process (metrics spec, section 2): gauges all, although most of them only grow."""

from __future__ import annotations

from collections.abc import Iterator

from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.engine.cache.response_cache import CacheStatistics
from pytriton_lite.frontends.metrics.families import gauge


def cache_families(cache: CacheStatistics) -> Iterator[Family]:
    yield gauge("nv_cache_util", "Cache utilization [0.0 - 1.0]", cache.used / cache.size)
    yield gauge("nv_cache_num_entries", "Number of responses stored in response cache", cache.entries)
    yield gauge("nv_cache_num_hits", "Number of cache hits in response cache", cache.hits)
    yield gauge("nv_cache_num_misses", "Number of cache misses in response cache", cache.misses)
    yield gauge("nv_cache_num_lookups", "Number of cache lookups in response cache", cache.lookups)
    yield gauge("nv_cache_num_evictions", "Number of cache evictions in response cache", cache.evictions)
    yield gauge(
        "nv_cache_lookup_duration",
        "Total cache lookup duration (hit and miss), in microseconds",
        cache.lookup_ns // 1000,
    )
    yield gauge(
        "nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", cache.insertion_ns // 1000
    )
