"""Turn image files into what an image network wants: FP32 [224, 224, 3] in [-1, 1].

python examples/image_preprocessing.py examples/data/scene.jpg
python examples/image_preprocessing.py --protocol grpc examples/data/scene.jpg examples/data/scene.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from calling import CallFailed, arguments, infer, run


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CallFailed(f"{path}: {error.strerror}") from error


def image_preprocessing(options: argparse.Namespace) -> None:
    # The file goes as it is, one element of BYTES: the server decodes. [1, 1] is a batch of one.
    requests = [{"IMAGE": np.array([[read(path)]], dtype=np.object_)} for path in options.images]
    answers = infer(options.protocol, options.url, "image_preprocessing", requests, ["PREPROCESSED_IMAGE"])
    for path, answer in zip(options.images, answers):
        [image] = answer["PREPROCESSED_IMAGE"]
        print(f"{path}: {image.dtype} {list(image.shape)} {min_max_mean(image)}")
        for channel, name in enumerate(("red", "green", "blue")):
            print(f"  {name:<5} {min_max_mean(image[:, :, channel])}")


def min_max_mean(values: np.ndarray) -> str:
    return f"min {values.min():+.3f}  max {values.max():+.3f}  mean {values.mean():+.3f}"


def main() -> int:
    parser = arguments("Prepare images with the model image_preprocessing.")
    parser.add_argument("images", nargs="+", type=Path, metavar="FILE", help="a JPEG or PNG file")
    return run(parser, image_preprocessing)


if __name__ == "__main__":
    sys.exit(main())
