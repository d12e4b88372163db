"""Runs one command, and ends it with everything it started when nobody wants it any more.

Started by path with the server's interpreter; standard library only. Standard input brings one line of JSON with
``command`` and ``variables``, and stays open for as long as the command is wanted: at its end, which is also the server's
whatever ended it, the process group of the command is killed. The exit status is the command's, or 128 and
the number of the signal.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 1
    order = json.loads(line)
    try:
        child = subprocess.Popen(
            order["command"],
            env=order["variables"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        print(f"{order['command'][0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    threading.Thread(target=_kill_when_unwanted, args=(child.pid,), daemon=True).start()
    status = _wait_and_kill_group(child)
    return status if status >= 0 else 128 - status


def _wait_and_kill_group(child: subprocess.Popen[bytes]) -> int:
    """Wait for the end of *child*, which ends the rest of its process group; its return code."""
    if not hasattr(os, "waitid"):
        # macOS before Python 3.13. A number comes round again when all others were given out, so this one is not taken yet.
        status = child.wait()
        _kill_group(child.pid)
        return status
    # Seen before it is reaped, so that the number of its process group cannot be anybody else's yet.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    _kill_group(child.pid)
    return child.wait()


def _kill_when_unwanted(group: int) -> None:
    os.read(0, 1)
    _kill_group(group)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


if __name__ == "__main__":
    # The thread sits in a read, which an ordinary exit may wait for.
    status = main()
    sys.stderr.flush()
    os._exit(status)
