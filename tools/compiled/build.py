"""The build of the compiled modules, with mypyc and the C compiler that Python was built with. Needs mypy and setuptools.

As a command it makes a copy of the project and puts the modules beside their source there, for ``make compiled`` and
``make test-compiled``:
``python -m tools.compiled.build FOLDER [LEVEL]``. LEVEL is the compiler's: 3, as in wheels, or less for what is not measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.compiled.modules import LIBRARY, PACKAGE, modules

_PYTHON = ".".join(map(str, sys.version_info[:2]))
_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


def compile_modules(root: Path, target: Path, *, level: str = "3") -> list[Path]:
    """Compile the modules of the project in *root* into *target*; the files, as paths in *target*. *level* is the C compiler's.

    The process must have *root* as its current directory. Raises SystemExit, as mypyc does, with the errors on stderr.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    with tempfile.TemporaryDirectory() as temporary:
        sources, objects = Path(temporary) / "c", Path(temporary) / "o"
        extensions = mypycify(
            # For this Python: what stands behind an `if` of another version is left out.
            [f"--python-version={_PYTHON}", f"--cache-dir={temporary}/cache", *modules(root)],
            opt_level=level,
            debug_level="0",
            # A file of C for each module, for several cores to compile, and all of them in one library: calls from one library
            # to another go the interpreter's way.
            multi_file=True,
            group_name=LIBRARY,
            target_dir=str(sources),
        )
        for extension in extensions:
            extension.include_dirs.append(str(sources / PACKAGE))
            # Nobody outside calls what is in the library: so calls inside need no table, and short functions can be inlined.
            extension.extra_compile_args.append("-fvisibility=hidden")
        _mend_slices(sources / "bytes_ops.c")
        command: Any = build_ext(Distribution({"name": PACKAGE, "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(target), str(objects)
        command.ensure_finalized()
        # setuptools compiles several extensions at a time, and almost all of ours is in one.
        command.build_extension = lambda extension: _build_on_all_cores(command, extension)
        command.run()
    return sorted(path.relative_to(target) for path in target.rglob(f"*{_SUFFIX}"))


def _mend_slices(runtime: Path) -> None:
    """Have slices of bytes that end before they begin be empty, as the interpreter's are: mypyc's raise SystemError."""
    wrong = "slice_len = endn - startn;"
    code = runtime.read_text()
    if code.count(wrong) != 1:
        raise SystemExit(
            f"mypyc's {runtime.name} is another one than tools/compiled/build.py knows: how does it slice bytes?"
        )
    runtime.write_text(code.replace(wrong, "slice_len = endn > startn ? endn - startn : 0;"))


def _build_on_all_cores(command: Any, extension: Any) -> None:
    compile_some = command.compiler.compile

    def compile_all(sources: Sequence[str], **options: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [
                path for paths in pool.map(lambda source: compile_some([source], **options), sources) for path in paths
            ]

    command.compiler.compile = compile_all
    try:
        type(command).build_extension(command, extension)
    finally:
        command.compiler.compile = compile_some


def copy_project(root: Path, copy: Path) -> None:
    """Put all files of the project that git knows, or would not ignore, into *copy*, and take away what was there."""
    shutil.rmtree(copy, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name, follow_symlinks=False)


def main(folder: str, level: str = "3") -> None:
    copy = Path(folder).resolve()
    copy_project(Path.cwd(), copy)
    os.chdir(copy)
    print(f"{len(compile_modules(copy, copy, level=level))} files of the compiled build are in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
