"""Files that are no files, and a disk that does not answer: neither stops the others, nor the end of the server.

The disk is a lease on a file: whoever opens the file waits until the holder gives it up, or 45 s.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.life_kit import CONFIG, EXPLICIT, code, load, must_load, value_of
from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, write_model

_BREAK_S = int(Path("/proc/sys/fs/lease-break-time").read_text())


@contextlib.contextmanager
def hanging(file: Path) -> Iterator[None]:
    """Whoever opens *file* hangs."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the system asks the holder in this way to give it up
    descriptor = os.open(file, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        os.close(descriptor)
        pytest.skip(f"there are no leases on this file system: {error.strerror}")
    try:
        yield
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)


def is_waited_for(file: Path) -> bool:
    """Whether the holder of the lease on *file* has been asked to give it up, and has time left to do so."""
    inode = f":{file.stat().st_ino} "
    return any("BREAKING" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def test_a_pipe_in_the_place_of_a_configuration_is_refused_and_not_read(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "good", code(1), CONFIG)
    (models / "pipe" / "1").mkdir(parents=True)
    os.mkfifo(models / "pipe" / "config.pbtxt")
    with RunningServer(models, flags=("--model-control-mode=explicit", "--load-model=good")) as server:
        refused = load(server, "pipe")
        assert refused.status == 500
        assert f"failed to open text file for read {models}/pipe/config.pbtxt: it is no regular file" in server.log
        assert value_of(server, "good") == 1
        (models / "pipe" / "config.pbtxt").unlink()
        (models / "pipe" / "config.pbtxt").write_text(CONFIG)
        (models / "pipe" / "1" / "model.py").write_text(code(2))
        must_load(server, "pipe")
        assert value_of(server, "pipe") == 2


def test_a_disk_that_hangs_keeps_no_other_repository_from_being_followed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / name, f"of_{name}", code(1), CONFIG)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with RunningServer(tmp_path / "a", tmp_path / "b", flags=flags) as server:
        stuck = tmp_path / "a" / "of_a" / "config.pbtxt"
        stuck.write_text(CONFIG + "\n# changed")
        with hanging(stuck):
            (tmp_path / "a" / "of_a" / "1" / "model.py").write_text(code(2))
            server.wait_for_log(f"failed to poll model repository '{tmp_path}/a': it is not done", timeout_s=_BREAK_S)
            (tmp_path / "b" / "of_b" / "1" / "model.py").write_text(code(3))
            wait_until(lambda: value_of(server, "of_b") == 3, limit_s=_BREAK_S)
            assert value_of(server, "of_a") == 1
        wait_until(lambda: value_of(server, "of_a") == 2, limit_s=_BREAK_S)


def test_a_disk_that_hangs_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "m", code(1), CONFIG)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-timeout-secs=20")
    with RunningServer(models, flags=flags) as server:
        stuck = models / "m" / "config.pbtxt"
        stuck.write_text(CONFIG + "\n# changed")
        with hanging(stuck):
            (models / "m" / "1" / "model.py").write_text(code(2))
            server.wait_for_log("it is not done", timeout_s=_BREAK_S)
            assert server.stop() == 0
            assert is_waited_for(stuck), "the disk has answered"


def test_a_label_file_on_a_disk_that_hangs_keeps_no_other_model_from_answering(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "good", code(1), CONFIG)
    write_model(models, "labelled", code(2), CONFIG.replace('"OUT"', '"OUT" label_filename: "labels.txt"'))
    stuck = models / "labelled" / "labels.txt"
    stuck.write_text("none\none\ntwo")
    flags = (EXPLICIT, "--load-model=good")
    with RunningServer(models, flags=flags) as server, ThreadPoolExecutor(1) as pool:
        with hanging(stuck):
            loading = pool.submit(must_load, server, "labelled")
            wait_until(lambda: is_waited_for(stuck), limit_s=_BREAK_S)
            assert value_of(server, "good") == 1
            assert is_waited_for(stuck), "the disk has answered"
        loading.result()
        assert value_of(server, "labelled") == 2
