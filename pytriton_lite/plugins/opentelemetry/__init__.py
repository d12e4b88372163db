"""Traces as OpenTelemetry spans: ``--trace-config mode=opentelemetry``, and the extra ``otel``."""
