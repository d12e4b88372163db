"""What a model says of itself to clients of OpenAI's API, and what of it is wrong (docs/openai.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytriton_lite.config.openai import (
    INPUT_FIELDS,
    OUTPUT_FIELDS,
    ChatTemplate,
    broken_openai,
    declaration_of,
    read_chat_template,
)
from pytriton_lite.config.text import parse_model_config
from tests.harness import PROJECT

NOWHERE = Path("/nonexistent")
TEXTS = {"prompt": "TYPE_STRING"}, {"text": "TYPE_STRING"}


def config(
    inputs: dict[str, str],
    outputs: dict[str, str],
    *,
    optional: tuple[str, ...] = (),
    more: str = "",
    **parameters: str,
) -> str:
    """A configuration; a type may have dims behind a blank."""

    def tensor(name: str, text: str) -> str:
        datatype, _, dims = text.partition(" ")
        is_optional = " optional: true" if name in optional else ""
        return f'{{ name: "{name}" data_type: {datatype} dims: [ {dims or 1} ]{is_optional} }}'

    given = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()
    )
    return (
        f'name: "m" input [ {", ".join(tensor(*one) for one in inputs.items())} ] '
        f"output [ {', '.join(tensor(*one) for one in outputs.items())} ] {given} {more}"
    )


def broken(text: str, folder: Path = NOWHERE) -> list[str]:
    return [error.message for error in broken_openai(parse_model_config(text, source="x"), folder)]


def test_usual_names_need_one_line() -> None:
    inputs = {"TEXT_INPUT": "TYPE_STRING", "Max_Tokens": "TYPE_INT32", "runtime_top_p": "TYPE_FP32"}
    text = config(inputs, {"TEXT_OUTPUT": "TYPE_STRING"}, optional=("Max_Tokens",), OPENAI="completion")
    assert broken(text) == []
    found = declaration_of(parse_model_config(text, source="x"))
    assert found is not None
    assert found.inputs == {"prompt": "TEXT_INPUT", "max_tokens": "Max_Tokens", "top_p": "runtime_top_p"}
    assert found.outputs == {"text": "TEXT_OUTPUT"}


def test_tensors_that_are_called_otherwise_are_named() -> None:
    text = config(
        {"Q": "TYPE_STRING", "text": "TYPE_STRING"},
        {"A": "TYPE_STRING"},
        optional=("text",),
        OPENAI="completion",
        OPENAI_TENSORS="prompt=Q, text = A",
        OPENAI_DEFAULTS="temperature=0.5,max_tokens=7",
    )
    assert broken(text) == []
    found = declaration_of(parse_model_config(text, source="x"))
    assert found is not None
    assert (found.inputs, found.outputs) == ({"prompt": "Q"}, {"text": "A"})
    assert found.defaults == {"temperature": 0.5, "max_tokens": 7}


def test_a_model_without_the_parameter_declares_nothing() -> None:
    text = config(*TEXTS)
    assert broken(text) == [] and declaration_of(parse_model_config(text, source="x")) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (config(*TEXTS, OPENAI="talk"), "expected chat, completion, embedding, rerank, transcription, or several with commas"),
        (config(*TEXTS, OPENAI="completion, embedding"), "chat and completion go together, any other task"),
        (config(*TEXTS, OPENAI_TENSORS="prompt=x"), "OPENAI_TENSORS of model 'm' means nothing without OPENAI"),
        (config(*TEXTS, OPENAI_DEFAULTS="top_k=1"), "OPENAI_DEFAULTS of model 'm' means nothing without OPENAI"),
        (config({"Q": "TYPE_STRING"}, TEXTS[1], OPENAI="completion"), "needs an input for 'prompt' or 'prompt_tokens'"),
        (config(TEXTS[0], {"A": "TYPE_STRING"}, OPENAI="completion"), "name it in OPENAI_TENSORS: text=<output>"),
        (config(*TEXTS, OPENAI="completion", OPENAI_TENSORS="prompt"), "expected <field>=<tensor>"),
        (config(*TEXTS, OPENAI="completion", OPENAI_TENSORS="promt=prompt"), "'promt' is no field; the fields of its"),
        (config(*TEXTS, OPENAI="completion", OPENAI_TENSORS="prompt=x"), "the model has no tensor 'x'"),
        (config(*TEXTS, OPENAI="completion", OPENAI_TENSORS="prompt=text"), "'prompt' is an input, and 'text' is not"),
        (config({"prompt": "TYPE_FP32"}, TEXTS[1], OPENAI="completion"), "which is TYPE_STRING; it is TYPE_FP32"),
        (config({"prompt": "TYPE_STRING 2"}, TEXTS[1], OPENAI="completion"), "which is one element; its dims are [ 2 ]"),
        (config({**TEXTS[0], "X": "TYPE_FP32"}, TEXTS[1], OPENAI="completion"), "'X' is required, and no field is for it"),
        (config({**TEXTS[0], "top_k": "TYPE_INT32"}, TEXTS[1], OPENAI="completion"), "give it a value in OPENAI_DEFAULTS"),
        (config({**TEXTS[0], "suffix": "TYPE_STRING"}, TEXTS[1], OPENAI="completion"), "'suffix' out: make it optional"),
        (
            config({"file": "TYPE_STRING", "sample_rate": "TYPE_INT32"}, TEXTS[1], OPENAI="transcription"),
            "input 'sample_rate' is required, and a request may leave 'sample_rate' out: make it optional",
        ),
        (config(*TEXTS, OPENAI="completion", OPENAI_DEFAULTS="max_tokens=many"), "'max_tokens': expected a whole number"),
        (
            config({**TEXTS[0], "runtime_top_k": "TYPE_UINT32"}, TEXTS[1], OPENAI="completion", OPENAI_DEFAULTS="top_k=-1"),
            "'top_k': -1 does not fit input 'runtime_top_k' of the model",
        ),
        (config(*TEXTS, OPENAI="completion", OPENAI_DEFAULTS="temperature=nan"), "'temperature': expected a number"),
        (config(*TEXTS, OPENAI="completion", OPENAI_DEFAULTS="prompt=x"), "expected <field>=<value> with a field of"),
        (config(*TEXTS, OPENAI="completion", more="sequence_batching { direct {} }"), "must be iterative_sequence"),
        (config(*TEXTS, OPENAI="chat"), "needs a chat template, which is chat_template.jinja"),
        (config(*TEXTS, OPENAI=""), "expected chat"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, expected: str) -> None:
    found = broken(text)
    assert any(expected in one for one in found), found
    assert all("model 'm'" in one for one in found)
    assert declaration_of(parse_model_config(text, source="x")) is None or "template" in expected


def test_a_required_input_with_a_default_is_filled() -> None:
    assert (
        broken(config({**TEXTS[0], "top_k": "TYPE_INT32"}, TEXTS[1], OPENAI="completion", OPENAI_DEFAULTS="top_k=5"))
        == []
    )
    assert (
        broken(config({**TEXTS[0], "temperature": "TYPE_FP32", "seed": "TYPE_INT64"}, TEXTS[1], OPENAI="completion"))
        == []
    )


def test_the_rate_of_samples_may_be_required_and_that_of_a_file_may_be_asked_for() -> None:
    samples = {"audio": "TYPE_FP32 -1", "sample_rate": "TYPE_INT32"}
    assert broken(config(samples, TEXTS[1], OPENAI="transcription")) == []
    file = {"audio": "TYPE_STRING", "sample_rate": "TYPE_INT32"}
    assert broken(config(file, TEXTS[1], optional=("sample_rate",), OPENAI="transcription")) == []


def test_tokens_may_be_required_where_every_prompt_has_to_be_some() -> None:
    tokens = {"prompt_tokens": "TYPE_INT32 -1"}
    assert broken(config(tokens, TEXTS[1], OPENAI="completion")) == []
    (found,) = broken(config({**TEXTS[0], **tokens}, TEXTS[1], OPENAI="completion"))
    assert "'prompt_tokens' out: make it optional" in found
    (found,) = broken(config({"messages": "TYPE_STRING", **tokens}, TEXTS[1], OPENAI="chat, completion"))
    assert "'prompt_tokens' out: make it optional" in found


# ------------------------------------------------------------------------------------------- templates


def test_a_template_is_found_where_its_authors_put_it(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    tokenizer = tmp_path / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({"chat_template": "one", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}))
    found = read_chat_template(tmp_path)
    assert found is not None
    assert (found.text, found.tokens) == ("one", {"bos_token": "<s>", "eos_token": "</s>"})
    tokenizer.write_text(
        json.dumps({"chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": "two"}]})
    )
    found = read_chat_template(tmp_path)
    assert found is not None and found.text == "two"
    assert found.text_with_tools is None
    (tmp_path / "chat_template.jinja").write_text("three")
    found = read_chat_template(tmp_path)
    assert found is not None and found.text == "three"
    assert broken(config(*TEXTS, OPENAI="chat"), tmp_path) == []


def test_a_template_for_tools_is_found_beside_the_other(tmp_path: Path) -> None:
    both = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": both}))
    assert read_chat_template(tmp_path) == ChatTemplate("one", {}, "two")
    (tmp_path / "chat_template.jinja").write_text("three")
    assert read_chat_template(tmp_path) == ChatTemplate("three", {})
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("four")
    assert read_chat_template(tmp_path) == ChatTemplate("three", {}, "four")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("tokenizer_config.json", b"{", "tokenizer_config.json is no JSON"),
        ("tokenizer_config.json", b"[]", "tokenizer_config.json is no JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "neither a text nor a list with one named 'default'"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja is not UTF-8"),
        ("chat_template.jinja", b"x" * (1 << 21), "expected at most 1048576"),
    ],
)
def test_a_template_that_cannot_be_read_is_said(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    (found,) = broken(config(*TEXTS, OPENAI="chat"), tmp_path)
    assert expected in found


# ------------------------------------------------------------------------------------------- the page


def test_the_page_names_every_field_and_its_usual_names() -> None:
    page = (PROJECT / "docs" / "openai.md").read_text()
    for heading, fields in (("### Inputs", INPUT_FIELDS), ("### Outputs", OUTPUT_FIELDS)):
        table = page.partition(heading)[2].partition("\n#")[0]
        for field in fields.values():
            row = next(
                line for line in table.splitlines() if line.startswith("|") and f"`{field.name}`" in line.split("|")[1]
            )
            for name in field.names:
                assert name in row, (heading, field.name, name)
