"""The four ways to call a model with tritonclient, side by side; the scripts beside this file share it.

HTTP and gRPC, each blocking and with asyncio. They differ in little: the module that is imported, and `await`.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import tritonclient.utils

Arrays: TypeAlias = Mapping[str, np.ndarray]

PROTOCOLS = ("http", "grpc", "http-aio", "grpc-aio")
# A server that hangs is an error too.
TIMEOUT_S = 60


class CallFailed(Exception):
    """The server could not be reached, or refused a request; the text is for the user."""


def infer(
    protocol: str, url: str, model: str, requests: Sequence[Arrays], outputs: Sequence[str]
) -> list[dict[str, np.ndarray]]:
    """Send *requests*, each a dict of input arrays by name, to *model*; return a dict of *outputs* for each.

    The asyncio protocols send all at once, and the server may batch them; the blocking ones wait for each answer.
    Raises CallFailed.
    """
    try:
        if protocol == "http":
            return _infer_http(url, model, requests, outputs)
        if protocol == "grpc":
            return _infer_grpc(url, model, requests, outputs)
        if protocol == "http-aio":
            return asyncio.run(_infer_http_aio(url, model, requests, outputs))
        return asyncio.run(_infer_grpc_aio(url, model, requests, outputs))
    except tritonclient.utils.InferenceServerException as error:
        raise CallFailed(f"model '{model}': {error.message()}") from error
    except (OSError, HTTPException, asyncio.TimeoutError) as error:
        # Refused, unreachable, closed too early, timed out: the HTTP clients raise these as they come. (Before Python
        # 3.11 asyncio's TimeoutError is not the built-in one, which is an OSError.)
        raise CallFailed(f"no answer from {url}: {error}") from error


def _infer_http(
    url: str, model: str, requests: Sequence[Arrays], outputs: Sequence[str]
) -> list[dict[str, np.ndarray]]:
    import tritonclient.http as http

    with http.InferenceServerClient(url, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S) as client:
        answers = [client.infer(model, inputs(http, arrays), outputs=wanted(http, outputs)) for arrays in requests]
    return [{name: answer.as_numpy(name) for name in outputs} for answer in answers]


def _infer_grpc(
    url: str, model: str, requests: Sequence[Arrays], outputs: Sequence[str]
) -> list[dict[str, np.ndarray]]:
    import tritonclient.grpc as grpc

    with grpc.InferenceServerClient(url) as client:
        answers = [
            client.infer(model, inputs(grpc, arrays), outputs=wanted(grpc, outputs), client_timeout=TIMEOUT_S)
            for arrays in requests
        ]
    return [{name: answer.as_numpy(name) for name in outputs} for answer in answers]


async def _infer_http_aio(
    url: str, model: str, requests: Sequence[Arrays], outputs: Sequence[str]
) -> list[dict[str, np.ndarray]]:
    import aiohttp
    import tritonclient.http.aio as http

    try:
        async with http.InferenceServerClient(url, conn_timeout=TIMEOUT_S) as client:
            answers = await asyncio.gather(
                *(client.infer(model, inputs(http, arrays), outputs=wanted(http, outputs)) for arrays in requests)
            )
    except aiohttp.ClientError as error:
        raise CallFailed(f"no answer from {url}: {error}") from error
    return [{name: answer.as_numpy(name) for name in outputs} for answer in answers]


async def _infer_grpc_aio(
    url: str, model: str, requests: Sequence[Arrays], outputs: Sequence[str]
) -> list[dict[str, np.ndarray]]:
    import tritonclient.grpc.aio as grpc

    async with grpc.InferenceServerClient(url) as client:
        answers = await asyncio.gather(
            *(
                client.infer(model, inputs(grpc, arrays), outputs=wanted(grpc, outputs), client_timeout=TIMEOUT_S)
                for arrays in requests
            )
        )
    return [{name: answer.as_numpy(name) for name in outputs} for answer in answers]


def inputs(client: ModuleType, arrays: Arrays) -> list[Any]:
    """Make the InferInput objects of *client*, one of the four tritonclient modules."""
    made = []
    for name, array in arrays.items():
        tensor = client.InferInput(name, array.shape, tritonclient.utils.np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def wanted(client: ModuleType, outputs: Sequence[str]) -> list[Any]:
    return [client.InferRequestedOutput(name) for name in outputs]


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with --protocol and --url; `run` fills in the port that belongs to the protocol."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="http", help="default: %(default)s")
    parser.add_argument(
        "--url", type=host_and_port, help="host:port (default: localhost:8000 for HTTP, localhost:8001 for gRPC)"
    )
    return parser


def host_and_port(text: str) -> str:
    """Refuse http://…, which the clients answer in four ways, none of them clear."""
    if not re.fullmatch(r"[^/]+:\d+", text):
        raise argparse.ArgumentTypeError(f"expected host:port, got {text!r}")
    return text


def run(parser: argparse.ArgumentParser, action: Callable[[argparse.Namespace], None]) -> int:
    """Parse the command line, call *action*, and return the exit code: 0, or 1 after one line on stderr."""
    options = parser.parse_args()
    if options.url is None:
        options.url = "localhost:8000" if options.protocol.startswith("http") else "localhost:8001"
    try:
        action(options)
    except CallFailed as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0
