"""Environments made by hand, without a package index: virtual environments, archives as conda-pack writes them, wheels.

numpy comes to them by a line in a ``.pth`` file, from the Python that runs the tests; so it fits this version alone.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pip as pip_package


def numpy_alone(folder: Path) -> Path:
    """A folder that has numpy, and none of its neighbours."""
    folder.mkdir(exist_ok=True)
    ours = Path(np.__file__).parent
    for found in (ours, ours.parent / "numpy.libs"):
        link = folder / found.name
        if found.exists() and not link.is_symlink():
            link.symlink_to(found)
    return folder


def make_environment(
    folder: Path, *, python: str = sys.executable, numpy_from: Path | None, modules: dict[str, str] | None = None
) -> Path:
    """``python -m venv`` with *modules* in it, source by name, and numpy out of *numpy_from*."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    (packages,) = folder.glob("lib/python3.*/site-packages")
    if numpy_from is not None:
        (packages / "numpy.pth").write_text(f"{numpy_from}\n")
    for name, source in (modules or {}).items():
        (packages / f"{name}.py").write_text(source)
    return folder


def python_with_quick_pip(folder: Path) -> str:
    """A Python whose ``-I -m venv`` gives an environment the pip of the Python that runs the tests, by a link; its path.

    ``ensurepip`` unpacks and compiles a pip of its own for each, in 3 s of a core. What pip then does is the same.
    """
    folder.mkdir(exist_ok=True)
    python, pip = folder / "python", Path(pip_package.__file__).parent
    python.write_text(
        "#!/bin/sh\n"
        'if [ "$1 $2 $3" != "-I -m venv" ]; then\n'
        f'    exec {shlex.quote(sys.executable)} "$@"\n'
        "fi\n"
        f'{shlex.quote(sys.executable)} -I -m venv --without-pip "$4" || exit\n'
        f'for packages in "$4"/lib/python3.*/site-packages; do ln -s {shlex.quote(str(pip))} "$packages/pip"; done\n'
    )
    python.chmod(0o755)
    return str(python)


def pack(environment: Path, archive: Path) -> Path:
    """The environment as conda-pack packs it: its content at the root of a tar.gz."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for entry in sorted(environment.iterdir()):
            tar.add(entry, entry.name)
    return archive


def write_wheel(folder: Path, name: str, files: dict[str, str], *, version: str = "1.0") -> Path:
    """A wheel with *files*, text by path."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in content.items()]
    content[f"{info}/RECORD"] = "".join(record) + f"{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def write_numpy_wheel(folder: Path, numpy_from: Path) -> Path:
    """A wheel that says it is numpy, and leads to the one in *numpy_from*."""
    return write_wheel(folder, "numpy", {"numpy_link.pth": f"{numpy_from}\n"}, version=np.__version__)
