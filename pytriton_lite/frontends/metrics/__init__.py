"""The metrics page for Prometheus: its text (page) and the little ASGI application that serves it (app)."""

from pytriton_lite.frontends.metrics.app import MetricsOptions, MetricsPage, metrics_app

__all__ = ["MetricsOptions", "MetricsPage", "metrics_app"]
