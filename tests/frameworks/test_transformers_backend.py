"""The shipped backend ``transformers``, with tiny models that are made here. Needs transformers and PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.testing import ModelUnderTest, Request
from tests.harness import RunningServer, tensor, write_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "day", "night"]
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TEXTS = ["a good day", "bad", "a night", "good good good"]


def save(folder: Path, model: Any, longest: int | None = 32) -> Any:
    """Write *model* with a tokenizer; the tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]", model_max_length=longest
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def classifier() -> Any:
    labels = {0: "NEGATIVE", 1: "POSITIVE", 2: "NEUTRAL"}
    config = transformers.BertConfig(vocab_size=len(WORDS), id2label=labels, **SMALL)
    return transformers.BertForSequenceClassification(config)


def embedder() -> Any:
    return transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), **SMALL))


def generator() -> Any:
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=3, eos_token_id=3
    )
    return transformers.GPT2LMHeadModel(config)


def write(repository: Path, model: Any, config: str = "", **options: Any) -> Any:
    folder = write_model(repository, "m", config=f'backend: "transformers"\n{config}')
    return save(folder / "1", model, **options)


def texts(*given: str) -> dict[str, Any]:
    return {"text": np.array([[text.encode()] for text in given], object)}


def test_a_classifier_is_completed_and_gives_labels_and_scores(tmp_path: Path) -> None:
    made = classifier()
    tokenizer = write(tmp_path, made)
    with ModelUnderTest(tmp_path / "m") as model:
        assert [each["name"] for each in model.config["output"]] == ["label", "score", "probabilities"]
        assert model.config["max_batch_size"] == 32
        found = [outcome.response for outcome in model.execute([Request(texts(*TEXTS[:3])), Request(texts(TEXTS[3]))])]
    with torch.no_grad():
        logits = made(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    probabilities = logits.softmax(-1).numpy()
    assert np.allclose(np.concatenate([each["probabilities"] for each in found]), probabilities, atol=1e-5)
    labels = [made.config.id2label[int(each)].encode() for each in probabilities.argmax(1)]
    assert np.concatenate([each["label"] for each in found]).ravel().tolist() == labels


def test_embeddings_are_pooled_as_the_folder_says(tmp_path: Path) -> None:
    made = embedder()
    tokenizer = write(tmp_path, made)
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = made(**encoded).last_hidden_state
    mask = encoded["attention_mask"].unsqueeze(-1)
    with ModelUnderTest(tmp_path / "m") as model:
        found = model.infer(texts(*TEXTS))["embedding"]
    assert np.allclose(found, ((states * mask).sum(1) / mask.sum(1)).numpy(), atol=1e-5)
    version = tmp_path / "m" / "1"
    (version / "1_Pooling").mkdir()
    (version / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (version / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Normalize"}]))
    with ModelUnderTest(tmp_path / "m") as model:
        found = model.infer(texts(*TEXTS))["embedding"]
    first = states[:, 0]
    assert np.allclose(found, (first / first.norm(dim=1, keepdim=True)).numpy(), atol=1e-5)


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=8, **SMALL))


def roberta() -> Any:
    """Its positions begin behind that of the padding, so that there are eight of them, too."""
    config = transformers.RobertaConfig(vocab_size=len(WORDS), max_position_embeddings=9, pad_token_id=0, **SMALL)
    return transformers.RobertaModel(config)


@pytest.mark.parametrize(("made", "most"), [(bert, 8), (roberta, 8), (embedder, 5)])
def test_texts_are_cut_to_what_the_model_takes_where_its_tokenizer_knows_no_limit(
    tmp_path: Path, made: Any, most: int
) -> None:
    write(tmp_path, made(), longest=None)
    if most == 5:
        (tmp_path / "m" / "1" / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    with ModelUnderTest(tmp_path / "m") as model:
        words = ["a", "good", "bad", "day", "night", "good", "a", "bad", "day", "good"]
        whole, cut, shorter = model.infer(texts(" ".join(words), " ".join(words[:most]), " ".join(words[: most - 1])))[
            "embedding"
        ]
        assert np.allclose(whole, cut, atol=1e-5)
        assert not np.allclose(whole, shorter, atol=1e-5)


def test_the_end_of_a_prompt_is_kept_and_room_for_what_is_generated(tmp_path: Path) -> None:
    write(tmp_path, generator(), longest=None)
    prompt = ["good", *["a", "bad"] * 30]
    with ModelUnderTest(tmp_path / "m") as model:
        long, end = (
            model.execute([Request(texts(" ".join(words)), parameters={"max_new_tokens": 14})])[0].response
            for words in (prompt, prompt[-50:])
        )
        assert long["generated_text"].tolist() == end["generated_text"].tolist()
        refused = model.execute([Request(texts("good"), parameters={"max_new_tokens": 64})])[0].response.error
        assert refused is not None
        assert refused.message() == "parameter 'max_new_tokens' must be less than 64, the model's positions, got 64"


def test_a_seed_gives_the_same_text_alone_and_beside_others(tmp_path: Path) -> None:
    torch.manual_seed(0)  # two samples of some other weights could be the same
    write(tmp_path, generator())
    request = Request(texts("a good"), parameters={"max_new_tokens": 20, "temperature": 2.0, "seed": 3})
    with ModelUnderTest(tmp_path / "m") as model:
        (alone,), beside = (model.execute([request] * count) for count in (1, 3))
        wanted = alone.response["generated_text"].tolist()
        assert [each.response["generated_text"].tolist() for each in beside] == [wanted] * 3


def test_a_classifier_that_is_a_decoder_takes_several_texts_at_a_time(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, eos_token_id=3, num_labels=2
    )
    made = transformers.GPT2ForSequenceClassification(config)
    tokenizer = write(tmp_path, made)
    with ModelUnderTest(tmp_path / "m") as model, torch.no_grad():
        alone = [made(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0].numpy() for text in TEXTS]
        assert np.allclose(model.infer(texts(*TEXTS))["probabilities"], alone, atol=1e-5)


def test_the_score_of_a_regression_is_the_number_that_the_model_gives(tmp_path: Path) -> None:
    config = transformers.BertConfig(vocab_size=len(WORDS), num_labels=1, problem_type="regression", **SMALL)
    made = transformers.BertForSequenceClassification(config)
    tokenizer = write(tmp_path, made)
    with ModelUnderTest(tmp_path / "m") as model, torch.no_grad():
        numbers = made(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.numpy()
        assert np.allclose(model.infer(texts(*TEXTS))["score"], numbers, atol=1e-5)


TRANSFORMER = "sentence_transformers.models.Transformer"


def write_modules(version: Path, pooling: dict[str, Any], *modules: str) -> None:
    (version / "1_Pooling").mkdir()
    (version / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (version / "modules.json").write_text(json.dumps([{"type": module} for module in modules]))


@pytest.mark.parametrize(
    "pooling", [{"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, {"pooling_mode": "cls"}]
)
def test_the_first_token_is_taken_in_both_forms_in_which_folders_say_it(
    tmp_path: Path, pooling: dict[str, Any]
) -> None:
    made = embedder()
    tokenizer = write(tmp_path, made)
    write_modules(tmp_path / "m" / "1", pooling, TRANSFORMER, "sentence_transformers.base.modules.pooling.Pooling")
    with ModelUnderTest(tmp_path / "m") as model, torch.no_grad():
        states = made(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state
        assert np.allclose(model.infer(texts(*TEXTS))["embedding"], states[:, 0].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "module", "text"),
    [
        (
            {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True},
            "Normalize",
            "pooling 'lasttoken' is not",
        ),
        (
            {"pooling_mode": ["cls", "mean"]},
            "Normalize",
            "pooling 'cls and mean' is not known, expected 'mean' or 'cls'",
        ),
        ({"pooling_mode_mean_tokens": True}, "Dense", "modules.json has a module 'Dense', which is not served"),
    ],
)
def test_embeddings_that_would_be_others_than_the_folder_says_are_refused(
    tmp_path: Path, pooling: dict[str, Any], module: str, text: str
) -> None:
    write(tmp_path, embedder())
    write_modules(tmp_path / "m" / "1", pooling, TRANSFORMER, f"sentence_transformers.models.{module}")
    with pytest.raises(InferenceError, match=text):
        ModelUnderTest(tmp_path / "m")


def test_a_server_generates_by_the_parameters_of_the_request(tmp_path: Path) -> None:
    made = generator()
    tokenizer = write(tmp_path, made)
    with torch.no_grad():
        ids = made.generate(
            **tokenizer("a good", return_tensors="pt"), max_new_tokens=5, do_sample=False, pad_token_id=0
        )
    wanted = tokenizer.decode(ids[0, 2:], skip_special_tokens=True)
    with RunningServer(tmp_path) as server:
        given = [tensor("text", "BYTES", [1, 1], ["a good"])]
        reply = server.infer("m", given, parameters={"max_new_tokens": 5})
        assert reply.status == 200, reply.body
        assert reply.json["outputs"][0]["data"] == [wanted]
        refused = server.infer("m", given, parameters={"max_new_tokens": "many"})
        assert (refused.status, "parameter 'max_new_tokens' must be a int, got \"many\"" in refused.error) == (
            400,
            True,
        )
        generate = server.post("/v2/models/m/generate", {"text": "a good", "max_new_tokens": 5})
        assert generate.json["generated_text"] == wanted


def test_the_routes_of_openai_say_how_a_text_is_generated(tmp_path: Path) -> None:
    torch.manual_seed(0)  # two samples of some other weights could be the same
    made = generator()
    declared = 'parameters { key: "OPENAI" value { string_value: "completion" } }'
    tokenizer = write(tmp_path, made, declared)
    with torch.no_grad():
        given = tokenizer("a good", return_tensors="pt")
        ids = made.generate(**given, max_new_tokens=5, do_sample=False, pad_token_id=0)
    wanted = tokenizer.decode(ids[0, 2:], skip_special_tokens=True)
    with RunningServer(tmp_path) as server:

        def written(**members: Any) -> list[str]:
            reply = server.post("/v1/completions", {"model": "m", "prompt": "a good", "max_tokens": 5, **members})
            assert reply.status == 200, reply.body
            return [choice["text"] for choice in reply.json["choices"]]

        assert written() == written(temperature=0) == [wanted]
        assert written(top_k=-1, seed=3) == written(top_k=0, seed=3)
        sampled = written(temperature=1.5, seed=3, n=2)
        assert written(temperature=1.5, seed=3, n=2) == sampled
        assert sampled[0] != sampled[1]
        refused = server.post("/v1/completions", {"model": "m", "prompt": ""})
        assert (refused.status, "a text has no tokens" in refused.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ('parameters { key: "task" value { string_value: "summarization" } }', "task 'summarization' is not served"),
        ('parameters { key: "pooling" value { string_value: "max" } }', "pooling 'max' is not known"),
        (
            'parameters { key: "normalize" value { string_value: "true" } }',
            "normalize 'true' is not known, expected 'yes'",
        ),
        (
            'max_batch_size: 1 output { name: "y" data_type: TYPE_FP32 dims: 1 }',
            "it has no output 'y', expected embedding",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, config: str, text: str) -> None:
    write(tmp_path, embedder(), config)
    with pytest.raises(InferenceError, match=text):
        ModelUnderTest(tmp_path / "m")


def test_pickled_weights_are_refused_and_code_is_not_run(tmp_path: Path) -> None:
    made = embedder()
    write(tmp_path, made)
    version = tmp_path / "m" / "1"
    torch.save(made.state_dict(), version / "pytorch_model.bin")
    (version / "model.safetensors").unlink()
    with pytest.raises(InferenceError, match=r"no \*.safetensors is in .*allow-pickle=true"):
        ModelUnderTest(tmp_path / "m")
    (tmp_path / "empty" / "1").mkdir(parents=True)
    (tmp_path / "empty" / "config.pbtxt").write_text('backend: "transformers"')
    with pytest.raises(InferenceError, match="expected the folder of a model of transformers in"):
        ModelUnderTest(tmp_path / "empty")
