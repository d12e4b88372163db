"""What is given to ``serve.run`` or named in a configuration of Ray Serve: `app` and `servers`, and builders of both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton_lite.embedding.options import read_options

Repository = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

GRPC_SERVICES = [
    "pytriton_lite.ray.grpc_services:add_inference",
    "pytriton_lite.ray.grpc_services:add_health",
]
"""``grpc_servicer_functions`` for the options of Ray Serve's gRPC proxy: KServe's service, and gRPC's health service."""

_MODELS = "Models"
_SERVERS = "Servers"
_DIRECTORY = "Directory"
_POLICY = {"policy_function": "pytriton_lite.ray.scaling:by_unanswered"}
_MOST_ONGOING = 256
"""Requests that Ray hands to a replica: as many as the engine is to batch from. Ray's own default is 5."""
_DRAIN_S = 20.0
"""Ray's default of ``graceful_shutdown_timeout_s``."""
_STOP_EARLIER_S = 2.0
"""What is left of that to the replica itself behind the end of its server."""


def import_serve() -> Any:
    """Ray Serve. Raises ImportError that says how it is installed."""
    try:
        from ray import serve
    except ImportError as error:
        raise ImportError(
            f"pytriton_lite.ray needs Ray Serve, which cannot be imported ({error}); install it with: "
            "pip install 'pytriton-lite[ray]'"
        ) from None
    return serve


def app(
    repository: Repository,
    *,
    instances: int | None = None,
    deployment: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """An application whose replicas embed the engine: v2 over Ray's HTTP proxy, and over its gRPC proxy (`GRPC_SERVICES`).

    *repository* is what `pytriton_lite.Server` takes, as the machines see it on which replicas run: a URL or a folder that all
    of them have. Every replica serves all of it. *instances* is how many instances each model has in a replica, on the CPUs
    and GPUs that Ray gives it; by default what its configuration says. *deployment* are options of ``serve.deployment`` by
    Ray's names; an ``autoscaling_config`` without a policy scales by the engine's queues (`scaling.by_unanswered`). *options*
    are those of `pytriton_lite.Server`, but for ports.

    Returns a ``ray.serve.Application``. Raises ImportError without Ray Serve, TypeError and ValueError for options that are
    none; a repository that is not there, or a model that does not load, fails the deployment with the reason.
    """
    serve = import_serve()
    _check(repository, instances, options)
    from pytriton_lite.ray.door import ReplicaDoor
    from pytriton_lite.ray.replica import DeployedReplica

    chosen = _deployment_options(deployment, name=_MODELS)
    options.setdefault("exit_timeout_secs", _stop_time_s(chosen))
    ingress = serve.deployment(serve.ingress(ReplicaDoor())(DeployedReplica))
    return ingress.options(**chosen).bind(repository, instances, options)


def servers(repository: Repository, *, flags: Sequence[str] = (), deployment: Mapping[str, Any] | None = None) -> Any:
    """An application whose replicas each run ``pytriton-lite serve`` as a child: clients ask its own ports.

    Ray places, scales and replaces them. The application's route has the addresses of those that are ready
    (`directory.Directory`). *flags* are those of the command, ports excepted; *deployment* are options of ``serve.deployment``,
    as for `app`. Ray sees no request: only the engine's queues can scale it.

    Returns a ``ray.serve.Application``. Raises ImportError without Ray Serve, ValueError for a flag that is not the replica's.
    """
    serve = import_serve()
    from pytriton_lite.ray.directory import Directory
    from pytriton_lite.ray.door import DirectoryDoor
    from pytriton_lite.ray.server_process import ServerReplica, check_flags

    check_flags(flags)
    chosen = _deployment_options(deployment, name=_SERVERS)
    places = [os.fspath(place) for place in _places(repository)]
    replica = (
        serve.deployment(ServerReplica).options(**chosen).bind(places, list(flags), _DIRECTORY, _stop_time_s(chosen))
    )
    directory = serve.deployment(serve.ingress(DirectoryDoor())(Directory))
    one = directory.options(
        name=_DIRECTORY, num_replicas=1, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=100
    )
    return one.bind(replica)


def build(args: dict[str, Any]) -> Any:
    """`app` for a configuration file of Ray Serve: ``import_path: pytriton_lite.ray:build``, with its arguments as ``args``."""
    return app(**_arguments("build", args))


def build_servers(args: dict[str, Any]) -> Any:
    """`servers` for a configuration file of Ray Serve; ``flags`` are a list of texts."""
    return servers(**_arguments("build_servers", args))


def _arguments(name: str, args: dict[str, Any]) -> dict[str, Any]:
    if "repository" not in args:
        given = ", ".join(map(str, args)) or "nothing"
        raise ValueError(f"pytriton_lite.ray:{name} needs the argument 'repository', a folder or a URL; given: {given}")
    return args


def _check(repository: Repository, instances: int | None, options: Mapping[str, Any]) -> None:
    """Raise here what every replica would raise: TypeError and ValueError."""
    for name in options:
        if name.endswith("_port"):
            raise TypeError(f"{name} is no option of a replica: clients come by Ray's proxies")
    if instances is not None and (isinstance(instances, bool) or not isinstance(instances, int) or instances < 1):
        raise ValueError(f"instances is a number of at least 1, not {instances!r}")
    read_options(repository, options)


def _places(repository: Repository) -> Sequence[str | os.PathLike[str]]:
    return [repository] if isinstance(repository, (str, os.PathLike)) else repository


def _deployment_options(given: Mapping[str, Any] | None, *, name: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {"name": name, "max_ongoing_requests": _MOST_ONGOING, **(given or {})}
    scaling = chosen.get("autoscaling_config")
    if isinstance(scaling, Mapping) and "policy" not in scaling:
        chosen["autoscaling_config"] = {**scaling, "policy": _POLICY}
    return chosen


def _stop_time_s(chosen: Mapping[str, Any]) -> int:
    """What a server has for its end: Ray kills its replica soon after."""
    return max(1, int(chosen.get("graceful_shutdown_timeout_s", _DRAIN_S) - _STOP_EARLIER_S))
