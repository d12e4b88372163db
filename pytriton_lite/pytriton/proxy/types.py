"""Requests as functions get them, and responses as they may give them."""

from __future__ import annotations

from pytriton_lite.binding.request import ByName, Request

__all__ = ["Request", "Requests", "Response", "Responses"]


class Response(ByName):
    """Outputs by name; a dict of them does as well."""


Requests = list[Request]
Responses = list[Response]
