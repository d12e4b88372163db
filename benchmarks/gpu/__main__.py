"""The ten-minute check of a machine with a GPU: one line of JSON for each check, and an exit code.

    python -m benchmarks.gpu                 every check
    python -m benchmarks.gpu --only copies   those whose names begin so
    python -m benchmarks.gpu --pretend       on pretended devices: whether the checks themselves run, and no figure counts

Needs this project, numpy, tritonclient with both protocols, and the driver; no package of CUDA. Each line has ``check``,
``result`` (PASS, FAIL, or DONE for figures without a goal) and what was found. The exit code is 0 if nothing failed, 1 if
something did, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu import end_to_end, primitives
from pytriton_lite.ipc import device as devices

Findings = dict[str, Any]
Check = Callable[[], Findings]
_LIMIT_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="checks whose names begin so")
    parser.add_argument("--pretend", action="store_true", help="try the checks on pretended devices; no figure counts")
    options = parser.parse_args()
    if options.pretend:
        os.environ[devices.PRETENDED] = "1"
    if not devices.visible_device_ids():
        print(
            "There is no GPU that CUDA lets this process use (libcuda.so.1, CUDA_VISIBLE_DEVICES): nothing was checked.",
            file=sys.stderr,
        )
        return 2
    failed = 0
    began = time.monotonic()
    for name, check in _checks():
        if not name.startswith(options.only):
            continue
        line: Findings = {"check": name, "pretended": options.pretend}
        left_s = _LIMIT_S - (time.monotonic() - began)
        try:
            line |= {"result": "DONE", **check()} if left_s > 0 else {"result": "FAIL", "error": "ten minutes are over"}
        except Exception as error:
            traceback.print_exc()
            line |= {"result": "FAIL", "error": f"{type(error).__name__}: {error}"}
        line["took_s"] = round(time.monotonic() - began - (_LIMIT_S - left_s), 2)
        failed += line["result"] == "FAIL"
        print(json.dumps(line), flush=True)
    return 1 if failed else 0


def _checks() -> Iterator[tuple[str, Check]]:
    yield from primitives.checks()
    yield from end_to_end.checks()


if __name__ == "__main__":
    sys.exit(main())
