"""The metrics page for Prometheus: its text (page) and the little ASGI application that serves it (app)."""

from pytriton_lite.frontends.metrics.app import metrics_app

__all__ = ["metrics_app"]
