"""Finding, importing and constructing a model (model API, 1.1, 1.2 and 1.6)."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.worker import pb_utils
from pytriton_lite.worker.loader import BACKEND_DIRECTORY, ModelFiles, construct, import_model, install_pb_utils
from pytriton_lite.worker.process import host


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """What a worker changes in its own interpreter is put back in ours."""
    path, modules, model_dir = list(sys.path), set(sys.modules), host().model_dir
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    host().model_dir = model_dir


def write(path: Path, code: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


def test_the_module_is_named_after_version_and_file(tmp_path: Path) -> None:
    """model_api.md row 5."""
    path = write(tmp_path / "2" / "foo.py", "names = __name__, __package__, __file__")
    module = import_model(ModelFiles(tmp_path, 2, "foo.py"))
    assert module.names == ("2.foo", "2", str(path))
    assert sys.modules["2.foo"] is module


def test_helpers_of_version_and_model_directory_are_found(tmp_path: Path) -> None:
    """model_api.md row 11."""
    write(tmp_path / "1" / "helper_of_version_a.py", "word = 'a'")
    write(tmp_path / "1" / "helper_of_version_b.py", "word = 'b'")
    write(tmp_path / "helper_of_model.py", "word = 'top'")
    write(
        tmp_path / "1" / "model.py",
        """
        import helper_of_model
        import helper_of_version_a
        from . import helper_of_version_b
        words = helper_of_version_a.word, helper_of_version_b.word, helper_of_model.word
        """,
    )
    assert import_model(ModelFiles(tmp_path, 1, "model.py")).words == ("a", "b", "top")


def test_the_init_file_of_a_version_directory_runs_before_the_model(tmp_path: Path) -> None:
    write(tmp_path / "1" / "__init__.py", "from .helper import word\nnames = [__name__, __package__]")
    write(tmp_path / "1" / "helper.py", "word = 'here'")
    write(tmp_path / "1" / "model.py", "from . import names, word")
    module = import_model(ModelFiles(tmp_path, 1, "model.py"))
    assert (module.names, module.word) == (["1", "1"], "here")


def test_a_model_that_its_init_file_imports_is_executed_once(tmp_path: Path) -> None:
    write(tmp_path / "1" / "__init__.py", "from .model import words")
    write(
        tmp_path / "1" / "model.py",
        "import sys\nwords = vars(sys.modules['1']).setdefault('seen', [])\nwords.append(__name__)",
    )
    assert import_model(ModelFiles(tmp_path, 1, "model.py")).words == ["1.model"]


def test_helpers_beside_a_file_in_a_folder_of_the_version_are_found(tmp_path: Path) -> None:
    write(tmp_path / "1" / "src" / "helper_beside.py", "word = 'beside'")
    write(tmp_path / "1" / "helper_of_version.py", "word = 'version'")
    write(
        tmp_path / "1" / "src" / "model.py",
        """
        import helper_of_version
        import helper_beside
        from . import helper_beside as relative
        words = helper_beside.word, relative.word, helper_of_version.word
        """,
    )
    assert import_model(ModelFiles(tmp_path, 1, "src/model.py")).words == ("beside", "beside", "version")


def test_an_installed_module_wins_over_one_beside_the_model(tmp_path: Path) -> None:
    """Model API, 1.2: the directories are appended, version first."""
    write(tmp_path / "1" / "colorsys.py", "raise AssertionError('taken from beside the model')")
    write(tmp_path / "1" / "model.py", "import colorsys")
    before = list(sys.path)
    import_model(ModelFiles(tmp_path, 1, "model.py"))
    assert sys.path == [*before, str(tmp_path / "1"), str(tmp_path), BACKEND_DIRECTORY]


def test_a_file_name_must_end_in_py(tmp_path: Path) -> None:
    """model_api.md row 6."""
    with pytest.raises(InferenceError) as caught:
        import_model(ModelFiles(tmp_path, 1, "foo.txt"))
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == "Model name must end with '.py'. Model name is \"foo.txt\"."


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """model_api.md row 7."""
    with pytest.raises(InferenceError) as caught:
        import_model(ModelFiles(tmp_path, 1, "model.py"))
    assert caught.value.message == f"Python model file not found in '{tmp_path / '1' / 'model.py'}'"


def test_a_missing_class_is_named(tmp_path: Path) -> None:
    """model_api.md row 8."""
    write(tmp_path / "1" / "model.py", "class Model: pass")
    with pytest.raises(InferenceError) as caught:
        construct(import_model(ModelFiles(tmp_path, 1, "model.py")))
    assert caught.value.message == "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"


def test_what_the_file_raises_passes_through(tmp_path: Path) -> None:
    write(tmp_path / "1" / "model.py", "raise SystemExit(4)")
    with pytest.raises(SystemExit, match="4"):
        import_model(ModelFiles(tmp_path, 1, "model.py"))


def test_the_class_is_constructed_without_arguments(tmp_path: Path) -> None:
    write(
        tmp_path / "1" / "model.py",
        """
        class TritonPythonModel:
            def __init__(self, *arguments, **keywords):
                self.got = arguments, keywords
        """,
    )
    model = construct(import_model(ModelFiles(tmp_path, 1, "model.py")))
    assert model.got == ((), {})


def test_both_names_of_pb_utils_are_installed(tmp_path: Path) -> None:
    """Model API, 1.2: at module level, too, and for annotations in the class body."""
    install_pb_utils(str(tmp_path / "1"))
    write(
        tmp_path / "1" / "model.py",
        """
        import c_python_backend_utils
        import triton_python_backend_utils as pb_utils
        from triton_python_backend_utils import Tensor

        class TritonPythonModel:
            def helper(self, tensor: pb_utils.Tensor) -> c_python_backend_utils.InferenceResponse: ...
        """,
    )
    module = import_model(ModelFiles(tmp_path, 1, "model.py"))
    assert module.Tensor is pb_utils.Tensor
    assert pb_utils.get_model_dir() == str(tmp_path / "1")


def test_a_backend_is_imported_as_model_and_without_a_package(tmp_path: Path) -> None:
    """model_api.md row 17."""
    write(tmp_path / "m" / "1" / "model.py", "raise AssertionError('the model has no code of its own')")
    path = write(tmp_path / "mybk" / "model.py", "names = __name__, __package__, __file__")
    module = import_model(ModelFiles(tmp_path / "m", 1, "", backend_dir=tmp_path / "mybk"))
    assert module.names == ("model", "", str(path))
    assert sys.modules["model"] is module


def test_a_backend_finds_its_own_helpers_and_none_of_the_model(tmp_path: Path) -> None:
    write(tmp_path / "m" / "helper_of_the_model.py", "")
    write(tmp_path / "mybk" / "helper_of_the_backend.py", "word = 'backend'")
    write(tmp_path / "mybk" / "model.py", "from helper_of_the_backend import word")
    before = list(sys.path)
    module = import_model(ModelFiles(tmp_path / "m", 1, "weights.bin", backend_dir=tmp_path / "mybk"))
    assert module.word == "backend"
    assert sys.path == [*before, str(tmp_path / "mybk"), BACKEND_DIRECTORY]


def test_a_backend_has_its_settings_from_its_first_line_on(tmp_path: Path) -> None:
    write(tmp_path / "mybk" / "model.py", "size = int(BACKEND_SETTINGS['size'])")
    files = ModelFiles(tmp_path / "m", 1, "", backend_dir=tmp_path / "mybk", backend_settings={"size": "3"})
    assert import_model(files).size == 3
