"""The choice of a response cache: `local`, or one that a plug-in brings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytriton_lite import doors
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.cache import local
from pytriton_lite.engine.cache.options import CacheSetting
from pytriton_lite.engine.cache.response_cache import MakeCache, ResponseCache


def make_cache(settings: Iterable[CacheSetting], environ: Mapping[str, str]) -> ResponseCache | None:
    """The cache that *settings* ask for; None where none does.

    Of an option that is given twice the last one counts. Raises InferenceError for what no cache can be made of.
    """
    given: dict[str, dict[str, str]] = {}
    for cache, key, value in settings:
        given.setdefault(cache, {})[key] = value
    if not given:
        return None
    if len(given) > 1:
        text = "found multiple cache configurations, but only a single cache is currently supported"
        raise InferenceError(ErrorCode.INVALID_ARG, text)
    ((name, options),) = given.items()
    make: MakeCache | None = local.make_cache if name == "local" else doors.load(doors.RESPONSE_CACHES, name)
    if make is None:
        *others, last = sorted({"local", *doors.names(doors.RESPONSE_CACHES)})
        expected = f"{', '.join(others)} or {last}" if others else last
        raise InferenceError(ErrorCode.INVALID_ARG, f"unable to find cache '{name}': expected {expected}")
    return make(options, environ)
