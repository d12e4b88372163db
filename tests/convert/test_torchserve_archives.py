"""TorchServe archives become models that serve without TorchServe, and what could not be taken over is said."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytriton_lite import cli
from pytriton_lite.convert import ConversionError, convert_archive, write
from pytriton_lite.testing import ModelUnderTest, Request
from tests.convert.archives import CLASS_HANDLER, FUNCTION_HANDLER, make_archive

Load = Callable[..., ModelUnderTest]

SETTINGS = "batchSize: 4\nmaxBatchDelay: 50\nresponseTimeout: 30\nhandler: {greeting: good day}\n"


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers have modules of the same names; a real server has a process for each."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [*sys.modules]:
        if name in ("handler", "helper", "service") or name.partition(".")[0] == "ts":
            monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def convert(tmp_path: Path, triton_model: Load) -> Callable[[Path], ModelUnderTest]:
    def convert_and_load(archive: Path) -> ModelUnderTest:
        written = write(convert_archive(archive), tmp_path / "models", archive.name)
        return triton_model(written[0].parent)

    return convert_and_load


def lengths(tmp_path: Path, **more: str) -> Path:
    return make_archive(tmp_path, "lengths", "handler.py", {"handler.py": CLASS_HANDLER, "unit.txt": "bytes\n"}, **more)


def greetings(tmp_path: Path, handler: str = "service.py:handle", settings: str = SETTINGS) -> Path:
    files: dict[str, str | bytes] = {
        "service.py": FUNCTION_HANDLER,
        "helper.py": "def shout(text):\n    return text.upper()\n",
        "model-config.yaml": settings,
    }
    return make_archive(tmp_path, "greetings", handler, files, configFile="model-config.yaml")


def bodies(*texts: bytes, **more: bytes) -> dict[str, np.ndarray]:
    data = {"data": np.array([[text] for text in texts], dtype=object)}
    return data | {name: np.array([[value] for _ in texts], dtype=object) for name, value in more.items()}


def test_a_class_goes_through_its_steps(tmp_path: Path, convert: Callable[[Path], ModelUnderTest]) -> None:
    model = convert(lengths(tmp_path))
    answer = model.infer(bodies(b"four"))["result"]
    assert json.loads(answer.item()) == {"length": 4, "unit": "bytes", "batch": 1}
    assert model.metric("ts_Bodies") == 1


def test_a_body_of_json_is_parsed_where_the_request_says_so(
    tmp_path: Path, convert: Callable[[Path], ModelUnderTest]
) -> None:
    model = convert(lengths(tmp_path))
    answer = model.infer(bodies(b"[1, 2, 3, 4, 5]", content_type=b"application/json; charset=utf-8"))["result"]
    assert json.loads(answer.item())["length"] == 5


def test_what_a_handler_refuses_is_an_error_with_its_text(
    tmp_path: Path, convert: Callable[[Path], ModelUnderTest]
) -> None:
    error = convert(lengths(tmp_path)).infer(bodies(b"refuse")).error
    assert "a body that is refused" in error.message()


def test_a_function_gets_the_requests_of_a_batch_and_its_settings(
    tmp_path: Path, convert: Callable[[Path], ModelUnderTest]
) -> None:
    pytest.importorskip("yaml")
    model = convert(greetings(tmp_path))
    assert model.config["max_batch_size"] == 4
    first, second = model.execute([Request(bodies(b"one")), Request(bodies(b"two", b"three"))])
    assert first.response["result"].tolist() == [[b"good day ONE"]]
    assert second.response["result"].tolist() == [[b"good day TWO"], [b"good day THREE"]]


def test_a_status_that_is_set_fails_its_own_request_alone(
    tmp_path: Path, convert: Callable[[Path], ModelUnderTest]
) -> None:
    pytest.importorskip("yaml")
    first, second = convert(greetings(tmp_path)).execute([Request(bodies(b"teapot")), Request(bodies(b"coffee"))])
    assert first.response.error.message() == "short and stout"
    assert second.response["result"].tolist() == [[b"good day COFFEE"]]


def test_settings_become_those_of_the_configuration(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    config = convert_archive(greetings(tmp_path)).config()
    for expected in (
        "max_batch_size: 4",
        "max_queue_delay_microseconds: 50000",
        'key: "EXECUTION_TIMEOUT_SECONDS" value: { string_value: "30" }',
    ):
        assert expected in config


def test_it_serves_over_http_and_the_check_has_nothing_to_say(
    tmp_path: Path, triton_server: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    assert cli.main(["convert", str(lengths(tmp_path)), str(models)]) == 0
    assert "It serves: pytriton-lite serve" in capsys.readouterr().out
    assert cli.main(["check", "--warnings-as-errors", str(models)]) == 0
    server = triton_server(models / "lengths")
    assert "successfully loaded 'lengths'" in server.log  # type: ignore[attr-defined]


def test_a_tar_and_a_directory_are_the_same(tmp_path: Path) -> None:
    archive = lengths(tmp_path)
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    tar = tmp_path / "lengths.tar.gz"
    with tarfile.open(tar, "w:gz") as file:
        file.add(folder, arcname=".")
    assert convert_archive(tar).files == convert_archive(folder).files == convert_archive(archive).files


def test_names_that_are_no_utf8_are_in_the_notes_as_a_terminal_shows_them(tmp_path: Path) -> None:
    """Of the archive, and of a file in it."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with zipfile.ZipFile(make_archive(tmp_path, "m", "handler", {"handler.py": "def handle(d, c): ...\n"})) as file:
        file.extractall(folder)
    (folder / os.fsdecode(b"l\xe9.py")).write_text("import ts.metrics\n")
    assert cli.main(["convert", str(folder), str(tmp_path / "models")]) == 2
    notes = (tmp_path / "models" / "m" / "CONVERTED.md").read_text(encoding="utf-8")
    assert r"from `caf\udce9`" in notes and r"l\udce9.py:1: import ts.metrics" in notes


def test_requirements_lie_beside_the_configuration(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"handler.py": CLASS_HANDLER, "needs.txt": "torch\n"}
    conversion = convert_archive(make_archive(tmp_path, "m", "handler.py", files, requirementsFile="needs.txt"))
    assert conversion.beside == {"requirements.txt": b"torch\n"}
    assert any("--allow-requirements=true" in note for note in conversion.notes)


def test_imports_that_are_not_here_are_left_to_the_person_with_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "from ts.handler_utils.timer import timed\nimport ts.metrics\nfrom ts.context import Context\n"
        "def handle(d, c): ...\n"
    )
    archive = make_archive(tmp_path, "m", "handler", {"handler.py": code})
    assert cli.main(["convert", str(archive), str(tmp_path / "models"), "--name=mine"]) == 2
    shown = capsys.readouterr().out
    assert "handler.py:1: from ts.handler_utils.timer import timed; handler.py:2: import ts.metrics." in shown
    assert "Context" not in shown
    assert "## To do before it serves" in (tmp_path / "models" / "mine" / "CONVERTED.md").read_text()


@pytest.mark.parametrize("handler", ["image_classifier", "text_classifier"])
def test_a_handler_of_torchserve_itself_is_refused_with_what_to_do(tmp_path: Path, handler: str) -> None:
    archive = make_archive(tmp_path, "m", handler, {"model.pt": b""})
    with pytest.raises(ConversionError, match=f"'{handler}' is a part of TorchServe.*derives from BaseHandler"):
        convert_archive(archive)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda folder: make_archive(folder, "m", "gone.py", {}), "expected the file gone.py"),
        (lambda folder: make_archive(folder, "m", "", {}), "names no handler"),
        (lambda folder: make_archive(folder, "m", "h", {"h.py": ""}, runtime="LSP"), "the runtime is 'LSP'"),
        (lambda folder: make_archive(folder, "m", "h", {"h.py": "", "../../x": ""}), "'../../x', which leads out"),
        (lambda folder: not_an_archive(folder), "neither a zip nor a tar archive"),
        (lambda folder: without_manifest(folder), "has no MAR-INF/MANIFEST.json"),
    ],
)
def test_what_cannot_be_converted_is_told(tmp_path: Path, make: Callable[[Path], Path], expected: str) -> None:
    with pytest.raises(ConversionError, match=expected):
        convert_archive(make(tmp_path))


def not_an_archive(folder: Path) -> Path:
    path = folder / "m.mar"
    path.write_bytes(b"PK and nothing more")
    return path


def without_manifest(folder: Path) -> Path:
    path = folder / "m.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("handler.py", "")
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_data_of_an_archive_is_told(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "m.mar"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("handler.py", bytes(range(256)) * 100)
        offset = archive.getinfo("handler.py").header_offset
    content = bytearray(path.read_bytes())
    begin = offset + 30 + len("handler.py") + 12  # behind the headers of the entry and of LZMA
    content[begin : begin + 60] = b"\xff" * 60
    path.write_bytes(content)
    with pytest.raises(ConversionError, match="neither a zip nor a tar archive that can be read"):
        convert_archive(path)


@pytest.mark.parametrize(
    "settings",
    [
        "batchSize: many", "maxBatchDelay: -1", "batchSize: [", "batchSize: true",
        "a: !!bool maybe", 'a: !!int ""', "a: !!timestamp soon",
    ],
)  # fmt: skip
def test_settings_that_are_wrong_are_told(tmp_path: Path, settings: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(ConversionError, match=r"expected a whole number|is no YAML"):
        convert_archive(greetings(tmp_path, settings=settings))


@pytest.mark.parametrize("value", ["!!binary aGVsbG8=", "&again [*again]", "!!set {a}"])
def test_settings_that_json_has_nothing_for_are_told(tmp_path: Path, value: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(ConversionError, match="cannot be kept as JSON"):
        convert_archive(greetings(tmp_path, settings=f"handler: {value}"))


def test_settings_that_grow_by_their_aliases_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcde", "bcdef", strict=True)
    ]
    with pytest.raises(ConversionError, match="more than 1,048,576 characters"):
        convert_archive(greetings(tmp_path, settings="\n".join(lines)))


def test_dates_of_the_settings_are_texts_and_a_note_says_so(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    conversion = convert_archive(greetings(tmp_path, settings="handler: {trained: 2026-11-24}"))
    assert json.loads(conversion.files["model_yaml_config.json"]) == {"handler": {"trained": "2026-11-24"}}
    assert "Dates in `context.model_yaml_config` are texts, such as '2026-11-24'." in conversion.notes


def test_a_model_without_workers_at_first_has_one_instance(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    conversion = convert_archive(greetings(tmp_path, settings="minWorkers: 0\nmaxWorkers: 4"))
    assert "count: 1 " in conversion.config()
    assert any(note.startswith("There is 1 instance from the start") for note in conversion.notes)


def test_a_model_without_a_name_is_called_like_its_archive(tmp_path: Path) -> None:
    path = tmp_path / "m.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {"modelName": None, "handler": "h"}}))
        archive.writestr("h.py", "")
    assert convert_archive(path).name == "m"


@pytest.mark.parametrize("name", ["unit.txt/inside", "n" * 300], ids=["below a file", "too long"])
def test_nothing_is_left_of_an_archive_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    files: dict[str, str | bytes] = {"handler.py": CLASS_HANDLER, "unit.txt": "bytes\n", name: ""}
    archive = make_archive(tmp_path, "lengths", "handler.py", files)
    (tmp_path / "models").mkdir()
    assert cli.main(["convert", str(archive), str(tmp_path / "models")]) == 1
    assert "nothing was written" in capsys.readouterr().err
    assert list((tmp_path / "models").iterdir()) == []


def test_nothing_that_is_there_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models" / "lengths").mkdir(parents=True)
    for arguments, expected in (
        ([str(lengths(tmp_path)), str(tmp_path / "models")], "exists; nothing was written"),
        ([str(tmp_path / "none.mar"), str(tmp_path / "models")], "none.mar' does not exist"),
        ([str(tmp_path / "models"), str(tmp_path)], "has neither a MAR-INF/MANIFEST.json nor a model-settings.json"),
        ([str(lengths(tmp_path)), str(tmp_path / "m"), "--name=7"], "'7' cannot be the name of a model's folder"),
    ):
        assert cli.main(["convert", *arguments]) == 1
        assert expected in capsys.readouterr().err.splitlines()[-1]
