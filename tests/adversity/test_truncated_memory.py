"""Models that truncate the files they share with the server: they fail by themselves, and the server lives."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.harness import RunningServer, one_process, tensor, write_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory files and seals are Linux's")

TENSORS = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
"""
TRUNCATES = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            given = requests[0].inputs()[0].as_numpy()
            if given[0] == 1:  # everything that is shared, however it is held
                for fd in range(3, 256):
                    try:
                        os.ftruncate(fd, 0)
                    except OSError:
                        pass
            if given[0] == 2:  # in the place of the arena that was announced, one that can be truncated
                from pytriton_lite.ipc import segment
                segment._FIXED_SIZE = 0
            answer = np.full(1 << 20, given[0], np.int32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", answer)])]
"""


def ask(server: RunningServer, first: int, elements: int = 1 << 20) -> np.ndarray:
    with httpclient.InferenceServerClient(server.http_url, network_timeout=60) as client:
        given = httpclient.InferInput("IN", [elements], "INT32")
        given.set_data_from_numpy(np.full(elements, first, np.int32))
        answer = client.infer("m", [given]).as_numpy("OUT")
    assert isinstance(answer, np.ndarray)
    return answer


def test_a_model_that_truncates_all_that_it_shares_harms_nobody(tmp_path: Path) -> None:
    write_model(tmp_path, "m", TRUNCATES, TENSORS)
    with RunningServer(tmp_path) as server:
        assert ask(server, 0)[-1] == 0
        assert ask(server, 1)[-1] == 1
        assert ask(server, 0)[-1] == 0
        assert server.process.poll() is None


def test_a_worker_that_shares_memory_which_it_could_truncate_is_killed_and_replaced(tmp_path: Path) -> None:
    write_model(tmp_path, "m", TRUNCATES, TENSORS)
    with RunningServer(tmp_path) as server:
        died = server.infer("m", [tensor("IN", "INT32", [1], [2])])
        assert (died.status, "is not healthy" in died.error) == (503, True)
        server.wait_for_log("killing the worker: shared memory came whose size is not sealed")
        assert ask(server, 0)[-1] == 0


MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
REFUSE_MEMORY_FILES = """
import ctypes, os, struct, sys
number = int(sys.argv[1])
allow, refuse = 0x7FFF0000, 0x00050000 | 38  # with ENOSYS
program = b"".join(struct.pack("HBBI", *line) for line in (
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, refuse), (0x06, 0, 0, allow)))
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(filter)) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@one_process("there must be memory files")
@pytest.mark.skipif(platform.machine() not in MEMFD_CREATE, reason="the number of a system call is needed")
def test_where_there_are_no_memory_files_the_server_maps_nothing_that_could_shrink(tmp_path: Path) -> None:
    write_model(tmp_path, "m", TRUNCATES, TENSORS)
    filtered = (sys.executable, "-c", REFUSE_MEMORY_FILES, str(MEMFD_CREATE[platform.machine()]))
    with RunningServer(tmp_path, python=filtered) as server:
        assert "memfd:" not in Path(f"/proc/{server.process.pid}/maps").read_text()
        assert ask(server, 0)[-1] == 0
        assert ask(server, 1)[-1] == 1
        assert ask(server, 0)[-1] == 0
        assert server.process.poll() is None
