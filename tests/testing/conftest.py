"""The fixtures as a user has them, also where the checkout was installed before they had an entry point."""

from pytriton_lite.pytest_plugin import triton_model, triton_server, triton_stand_ins

__all__ = ["triton_model", "triton_server", "triton_stand_ins"]
