"""Add and subtract two vectors of four numbers on the server, and check its answer.

python examples/add_sub.py 1 2 3 4 10 20 30 40
python examples/add_sub.py --protocol grpc-aio 1 2 3 4 10 20 30 40
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from calling import CallFailed, arguments, infer, run


def fp32(text: str) -> float:
    """Refuse what the check below could not compare (nan) or float32 cannot hold."""
    number = float(text)
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise argparse.ArgumentTypeError(f"expected a number that FP32 can hold, got {text!r}")
    return number


def add_sub(options: argparse.Namespace) -> None:
    left, right = np.array(options.numbers, dtype=np.float32).reshape(2, 4)
    request = {"INPUT0": left, "INPUT1": right}
    [answer] = infer(options.protocol, options.url, "add_sub", [request], ["OUTPUT0", "OUTPUT1"])
    for sign, name, expected in (("+", "OUTPUT0", left + right), ("-", "OUTPUT1", left - right)):
        if not np.array_equal(answer[name], expected):
            raise CallFailed(f"wrong answer: {name} is {answer[name]}, expected {expected}")
        print(f"{left} {sign} {right} = {answer[name]}")


def main() -> int:
    parser = arguments("Add and subtract two vectors with the model add_sub.")
    parser.add_argument("numbers", nargs=8, type=fp32, metavar="NUMBER", help="four of INPUT0, then four of INPUT1")
    return run(parser, add_sub)


if __name__ == "__main__":
    sys.exit(main())
