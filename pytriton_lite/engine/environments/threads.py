"""Whether the instances of a model get in each other's way."""

from __future__ import annotations

from collections.abc import Mapping

_NAME = "OMP_NUM_THREADS"
"""OpenMP, OpenBLAS, MKL and PyTorch all read it, and all take one thread for each core without it."""


def too_many_threads(
    model: str, *, instances: int, variables: Mapping[str, str], cores: int, is_bound: bool = False
) -> str:
    """The advice for a model whose *instances* would run more threads than there are *cores*; empty if there is none.

    Nothing is said about one instance, nor about one thread in each: to have more instances than cores is a choice, and
    a good one for models that wait. A model that *is_bound* has the environment, and the libraries, of its program.
    """
    text = variables.get(_NAME, "")
    first = text.partition(",")[0].strip()  # a list is for nested regions, its first number for the outermost
    threads = int(first) if first.isdecimal() and int(first) else cores
    if instances < 2 or threads < 2 or instances * threads <= cores:
        return ""
    why = f"{_NAME} is {text}" if text else f"{_NAME} is not set, so that libraries take one for each core"
    wanted = max(1, cores // instances)
    parameter = f'parameters {{ key: "ENV:{_NAME}" value: {{ string_value: "{wanted}" }} }}'
    what_to_do = (
        f"Set {_NAME}={wanted} for the program, or have it tell the library before it binds: torch.set_num_threads({wanted})."
        if is_bound
        else f"Set {parameter} in its config.pbtxt, or {_NAME} for the server."
    )
    return (
        f"model '{model}': {instances} instances with {threads} threads each ({why}) are more than the {cores} cores of "
        f"this machine. {what_to_do}"
    )
