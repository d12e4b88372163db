"""What to do about what is wrong with a model, in our own words, by the sentence that a server says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from pytriton_lite.config import parameters
from pytriton_lite.config.json_form import is_map
from pytriton_lite.core import dtypes
from pytriton_lite.proto import model_config_pb

_TYPES = ", ".join(datatype.config_name for datatype in dtypes.ALL)

_CLOSE = 0.75
"""How much alike two names must be for one to be a slip of the other; of difflib."""

_FEW = 10
"""Fields of a message that can be listed."""


def hint_for(text: str) -> str:
    """The hint of the first line of the table that fits; "" where the sentence says it all."""
    for pattern, hint in _TABLE:
        found = pattern.search(text)
        if found is not None:
            return hint(found)
    return ""


MEANINGLESS = "parameter '{}' means nothing to the server, which gives it to the model"
"""What is said of a parameter that looks like one of ours, and is none."""


def misspelt_parameter(key: str) -> str:
    """The parameter of ours, or Triton's, that *key* looks like without being it; "" for none."""
    return "" if key in parameters.ALL else _closest(key.upper(), parameters.ALL)


def _no_field(found: re.Match[str]) -> str:
    """The nearest field of the same message, or where a field of exactly that name belongs."""
    message, name = found.groups()
    descriptor = _messages().get(message)
    if descriptor is None:
        return ""
    homes = [path for path, field in _fields(model_config_pb.ModelConfig.DESCRIPTOR, "") if field.name == name]
    near = _closest(name, descriptor.fields_by_name)
    if near:
        return f"did you mean {near}?"
    if homes:
        return f"{name} is a field of {' and of '.join(sorted(set(homes)))}"
    return f"its fields are {', '.join(descriptor.fields_by_name)}" if len(descriptor.fields) <= _FEW else ""


_TYPES_ELSEWHERE = {
    "BYTES": dtypes.BYTES,
    "OBJECT": dtypes.BYTES,
    "HALF": dtypes.FP16,
    "FLOAT": dtypes.FP32,
    "DOUBLE": dtypes.FP64,
    "INT": dtypes.INT32,
    "LONG": dtypes.INT64,
}
"""Data types by names of the protocol, numpy and torch, which look like none of a configuration, or like a wrong one."""


def _unknown_value(found: re.Match[str]) -> str:
    value, name = found.groups()
    meant = _TYPES_ELSEWHERE.get(value.upper().removeprefix("TYPE_"))
    if name == "data_type" and meant is not None:
        return f"did you mean {meant.config_name}?"
    known = {
        known
        for _, field in _fields(model_config_pb.ModelConfig.DESCRIPTOR, "")
        if field.name == name and field.cpp_type == FieldDescriptor.CPPTYPE_ENUM
        for known in field.enum_type.values_by_name
    }
    near = _closest(value.upper(), sorted(known), likeness=0.3)
    return f"did you mean {near}?" if near else ""


def _quoted_enum(found: re.Match[str]) -> str:
    return f"names of values stand without quotes: {found[1]}"


def _closest(word: str, known: Iterable[str], likeness: float = _CLOSE) -> str:
    import difflib  # which nobody needs who makes no mistake

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)), "")


def _messages() -> Mapping[str, Any]:
    found = {model_config_pb.ModelConfig.DESCRIPTOR.full_name: model_config_pb.ModelConfig.DESCRIPTOR}
    for _, field in _fields(model_config_pb.ModelConfig.DESCRIPTOR, ""):
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            found[field.message_type.full_name] = field.message_type
    return found


def _fields(descriptor: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every field that a configuration can have, with the path of the message that has it."""
    for field in descriptor.fields:
        yield path or "the configuration itself", field
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            inside = field.message_type
            if is_map(field) and inside.fields_by_name["value"].cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                inside = inside.fields_by_name["value"].message_type
                yield f"{path}.{field.name}".strip("."), field.message_type.fields_by_name["value"]
            yield from _fields(inside, f"{path}.{field.name}".strip("."))


_DISTRIBUTIONS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "sentence_transformers": "sentence-transformers",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""What is installed under another name than it is imported by."""


def _missing_package(found: re.Match[str]) -> str:
    module = found[1].partition(".")[0]
    name = _DISTRIBUTIONS.get(module, module)
    return (
        f"pip install {name} where the server runs; or name {name} in a requirements.txt beside config.pbtxt and serve with "
        "--allow-requirements=true; or give the model an environment of its own with EXECUTION_ENV_PATH"
    )


def _always(text: str) -> Callable[[re.Match[str]], str]:
    return lambda found: text


_TABLE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = tuple(
    (re.compile(pattern), hint if callable(hint) else _always(hint))
    for pattern, hint in (
        # the text format
        (r'has no field named "python_lib"', ""),
        (r'has no field named "generative_sequence"', "its name is iterative_sequence"),
        (r'^Message type "([\w.]+)" has no field named "(\w+)"', _no_field),
        (r'^Unknown enumeration value of "(\w+)" for field "(\w+)"', _unknown_value),
        (r"Expected integer or identifier, got: [\"'](\w+)[\"']", _quoted_enum),
        (
            r"Value: \"\w+\"\.$|Integer out of range \(\d+\)$",
            "a truth value is true or false; mind the range of a number",
        ),
        (r"^Non-repeated field", "keep one of them"),
        (r"another member of oneof", "keep one of them"),
        (r"^Interpreting non ascii codepoint 239", "save the file without a byte-order mark"),
        (r"^Interpreting non ascii codepoint", 'save the file as UTF-8; quotes are straight: "'),
        (r"^Expected identifier, got: /$", "a comment begins with #"),
        (r"^Expected identifier, got: [\"{]", "not JSON: a name stands without quotes, and no braces around the whole"),
        (r"^Expected identifier, got: \d", "several values stand in brackets: [ 4, 5 ]"),
        (r"^Expected integer, got: \]$|Expected \"\{\", found \"\]\"", "no comma behind the last element of a list"),
        (
            r"^Expected \"\{\", found",
            'braces belong here, as in dynamic_batching { } and in a parameter\'s value: { string_value: "8" }',
        ),
        (r"^Expected \",\", found", "elements of a list stand between commas"),
        (r"^Expected string, got: ", 'strings, numbers among them, stand in quotes: "1"'),
        (r"^Expected integer, got: [\"']", "numbers stand without quotes"),
        (r"^Expected \":\", found", "a colon stands between a name and its value"),
        (r"no \"[}>]\" closes this", "count the braces"),
        (r"need space|Need space", "put a blank between a number and what follows"),
        # the configuration as a whole
        (r"^unexpected directory name", "leave the name out, or rename the directory"),
        (r"^unexpected platform type", 'write backend: "python"'),
        (
            r"^Invalid model name: Could not determine backend",
            'put a model.py into <version>/, or write backend: "python"',
        ),
        (r"^Ensemble model .* empty backend type", 'an ensemble is platform: "ensemble" without a backend'),
        (r"^unexpected 'platform' and 'backend' pair", "leave the platform out"),
        (r"^'max_batch_size' must be non-negative", "0 is for a model that does not batch"),
        (r"preferred (batch )?size must be (positive|<=)", "between 1 and max_batch_size, or leave it out"),
        (r"^default priority level must be", "with priority_levels, default_priority_level is needed"),
        (r"^priority queue policy must have", "levels are counted from 1, the highest"),
        (
            r"^Only one priority level|^Queue policy can not have DELAY",
            "preserve_ordering keeps to the order of arrival",
        ),
        (
            r"^Response Cache does not",
            "response_cache { enable: true } is for models that answer once, and keep no state",
        ),
        (r"must specify either 'int32_false_true'", "for instance fp32_false_true: [ 0, 1 ]"),
        (r"specifies more than one from", "keep one of the three"),
        (r"must have exactly 2 entries", "the value for no, then the value for yes: [ 0, 1 ]"),
        (r"must not specify either 'int32_false_true'", "a correlation id has a data_type instead"),
        (r"^unexpected data type for control", "for instance data_type: TYPE_UINT64"),
        (r"is specified for multiple control kinds", "one control_input may have several controls"),
        (r"specifies multiple CONTROL_", "each kind of control goes to one tensor"),
        (r"^metric control must|^metric identifier must|^histogram options must", "see docs/metrics.md"),
        (r"has the unknown number", ""),
        # tensors
        (r"must specify 'data_type'", f"one of {_TYPES}"),
        (
            r"must specify 'dims'",
            "without the batch dimension, -1 for any size: dims: [ -1 ]; a single number is dims: [ 1 ]",
        ),
        (r"dimension(s)? must be integer >= 1", "the batch dimension is not written; -1 is any size"),
        (r"cannot have empty reshape for non-batching", "with max_batch_size 0 write the shape that the model sees"),
        (r"has different (size|number of variable-size)", "a reshape keeps the elements between variable dimensions"),
        (r"NHWC/NCHW require 3 dims", "height, width and channels, without the batch dimension; or leave format out"),
        (r"is specified more than once", "give each tensor a name of its own"),
        (r"expects 1 source input", 'source_input: "<an input>"'),
        (r"^Batching library path not found|^TRITON_BATCH_STRATEGY_PATH cannot", "remove TRITON_BATCH_STRATEGY_PATH"),
        (r"^unknown (source input|target output) name", "it must be declared among the model's tensors"),
        (r"^batch input data type", "the server writes whole numbers as INT32 or FP32"),
        (r"^label file path", "labels lie in the model's directory, and the path is relative to it"),
        (r"^allow_timeout_override without", "a request's timeout counts where it is shorter than the default"),
        (
            r"^(max_queue_delay_microseconds|minimum_slot_utilization) without",
            "a batch waits, at most for the delay, until so many of its rows are taken",
        ),
        (
            r"^field 'batch_(?:in|out)put.*' has no effect",
            'parameters { key: "BATCH_TENSORS" value { string_value: "yes" } } gives it one',
        ),
        (r"^warmup sample '.*' has no batch_size and is skipped$", "write batch_size: 1"),
        (r"^dynamic_batching without max_batch_size", "give the model a max_batch_size and a batch dimension"),
        (
            r"^no input and no output is declared",
            'declare them in config.pbtxt, as in input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }], or in '
            "auto_complete_config",
        ),
        # machine and files
        (
            r"^unable to find backend library for backend",
            "backends are python, those of --backend-directory, and shipped ones",
        ),
        (r"^unable to find backend library '", "leave runtime out"),
        (r"^unable to find 'libtritonrepoagent", "remove model_repository_agents"),
        (r"no GPUs are available", "this machine has none; KIND_AUTO takes GPUs where there are some"),
        (r"specifies one or more GPUs", "leave gpus out, or write kind: KIND_GPU"),
        (
            r"unsupported gpu id \d+\..* are: $",
            "this machine has none; KIND_AUTO without gpus takes GPUs where there are some",
        ),
        (
            r"^Resource count for",
            "raise --rate-limit-resource, or ask for less; with that option each resource must be named",
        ),
        (r"^Resource \".*\" is present as both", "write global: true everywhere, or nowhere"),
        (
            r"^at least one version must be available",
            "a version is a directory with a number, such as 1, in the model's",
        ),
        (r"^Python model file not found", "put it there, or name another with default_model_filename"),
        (r"^Model name must end with '\.py'", "default_model_filename is a Python file"),
        (
            r"^failed to open text file for read .*/config\.pbtxt: No such file",
            "write it, or serve without --disable-auto-complete-config",
        ),
        (r"^failed to open text file for read .*: No such file", "the file that the configuration names must be there"),
        (r"^failed to open text file for read .*: (?:Is a directory|it is )", "put a text file there"),
        (
            r"^Failed to get the canonical path",
            "the environment must be there; $$TRITON_MODEL_DIRECTORY is the model's own",
        ),
        (r"not unique across all model repositories", "rename one of them, or serve with --model-namespacing=true"),
        # what a model's code raises
        # The worker's text says Triton's name (worker/misnomers.py), and whose package this would be nobody knows.
        (r"^ModuleNotFoundError: No module named 'triton_python_backend[.']", ""),
        (r"^(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'", _missing_package),
        (r"^AttributeError: module '.*' has no attribute 'TritonPythonModel'", "the class of a model has that name"),
        # ensembles
        (r"models that are not available or ambiguous", "each step names a model of these repositories"),
        (
            r"required version -?\d+ is not loaded",
            "the version is there, and version_policy selects it; -1 is the newest",
        ),
        (r"^circular dependency", "an ensemble cannot contain itself"),
        (r"^ensemble (input|output) '.*' is not used", "no step maps it"),
        (r"^ensemble tensor '.*' is unused", "drop it from the map, or feed it to a step or an output"),
        (r"is not written", "a step must write it, from tensors that are written themselves"),
        (r"inconsistent (data type|shape)", "both ends of a tensor must agree"),
    )
)
