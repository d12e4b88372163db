"""Models that declare themselves to clients of OpenAI's API, one for each way to do that."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness import write_model

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role not in ["system", "user", "assistant"] -%}{{ raise_exception("unknown role " ~ message.role) }}{%- endif -%}
<{{ message.role }}> {{ message.content }}
{% endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}
"""

CALLS_TEMPLATE = """\
{%- for tool in tools or [] -%}<tool {{ tool.function.name }}>{%- endfor -%}
{%- for message in messages -%}
<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls -%}<call {{ call.function.name }} {{ call.function.arguments | tojson }}>{%- endfor -%}
{%- endfor -%}
"""

TRAINED_TEMPLATE = """\
{%- if tools is not none or documents is not none -%}{{ raise_exception("there are none") }}{%- endif -%}
{%- for message in messages -%}
<{{ message.role }}>
{%- if message.role == "assistant" -%}
{%- generation -%}{%- set said = message.content -%}{{ said }}</s>{%- endgeneration -%}
{%- else -%}{{ message.content }}{%- endif -%}
{%- endfor -%}
{{ said }}
"""

SCRIBE = """
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def value(request, name, default):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return default if tensor is None else tensor.as_numpy().ravel()[0]

    def text(name, value):
        return pb_utils.Tensor(name, np.array([value], np.object_))

    def count(name, value):
        return pb_utils.Tensor(name, np.array([value], np.int32))

    class TritonPythonModel:
        '''Writes the words of the prompt, one for each response: all of them, or max_tokens.'''
        def execute(self, requests):
            for request in requests:
                prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
                words, most = prompt.split(" "), value(request, "max_tokens", 1000)
                if prompt == "fail":
                    error = pb_utils.TritonError("this prompt fails", pb_utils.TritonError.INVALID_ARG)
                    sender = request.get_response_sender()
                    sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    continue
                sender = request.get_response_sender()
                written = words[:most]
                for at, word in enumerate(written):
                    if word == "break":
                        error = pb_utils.TritonError("it broke in the middle", pb_utils.TritonError.INTERNAL)
                        sender.send(pb_utils.InferenceResponse(error=error))
                        break
                    piece = word if at == 0 else " " + word
                    sender.send(pb_utils.InferenceResponse([
                        text("text_output", piece.encode()),
                        count("prompt_tokens", len(words)),
                        count("completion_tokens", at + 1),
                    ]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SCRIBE_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [
      { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    ]
    output [
      { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
      { name: "completion_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
    ]
    parameters { key: "OPENAI" value { string_value: "chat, completion" } }
"""

AGENT = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def given(request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy().ravel()[0]

    def text(name, value):
        return pb_utils.Tensor(name, np.array([value.encode()], np.object_))

    class TritonPythonModel:
        '''Says what it was given, or calls the first tool, or what the last message lists as calls.'''
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            messages = json.loads(given(request, "messages"))
            tools = given(request, "tools")
            logprobs = given(request, "logprobs")
            said, calls, probabilities = messages[-1]["content"], [], []
            if tools is not None and messages[-1]["role"] == "user":
                said, calls = "", [{"name": json.loads(tools)[0]["function"]["name"], "arguments": {"city": "Oslo"}}]
            elif said.startswith("["):
                said, calls = "", json.loads(said)
            if given(request, "response_format") is not None:
                said = given(request, "response_format").decode()
            if logprobs is not None and logprobs is not np.False_:
                others = [{"token": str(n), "logprob": -float(n)} for n in range(int(logprobs))]
                probabilities = [{"token": word, "logprob": -0.5, "top_logprobs": others} for word in said.split()]
            return pb_utils.InferenceResponse([
                text("text", said), text("tool_calls", json.dumps(calls)), text("logprobs", json.dumps(probabilities)),
            ])
"""
AGENT_CONFIG = """
    backend: "python"
    input [
      { name: "messages" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "tools" data_type: TYPE_STRING dims: [ 1 ] optional: true },
      { name: "tool_choice" data_type: TYPE_STRING dims: [ 1 ] optional: true },
      { name: "response_format" data_type: TYPE_STRING dims: [ 1 ] optional: true },
      { name: "logprobs" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    ]
    output [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "tool_calls" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "logprobs" data_type: TYPE_STRING dims: [ 1 ] }
    ]
    parameters { key: "OPENAI" value { string_value: "chat" } }
"""

ECHO = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''Writes the prompt, the whole of it, and calls nothing.'''
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            prompt = pb_utils.get_input_tensor_by_name(request, "prompt").as_numpy()
            calls = np.array([b"[]"], np.object_)
            return pb_utils.InferenceResponse([pb_utils.Tensor("text", prompt), pb_utils.Tensor("tool_calls", calls)])
"""
ECHO_CONFIG = """
    backend: "python"
    input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "tool_calls" data_type: TYPE_STRING dims: [ 1 ] }
    ]
    parameters { key: "OPENAI" value { string_value: "chat" } }
"""

KNOBS = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''Says what it was given beside the messages.'''
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            given = {tensor.name(): json.loads(tensor.as_numpy()[0]) for tensor in request.inputs()}
            del given["messages"]
            text = np.array([json.dumps(given).encode()], np.object_)
            return pb_utils.InferenceResponse([pb_utils.Tensor("text", text)])
"""
KNOBS_CONFIG = """
    backend: "python"
    input [
      { name: "messages" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "chat_template_kwargs" data_type: TYPE_STRING dims: [ 1 ] optional: true },
      { name: "metadata" data_type: TYPE_STRING dims: [ 1 ] optional: true },
      { name: "reasoning" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    ]
    output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
    parameters { key: "OPENAI" value { string_value: "chat" } }
"""

MIRROR = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''Says what it was given beside the prompt.'''
        def execute(self, requests):
            answers = []
            for request in requests:
                said = json.loads(request.parameters())
                for name in ("TEMPERATURE", "seed", "stop", "bias"):
                    tensor = pb_utils.get_input_tensor_by_name(request, name)
                    if tensor is not None:
                        value = tensor.as_numpy().ravel().tolist()
                        said[name] = [one.decode() if isinstance(one, bytes) else one for one in value]
                said["id"] = request.request_id()
                text = np.array([[json.dumps(said).encode()]], np.object_)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("ANSWER", text)]))
            return answers
"""
MIRROR_CONFIG = """
    backend: "python"
    max_batch_size: 4
    dynamic_batching { priority_levels: 2 default_priority_level: 2 }
    input [
      { name: "QUESTION" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "TEMPERATURE" data_type: TYPE_FP32 dims: [ 1 ] },
      { name: "seed" data_type: TYPE_INT64 dims: [ 1 ] optional: true },
      { name: "stop" data_type: TYPE_STRING dims: [ -1 ] optional: true },
      { name: "bias" data_type: TYPE_INT32 dims: [ -1 ] optional: true }
    ]
    output [ { name: "ANSWER" data_type: TYPE_STRING dims: [ 1 ] } ]
    parameters { key: "OPENAI" value { string_value: "completion" } }
    parameters { key: "OPENAI_TENSORS" value { string_value: "prompt=QUESTION, text=ANSWER" } }
    parameters { key: "OPENAI_DEFAULTS" value { string_value: "temperature=0.25, max_tokens=77" } }
"""

COUNTER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''Counts three tokens, or as many as the prompt says where that is no finite number.'''
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            prompt = pb_utils.get_input_tensor_by_name(request, "prompt").as_numpy()[0]
            count = float(prompt) if prompt in (b"nan", b"inf") else 3.0
            return pb_utils.InferenceResponse([
                pb_utils.Tensor("text", np.array([b"fine"], np.object_)),
                pb_utils.Tensor("prompt_tokens", np.array([1], np.int32)),
                pb_utils.Tensor("completion_tokens", np.array([count], np.float32)),
            ])
"""
COUNTER_CONFIG = """
    backend: "python"
    input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
      { name: "completion_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
    ]
    parameters { key: "OPENAI" value { string_value: "completion" } }
"""

ENDLESS = """
    import threading
    import time
    from pathlib import Path
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''Writes until nobody wants more, and says so in a file whose name is the prompt.'''
        def execute(self, requests):
            for request in requests:
                prompt = pb_utils.get_input_tensor_by_name(request, "prompt").as_numpy()[0].decode()
                threading.Thread(target=self.write, args=(request.get_response_sender(), prompt)).start()

        def write(self, sender, prompt):
            at = 0
            if Path(prompt + ".begun").exists():
                Path(prompt + ".begun").write_text("begun")
            while not sender.is_cancelled():
                text = pb_utils.Tensor("text", np.array([f"{at} ".encode()], np.object_))
                sender.send(pb_utils.InferenceResponse([text]))
                at += 1
                time.sleep(0.001)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            if prompt.startswith("/"):
                Path(prompt).write_text("cancelled")
"""
ENDLESS_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
    parameters { key: "OPENAI" value { string_value: "completion" } }
"""

FILLER = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def given(request, name):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return None if tensor is None else tensor.as_numpy().ravel().tolist()

    def text(name, value):
        return pb_utils.Tensor(name, np.array([value.encode()], np.object_))

    class TritonPythonModel:
        '''Writes two words and the suffix, a response for each; its tokens' logprobs where they are wanted.'''
        def execute(self, requests):
            for request in requests:
                suffix, wanted = given(request, "suffix"), given(request, "logprobs")
                sender = request.get_response_sender()
                for word in ["one", " two", *([] if suffix is None else [suffix[0].decode()])]:
                    outputs = [text("text", word)]
                    if wanted is not None:
                        others = [{"token": f"{word}{at}", "logprob": -at - 1.0} for at in range(wanted[0])]
                        said = {"token": word, "logprob": -0.5, "top_logprobs": others}
                        outputs.append(text("logprobs", json.dumps([said])))
                    sender.send(pb_utils.InferenceResponse(outputs))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FILLER_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [
      { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] optional: true },
      { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ -1 ] optional: true },
      { name: "suffix" data_type: TYPE_STRING dims: [ 1 ] optional: true },
      { name: "logprobs" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    ]
    output [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "logprobs" data_type: TYPE_STRING dims: [ 1 ] }
    ]
    parameters { key: "OPENAI" value { string_value: "completion" } }
"""

COMPLETION_CONFIG = SCRIBE_CONFIG.replace("chat, completion", "completion")
UNDECLARED_CONFIG = SCRIBE_CONFIG.rpartition("    parameters")[0]

EMBEDDER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''The length of a text, how many a's it has, and how many dimensions are wanted; zeros behind them.'''
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()
            if b"fail" in texts:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.UNAVAILABLE))
            wanted = pb_utils.get_input_tensor_by_name(request, "dimensions")
            vectors = np.zeros((len(texts), 4 if wanted is None else int(wanted.as_numpy().max())), np.float32)
            vectors[:, 0] = [len(text) for text in texts]
            vectors[:, 1] = [text.count(b"a") for text in texts]
            vectors[:, 2] = len(texts)
            counts = np.array([[len(text.split())] for text in texts], np.int32)
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor("embedding", vectors), pb_utils.Tensor("prompt_tokens", counts)]
            )
"""
EMBEDDER_CONFIG = """
    backend: "python"
    max_batch_size: 4
    dynamic_batching {}
    input [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "dimensions" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    ]
    output [
      { name: "embedding" data_type: TYPE_FP32 dims: [ -1 ] },
      { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
    ]
    parameters { key: "OPENAI" value { string_value: "embedding" } }
"""
SINGLE_CONFIG = """
    backend: "python"
    input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "embedding" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
    parameters { key: "OPENAI" value { string_value: "embedding" } }
"""

RANKER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''A document fits a query by the letters that they share; nothing fits 'nothing', and '?' in no way that is known.'''
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            queries, documents = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel() for name in ("query", "documents")
            )
            scores = [
                float("nan") if document == b"?" else len(set(query) & set(document))
                for query, document in zip(queries, documents) if query != b"nothing"
            ]
            return pb_utils.InferenceResponse([pb_utils.Tensor("score", np.array(scores, np.float32))])
"""
RANKER_CONFIG = """
    backend: "python"
    input [
      { name: "query" data_type: TYPE_STRING dims: [ -1 ] },
      { name: "documents" data_type: TYPE_STRING dims: [ -1 ] }
    ]
    output [ { name: "score" data_type: TYPE_FP32 dims: [ -1 ] } ]
    parameters { key: "OPENAI" value { string_value: "rerank" } }
"""

LISTENER = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def text(name, value):
        return pb_utils.Tensor(name, np.array([value.encode()], np.object_))

    class TritonPythonModel:
        '''Says how loud the first and the second half of the audio are, a response for each.'''
        def execute(self, requests):
            for request in requests:
                audio = pb_utils.get_input_tensor_by_name(request, "audio").as_numpy()
                rate = pb_utils.get_input_tensor_by_name(request, "sample_rate").as_numpy()[0]
                language = pb_utils.get_input_tensor_by_name(request, "language")
                sender = request.get_response_sender()
                half = len(audio) // 2
                for at, part in enumerate((audio[:half], audio[half:])):
                    said = f"{np.abs(part).max():.2f} "
                    segment = {"start": at * half / rate, "end": (at + 1) * half / rate, "text": said}
                    sender.send(pb_utils.InferenceResponse([
                        text("text", said),
                        text("segments", json.dumps([segment])),
                        text("language", "en" if language is None else language.as_numpy()[0].decode()),
                        pb_utils.Tensor("duration", np.array([len(audio) / rate], np.float32)),
                    ]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
LISTENER_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [
      { name: "audio" data_type: TYPE_FP32 dims: [ -1 ] },
      { name: "sample_rate" data_type: TYPE_INT32 dims: [ 1 ] },
      { name: "language" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    ]
    output [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "segments" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "language" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "duration" data_type: TYPE_FP32 dims: [ 1 ] }
    ]
    parameters { key: "OPENAI" value { string_value: "transcription" } }
"""
FILE_READER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''Says how many bytes the file has, and what else it was given.'''
        def execute(self, requests):
            answers = []
            for request in requests:
                data = pb_utils.get_input_tensor_by_name(request, "file").as_numpy()[0]
                others = [f" {one.name()} {one.as_numpy()[0]}" for one in request.inputs() if one.name() != "file"]
                said = np.array([(str(len(data)) + "".join(sorted(others))).encode()], np.object_)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("text", said)]))
            return answers
"""
FILE_READER_CONFIG = """
    backend: "python"
    input [
      { name: "file" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "beams" data_type: TYPE_INT32 dims: [ 1 ] optional: true },
      { name: "gain" data_type: TYPE_FP32 dims: [ 1 ] optional: true },
      { name: "trims" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    ]
    output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
    parameters { key: "OPENAI" value { string_value: "transcription" } }
"""

STENOGRAPHER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''Says its parameters, and no segments.'''
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            said = {"text": request.parameters(), "segments": "[]"}
            return pb_utils.InferenceResponse([
                pb_utils.Tensor(name, np.array([text.encode()], np.object_)) for name, text in said.items()
            ])
"""
STENOGRAPHER_CONFIG = """
    backend: "python"
    input [ { name: "file" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [
      { name: "text" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "segments" data_type: TYPE_STRING dims: [ 1 ] }
    ]
    parameters { key: "OPENAI" value { string_value: "transcription" } }
    parameters { key: "OPENAI_DEFAULTS" value { string_value: "language=de, temperature=0.25" } }
"""

ENSEMBLE_CONFIG = """
    platform: "ensemble"
    input [ { name: "QUESTION" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [
      { name: "ANSWER" data_type: TYPE_STRING dims: [ 1 ] },
      { name: "completion_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
      { name: "prompt_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
    ]
    ensemble_scheduling {
      step [
        {
          model_name: "scribe"
          model_version: -1
          input_map { key: "text_input" value: "QUESTION" }
          output_map { key: "text_output" value: "ANSWER" }
          output_map { key: "prompt_tokens" value: "prompt_tokens" }
          output_map { key: "completion_tokens" value: "completion_tokens" }
        }
      ]
    }
    parameters { key: "OPENAI" value { string_value: "completion" } }
    parameters { key: "OPENAI_TENSORS" value { string_value: "prompt=QUESTION, text=ANSWER" } }
"""

_FOR = "{% for a in range(99999) %}"
_END = "{% endfor %}"
BAD_TEMPLATES = {
    "looping": _FOR * 3 + _END * 3,
    "reading": "{% include '/etc/passwd' %}",
    "escaping": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "growing": "{% set all = namespace(text='x' * 1000000) %}" + _FOR + "{% set all.text = all.text * 2 %}" + _END,
    "endless_text": _FOR + "{{ 'x' * 100000 }}" + _END,
    "wrong": "{{ messages.nothing.at_all }}",
}


def write_openai_models(repository: Path) -> None:
    """All of these."""
    scribe = write_model(repository, "scribe", SCRIBE, SCRIBE_CONFIG)
    (scribe / "chat_template.jinja").write_text(TEMPLATE)
    write_model(repository, "undeclared", SCRIBE, UNDECLARED_CONFIG)
    write_model(repository, "agent", AGENT, AGENT_CONFIG)
    echo = write_model(repository, "echo", ECHO, ECHO_CONFIG)
    (echo / "chat_template.jinja").write_text(CALLS_TEMPLATE)
    several = write_model(repository, "several_templates", ECHO, ECHO_CONFIG)
    templates = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": CALLS_TEMPLATE}]
    (several / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    trained = write_model(repository, "trained", ECHO, ECHO_CONFIG)
    (trained / "chat_template.jinja").write_text(TRAINED_TEMPLATE)
    chooses = '  { name: "tool_choice" data_type: TYPE_STRING dims: [ 1 ] optional: true },\n'
    write_model(repository, "eager", AGENT, AGENT_CONFIG.replace(f"    {chooses}", ""))
    counts = '{ name: "logprobs" data_type: TYPE_INT32'
    write_model(repository, "yes_or_no", AGENT, AGENT_CONFIG.replace(counts, counts.replace("INT32", "BOOL")))
    write_model(repository, "knobs", KNOBS, KNOBS_CONFIG)
    write_model(repository, "mirror", MIRROR, MIRROR_CONFIG)
    write_model(repository, "counter", COUNTER, COUNTER_CONFIG)
    write_model(repository, "endless", ENDLESS, ENDLESS_CONFIG)
    write_model(repository, "filler", FILLER, FILLER_CONFIG)
    write_model(repository, "ensemble", config=ENSEMBLE_CONFIG)
    write_model(repository, "embedder", EMBEDDER, EMBEDDER_CONFIG)
    write_model(repository, "single", EMBEDDER, SINGLE_CONFIG)
    write_model(repository, "ranker", RANKER, RANKER_CONFIG)
    write_model(repository, "listener", LISTENER, LISTENER_CONFIG)
    write_model(repository, "stenographer", STENOGRAPHER, STENOGRAPHER_CONFIG)
    write_model(repository, "file_reader", FILE_READER, FILE_READER_CONFIG)
    for name, template in BAD_TEMPLATES.items():
        folder = write_model(repository, name, SCRIBE, SCRIBE_CONFIG)
        (folder / "chat_template.jinja").write_text(template)
