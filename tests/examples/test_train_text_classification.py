from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_text_classification.py"

PRAISE = ("wonderful", "superb", "delightful")
BLAME = ("dreadful", "tedious", "shoddy")
THINGS = ("film", "plot", "cast", "phone", "screen", "music", "story", "sound")


def content() -> str:
    """Rated sentences as in the package's files: one review of each thing, three sentences of praise, three of blame."""
    lines = []
    for number, thing in enumerate(THINGS):
        lines += [f"{number}_{k}\t2.5\tA {word} {thing}." for k, word in enumerate(PRAISE)]
        lines += [f"{number}_{k + 3}\t-2.5\tA {word} {thing}." for k, word in enumerate(BLAME)]
    return "\r\n".join(lines) + "\r\n"


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def distribution(path: Path, training: ModuleType, files: dict[str, str]) -> bytes:
    """Write a source distribution with *files* in its inner archive; return that archive."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        for name, text in files.items():
            add(archive, name, text.encode())
    with tarfile.open(path, "w:gz") as archive:
        add(archive, f"vaderSentiment-3.3.2/{training.ARCHIVE}", inner.getvalue())
    return inner.getvalue()


def test_sentences_of_one_document_fall_on_the_same_side(training: ModuleType) -> None:
    sides: dict[str, set[bool]] = {}
    for sentence in training.parse("product reviews", content()):
        sides.setdefault(sentence.identifier.split("_")[0], set()).add(sentence.held_out)
    assert all(len(side) == 1 for side in sides.values())
    assert set.union(*sides.values()) == {True, False}


def test_about_a_fifth_of_the_documents_is_held_out(training: ModuleType) -> None:
    held_out = sum(training.tenth("tweets", str(number)) in training.HELD_OUT for number in range(5000))
    assert held_out / 5000 == pytest.approx(0.2, abs=0.02)


def test_text_that_comes_twice_is_kept_once(training: ModuleType) -> None:
    sentences = training.parse("tweets", "1\t1.0\tSo good!\n2\t2.0\tso GOOD !\n3\t1.0\tSo bad!\n")
    assert [sentence.identifier for sentence in training.without_repeats(sentences)] == ["1", "3"]


def test_line_with_a_missing_field_is_named(training: ModuleType) -> None:
    with pytest.raises(training.DataError, match="tweets, line 2: expected id, rating and text"):
        training.parse("tweets", "1\t1.0\tGood\n2\t1.0\n")


def test_training_learns_words_and_applies_them_to_new_sentences(training: ModuleType) -> None:
    classifier = training.train(training.parse("tweets", content()))
    [good, bad] = classifier.probabilities(["a superb bicycle", "a shoddy bicycle"])
    assert good[1] > 0.8 and bad[0] > 0.8


def test_training_twice_gives_the_same_file_to_the_byte(training: ModuleType, tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        training.train(training.parse("tweets", content())).save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_saved_weights_answer_as_the_trained_ones(training: ModuleType, tmp_path: Path) -> None:
    trained = training.train(training.parse("tweets", content()))
    trained.save(tmp_path / "weights.npz")
    loaded = training.import_model().Classifier.load(tmp_path / "weights.npz")
    texts = ["a superb film", "a tedious plot", ""]
    np.testing.assert_allclose(loaded.probabilities(texts), trained.probabilities(texts), atol=2e-3)
    assert loaded.labels == ["negative", "positive"]


def test_whole_run_from_an_archive_writes_weights_and_prints_counts(
    training: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: content().replace("A ", f"{source.split()[0]} ") for source, name in training.SOURCES.items()}
    archive = distribution(tmp_path / "sdist.tar.gz", training, files)
    monkeypatch.setattr(training, "ARCHIVE_SHA256", hashlib.sha256(archive).hexdigest())
    output, sample = tmp_path / "weights.npz", tmp_path / "sample.tsv"
    assert training.main([str(tmp_path / "sdist.tar.gz"), "--output", str(output), "--sample", str(sample)]) == 0

    printed = capsys.readouterr().out
    held_out = [s for s in training.read_sentences(tmp_path / "sdist.tar.gz") if s.held_out]
    assert f"{3 * len(THINGS) * 6 - len(held_out)} sentences to learn from, {len(held_out)} held out" in printed
    assert f"100.0%  ({len(held_out)} of {len(held_out)};" in printed
    assert training.import_model().Classifier.load(output).labels == ["negative", "positive"]
    written = training.parse("tweets", sample.read_text(encoding="utf-8"))
    assert written == [sentence for sentence in held_out if sentence.source == "tweets"]


def test_archive_with_other_contents_is_refused(training: ModuleType, tmp_path: Path) -> None:
    distribution(tmp_path / "sdist.tar.gz", training, {"x": "y"})
    with pytest.raises(training.DataError, match=f"expected SHA-256 {training.ARCHIVE_SHA256}, got "):
        training.read_sentences(tmp_path / "sdist.tar.gz")


def test_distribution_without_the_data_is_refused(training: ModuleType, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        add(archive, "other-1.0/setup.py", b"")
    with pytest.raises(training.DataError, match="no additional_resources/hutto_ICWSM_2014"):
        training.read_sentences(tmp_path / "other.tar.gz")


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "No such file"), (b"PK\x03\x04", "expected the source distribution")]
)
def test_unusable_file_ends_in_one_line_and_exit_code_one(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "package"
    if content is not None:
        path.write_bytes(content)
    result = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr.startswith(f"train_text_classification.py: {path}: {complaint}")
    assert result.stderr.count("\n") == 1
