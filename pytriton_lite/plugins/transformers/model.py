"""The backend ``transformers``: serves a folder that ``save_pretrained`` has written, as the model's version.

The task follows from the architecture in config.json, or from the parameter ``task``: text-classification,
feature-extraction (embeddings) or text-generation. Weights are safetensors; no code of the folder is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pytriton_lite.core.errors import ErrorCode, InferenceError

BACKEND_SETTINGS: Mapping[str, str] = globals().get("BACKEND_SETTINGS", {})

Config = dict[str, Any]
"""A model configuration in its JSON form."""

MODEL_FILES = ("config.json",)
"""What a folder of a model has for certain; ``pytriton-lite check`` reads it, too."""

SAFE_FILES = ("*.safetensors",)
"""Weights that are no code; ``pytriton-lite check`` reads it, too."""

_CLASSIFICATION = "text-classification"
_EMBEDDING = "feature-extraction"
_GENERATION = "text-generation"
_TASKS = (_CLASSIFICATION, _EMBEDDING, _GENERATION)

_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")
"""Modules of sentence-transformers that are done here; the last does nothing when it does not learn."""
_MODE = "pooling_mode_"

_NO_LIMIT = 1 << 30
"""Tokens that nothing has: what a tokenizer says that knows no limit is more."""

_MAX_BATCH_SIZE = 32
_NEW_TOKENS = 64
"""Tokens that are generated at most, where neither the folder nor the request says otherwise."""

_GENERATED = {
    "max_new_tokens": int, "temperature": float, "top_p": float, "top_k": int, "do_sample": bool, "seed": int,
}  # fmt: skip
"""Parameters of a request for text-generation."""


class Folder:
    """What a folder of ``save_pretrained`` says of its model, without loading it."""

    def __init__(self, config: Config) -> None:
        self._model: str = config["name"]
        self.path = Path(pb_utils.get_model_dir())
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        try:
            self.config: Config = json.loads((self.path / MODEL_FILES[0]).read_text())
        except (OSError, ValueError) as error:
            raise self.refusal(f"expected the folder of a model of transformers in '{self.path}': {error}") from None
        self.task = parameters.get("task") or self._task()
        if self.task not in _TASKS:
            raise self.refusal(f"task '{self.task}' is not served, expected {', '.join(_TASKS)}")
        modules = self._modules()
        self.pooling = parameters.get("pooling") or self._pooling()
        normalize = parameters.get("normalize") or ("yes" if "Normalize" in modules else "no")
        if normalize not in ("yes", "no"):
            raise self.refusal(f"normalize '{normalize}' is not known, expected 'yes' or 'no'")
        self.normalizes = normalize == "yes"
        if self.task == _EMBEDDING:
            if self.pooling not in ("mean", "cls"):
                raise self.refusal(f"pooling '{self.pooling}' is not known, expected 'mean' or 'cls'")
            for module in modules:
                if module not in _MODULES:
                    known = ", ".join(_MODULES)
                    raise self.refusal(f"modules.json has a module '{module}', which is not served, only {known} are")
        self.allows_pickle = BACKEND_SETTINGS.get("allow-pickle", "false").lower() in ("true", "1")
        if not self.allows_pickle and not any(self.path.glob(SAFE_FILES[0])):
            raise self.refusal(
                f"no {SAFE_FILES[0]} is in '{self.path}'. Other weights are pickles, which are code: write it anew with "
                "save_pretrained, or allow it, if you know who has made it: --backend-config=transformers,allow-pickle=true"
            )

    def refusal(self, text: str) -> InferenceError:
        return InferenceError(ErrorCode.INVALID_ARG, f"model '{self._model}': {text}")

    def _task(self) -> str:
        (architecture, *_) = self.config.get("architectures") or [""]
        if architecture.endswith("ForSequenceClassification"):
            return _CLASSIFICATION
        if architecture.endswith(("ForCausalLM", "LMHeadModel")):
            return _GENERATION
        if architecture.endswith(("Model", "ForMaskedLM")):
            return _EMBEDDING
        raise self.refusal(
            f"its architecture is '{architecture}', which says nothing of a task that is served; expected parameter 'task' "
            f"with one of {', '.join(_TASKS)}"
        )

    def _pooling(self) -> str:
        """How tokens become one vector, as 1_Pooling of sentence-transformers says: the mean where there is no such file.

        A member for each mode is true or false; newer versions write the mode itself.
        """
        pooling = self._document("1_Pooling/config.json")
        if pooling is None:
            return "mean"
        said = [key.removeprefix(_MODE) for key, is_on in pooling.items() if is_on and key.startswith(_MODE)]
        modes = pooling.get("pooling_mode") or [mode.removesuffix("s").removesuffix("_token") for mode in said]
        return modes if isinstance(modes, str) else " and ".join(modes) or "mean"

    def _document(self, name: str) -> Any:
        """A JSON document of sentence-transformers; None where it is not there, or is none."""
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            return None

    def _modules(self) -> list[str]:
        """What sentence-transformers does with a text, one after another; nothing elsewhere."""
        modules = self._document("modules.json")
        return [] if modules is None else [module.get("type", "").rpartition(".")[2] for module in modules]

    @property
    def longest(self) -> int:
        """Tokens at which sentence-transformers cuts a text off."""
        settings = self._document("sentence_bert_config.json")
        most = None if settings is None else settings.get("max_seq_length")
        return most if isinstance(most, int) else _NO_LIMIT

    def outputs(self) -> list[tuple[str, str, int]]:
        """(name, type, size)"""
        if self.task == _CLASSIFICATION:
            labels = len(self.config.get("id2label") or {0: "", 1: ""})
            return [("label", "TYPE_STRING", 1), ("score", "TYPE_FP32", 1), ("probabilities", "TYPE_FP32", labels)]
        if self.task == _EMBEDDING:
            names = ("hidden_size", "dim", "d_model", "n_embd")
            return [("embedding", "TYPE_FP32", next((self.config[name] for name in names if name in self.config), -1))]
        return [("generated_text", "TYPE_STRING", 1)]


class TritonPythonModel:
    """What the worker calls."""

    @staticmethod
    def auto_complete_config(completion: Any) -> Any:
        """Fill in inputs, outputs, max_batch_size and dynamic batching by config.json, where they are missing."""
        config: Config = completion.as_dict()
        folder = Folder(config)
        if not config["max_batch_size"] and not (config["input"] and config["output"]):
            completion.set_max_batch_size(_MAX_BATCH_SIZE)
            completion.set_dynamic_batching()
        if not config["input"]:
            completion.add_input({"name": "text", "data_type": "TYPE_STRING", "dims": [1]})
        if not config["output"]:
            for name, data_type, size in folder.outputs():
                completion.add_output({"name": name, "data_type": data_type, "dims": [size]})
        return completion

    def initialize(self, args: Mapping[str, str]) -> None:
        config: Config = json.loads(args["model_config"])
        folder = self._folder = Folder(config)
        known = [name for name, _, _ in folder.outputs()]
        for tensor in config["output"]:
            if tensor["name"] not in known:
                raise folder.refusal(f"it has no output '{tensor['name']}', expected {' or '.join(known)}")
        if [(tensor["name"], tensor["data_type"]) for tensor in config["input"]] != [("text", "TYPE_STRING")]:
            raise folder.refusal("expected one input, 'text' of TYPE_STRING")
        try:
            import torch
            import transformers
        except ImportError as error:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"backend 'transformers' cannot be imported ({error}): pip install 'pytriton-lite[transformers]'",
            ) from None
        self._torch = torch
        _tell_version(folder.config.get("transformers_version", ""), transformers.__version__, args["model_name"])
        kind, device_id = args["model_instance_kind"], args["model_instance_device_id"]
        self._device = torch.device(f"cuda:{device_id}" if kind == "GPU" else "cpu")
        options = {"local_files_only": True, "trust_remote_code": False}
        classes = {
            _CLASSIFICATION: transformers.AutoModelForSequenceClassification,
            _EMBEDDING: transformers.AutoModel,
            _GENERATION: transformers.AutoModelForCausalLM,
        }
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder.path, **options)
            self._model = classes[folder.task].from_pretrained(
                folder.path, use_safetensors=None if folder.allows_pickle else True, **options
            )
        except Exception as error:
            lines = str(error).strip().splitlines() or ["no text"]
            raise folder.refusal(f"transformers cannot load it: {type(error).__name__}: {lines[0]}") from None
        self._model.eval().to(self._device)
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        if self._model.config.pad_token_id is None:
            self._model.config.pad_token_id = self._tokenizer.pad_token_id  # a classifier of a decoder looks for it
        if folder.task == _GENERATION:
            # What is generated follows the text itself, the end of it where it is too long.
            self._tokenizer.padding_side = self._tokenizer.truncation_side = "left"
        self._longest = min(self._tokenizer.model_max_length, folder.longest)
        self._positions = _positions(self._model)
        self._labels = {int(key): value for key, value in (self._model.config.id2label or {}).items()}

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [each for group in self._groups(requests) for each in self._answer(group)]

    def _groups(self, requests: Sequence[Any]) -> list[list[Any]]:
        """Requests that run together, in order: all of them, but for generation only neighbours with the same parameters.

        One with a seed runs alone: samples are drawn for all texts together, so that its own would depend on its neighbours.
        """
        groups: list[list[Any]] = []
        last = None
        for request in requests:
            parameters = request.parameters() if self._folder.task == _GENERATION else ""
            if groups and parameters == last and not _has_seed(parameters):
                groups[-1].append(request)
            else:
                groups.append([request])
            last = parameters
        return groups

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        try:
            with self._torch.inference_mode():
                return self._run(requests)
        except Exception as error:
            if len(requests) > 1:  # one may be at fault
                return [response for request in requests for response in self._answer([request])]
            text = error.message if isinstance(error, InferenceError) else f"{type(error).__name__}: {error}"
            is_callers = isinstance(error, (InferenceError, ValueError))
            code = pb_utils.TritonError.INVALID_ARG if is_callers else pb_utils.TritonError.INTERNAL
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))]

    def _run(self, requests: Sequence[Any]) -> list[Any]:
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        texts = [data.decode() for array in arrays for data in array.flat]
        whole = self._classify(texts) if self._folder.task == _CLASSIFICATION else self._other(texts, requests[0])
        ends = np.cumsum([array.size for array in arrays]).tolist()
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, values[start:end].reshape(*array.shape[:-1], values.shape[1]))
                    for name, values in whole.items()
                    if name in request.requested_output_names()
                ]
            )
            for request, array, start, end in zip(requests, arrays, [0, *ends], ends)
        ]

    def _other(self, texts: list[str], request: Any) -> dict[str, Any]:
        if self._folder.task == _EMBEDDING:
            return self._embed(texts)
        options = _generation(request.parameters(), self._positions)
        seed = options.pop("seed", None)
        if seed is not None:
            self._torch.manual_seed(seed)
        return self._generate(texts, options)

    def _encode(self, texts: list[str], *, new_tokens: int = 0) -> Any:
        """The tokens of *texts*, cut so that the model has positions for them, and for *new_tokens* behind them."""
        longest = min(self._longest, self._positions - new_tokens)
        options = {"truncation": True, "max_length": longest} if longest < _NO_LIMIT else {}
        return self._tokenizer(texts, padding=True, return_tensors="pt", **options).to(self._device)

    def _classify(self, texts: list[str]) -> dict[str, Any]:
        logits = self._model(**self._encode(texts)).logits.float()
        kind = self._model.config.problem_type
        if kind == "regression":
            scores = logits
        elif kind == "multi_label_classification" or logits.shape[1] == 1:
            scores = logits.sigmoid()
        else:
            scores = logits.softmax(-1)
        probabilities = scores.cpu().numpy()
        best = probabilities.argmax(axis=1)
        labels = [self._labels.get(int(each), str(each)).encode() for each in best]
        return {
            "label": np.array(labels, object).reshape(-1, 1),
            "score": probabilities[np.arange(len(best)), best].reshape(-1, 1),
            "probabilities": probabilities,
        }

    def _embed(self, texts: list[str]) -> dict[str, Any]:
        encoded = self._encode(texts)
        states = self._model(**encoded).last_hidden_state.float()
        if self._folder.pooling == "cls":
            pooled = states[:, 0]
        else:
            mask = encoded["attention_mask"].unsqueeze(-1).float()
            pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        if self._folder.normalizes:
            pooled = self._torch.nn.functional.normalize(pooled, dim=1)
        return {"embedding": pooled.cpu().numpy()}

    def _generate(self, texts: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
        encoded = self._encode(texts, new_tokens=options["max_new_tokens"])
        if not encoded["attention_mask"].any(dim=1).all():
            raise InferenceError(ErrorCode.INVALID_ARG, "a text has no tokens, and nothing can be generated behind it")
        encoded.pop("token_type_ids", None)
        made = self._model.generate(**encoded, pad_token_id=self._tokenizer.pad_token_id, **options)
        new = self._tokenizer.batch_decode(made[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
        return {"generated_text": np.array([text.encode() for text in new], object).reshape(-1, 1)}


def _positions(model: Any) -> int:
    """Tokens for which *model* has positions, as its configuration says; those of RoBERTa begin behind that of the padding."""
    count = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(count, int) or count < 1:
        return _NO_LIMIT
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return count - int(module.padding_idx) - 1
    return count


def _generation(text: str, positions: int) -> dict[str, Any]:
    """The options of generate in the parameters of a request to a model that has so many *positions* for tokens.

    Raises InferenceError for one of another type, and where none would be left for the request's text: a model that looks
    them up in a table fails beyond its end, and on a GPU all that comes afterwards fails, too.
    """
    given = json.loads(text) if text else {}
    if "max_tokens" in given:  # its name in the routes of OpenAI's API
        given.setdefault("max_new_tokens", given["max_tokens"])
    options: dict[str, Any] = {"max_new_tokens": min(_NEW_TOKENS, positions // 2), "do_sample": False}
    for name, kind in _GENERATED.items():
        if name in given:
            value = given[name]
            if not isinstance(value, (int, float) if kind is float else kind):
                raise InferenceError(
                    ErrorCode.INVALID_ARG, f"parameter '{name}' must be a {kind.__name__}, got {json.dumps(value)}"
                )
            options[name] = value
    if options["max_new_tokens"] >= positions:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"parameter 'max_new_tokens' must be less than {positions}, the model's positions, got "
            f"{options['max_new_tokens']}",
        )
    if "do_sample" not in given and {"temperature", "top_p", "top_k"} & given.keys():
        options["do_sample"] = given.get("temperature") != 0
    if options.get("top_k") == -1:
        options["top_k"] = 0  # all tokens: what clients say with -1 the library says with 0
    if not options["do_sample"] and given.get("temperature") == 0:
        del options["temperature"]  # which clients say for the likeliest token each time, and the library refuses
    return options


def _has_seed(parameters: str) -> bool:
    return bool(parameters) and "seed" in json.loads(parameters)


def _tell_version(written: str, here: str, model: str) -> None:
    if written and written.split(".")[0] != here.split(".")[0]:
        pb_utils.Logger.log_warn(f"model '{model}' was written by transformers {written}, and is read by {here}")
