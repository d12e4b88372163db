"""Applications of Ray Serve that serve a repository, and batch inference with Ray Data (docs/ray.md).

Ray places, scales and replaces; the engine in each replica queues, batches and keeps workers. Ray is an extra
(``pip install 'pytriton-lite[ray]'``) and is imported when an application is made, not before.
"""

from pytriton_lite.ray.applications import GRPC_SERVICES, app, build, build_servers, servers
from pytriton_lite.ray.predictor import Predictor

__all__ = ["GRPC_SERVICES", "Predictor", "app", "build", "build_servers", "servers"]
