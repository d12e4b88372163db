"""Ask the server whether sentences speak well or badly of their subject.

python examples/text_classification.py "An instant classic, brilliantly acted."
python examples/text_classification.py --protocol http-aio --file reviews.txt
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from calling import CallFailed, arguments, infer, run


def sentences(options: argparse.Namespace) -> list[str]:
    """Return those of the command line, or else the lines of --file."""
    if options.file is None:
        return options.sentences
    try:
        return options.file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CallFailed(f"{options.file}: {error}") from error


def text_classification(options: argparse.Namespace) -> None:
    texts = sentences(options)
    # BYTES tensors are arrays of bytes objects. [1, 1] is a batch of one.
    requests = [{"TEXT": np.array([[text.encode("utf-8")]], dtype=np.object_)} for text in texts]
    answers = infer(options.protocol, options.url, "text_classification", requests, ["CLASS", "LABEL", "PROB"])
    for text, answer in zip(texts, answers):
        label = answer["LABEL"][0, 0].decode("utf-8")
        print(f"{label} (class {answer['CLASS'][0, 0]}, probability {answer['PROB'][0, 0]:.3f}): {text}")


def main() -> int:
    parser = arguments("Classify sentences with the model text_classification.")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("sentences", nargs="*", default=[], metavar="SENTENCE", help="in quotes, if it has blanks")
    either.add_argument("--file", type=Path, help="a text file with one sentence on each line")
    return run(parser, text_classification)


if __name__ == "__main__":
    sys.exit(main())
