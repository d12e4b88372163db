"""pytriton-lite: a pip-installable server for Triton Python models.

Importing this package imports nothing else: workers start under the model's interpreter, where only numpy is certain. Its
public names are imported when they are asked for: ``from pytriton_lite import Server``. ``__init__.pyi`` has their types.
"""

__version__ = "0.1.0"

INTERPRETED_VARIABLE = "PYTRITON_LITE_INTERPRETED"
"""Of the environment: where it is 1, source is run also where the package has compiled modules. Workers inherit it."""


def _pass_over_compiled() -> None:
    import os

    if os.environ.get(INTERPRETED_VARIABLE) != "1":
        return
    import sys
    from importlib.abc import PathEntryFinder
    from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader

    folder = os.path.dirname(__file__)
    find_source = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))

    def find(path: str) -> PathEntryFinder:
        if path != folder and not path.startswith(folder + os.sep):
            raise ImportError
        return find_source(path)

    sys.path_hooks.insert(0, find)


_pass_over_compiled()


_PUBLIC = {
    "ConstantPadder": "pytriton_lite.binding.decorators",
    "InferenceError": "pytriton_lite.embedding",
    "DynamicBatcher": "pytriton_lite.binding.specification",
    "QueuePolicy": "pytriton_lite.binding.specification",
    "Request": "pytriton_lite.binding.request",
    "Server": "pytriton_lite.embedding",
    "Tensor": "pytriton_lite.binding.specification",
    "batch": "pytriton_lite.binding.decorators",
    "fill_optionals": "pytriton_lite.binding.decorators",
    "first_value": "pytriton_lite.binding.decorators",
    "group_by_keys": "pytriton_lite.binding.decorators",
    "group_by_values": "pytriton_lite.binding.decorators",
    "model": "pytriton_lite.binding.specification",
    "pad_batch": "pytriton_lite.binding.decorators",
    "sample": "pytriton_lite.binding.decorators",
    "triton_context": "pytriton_lite.binding.decorators",
}
"""Where the public names come from."""

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> object:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'pytriton_lite' has no attribute '{name}'")
    from importlib import import_module

    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
