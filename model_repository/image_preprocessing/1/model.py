"""image_preprocessing: a JPEG or PNG file → FP32 [224, 224, 3], RGB, scaled to [-1, 1].

One image that cannot be decoded is an answer to the request that sent it, and to no other: see `execute`.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageOps, UnidentifiedImageError

SIDE = 224
# Pillow knows some forty formats. Clients decide what is decoded here, so only the decoders that we promise are open
# to them.
FORMATS = ("JPEG", "PNG")


class UndecodableImage(Exception):
    """The bytes are no JPEG or PNG, or a damaged one; the text is for the client."""


def decode(data: bytes) -> Image.Image:
    """Return the picture as 8-bit RGB, upright, in its own size; raise UndecodableImage."""
    try:
        # open() reads only the header. What follows reads the pixels, and so finds truncated files.
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            image.load()
            # Cameras store portraits lying down, with a note which way is up.
            upright = ImageOps.exif_transpose(image)
    except UnidentifiedImageError as error:
        raise UndecodableImage(f"expected a JPEG or PNG file, got {len(data)} bytes of something else") from error
    except Exception as error:
        # A decoder fed with arbitrary bytes raises nearly anything: OSError, SyntaxError, ValueError,
        # DecompressionBombError. Each means the same to the client.
        raise UndecodableImage(f"cannot decode these {len(data)} bytes: {error}") from error
    return to_rgb(upright)


def to_rgb(image: Image.Image) -> Image.Image:
    """Return *image* as 8-bit RGB: transparent parts on white, 16-bit greys scaled to 8."""
    if image.mode.startswith("I"):
        # convert() would clip 16-bit greys at 255, which makes nearly everything white. 65535 / 257 = 255.
        grey = np.asarray(image, dtype=np.uint32) // 257
        image = Image.fromarray(grey.astype(np.uint8))
    if image.has_transparency_data:
        # The colour under a transparent pixel is arbitrary, often black.
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def preprocess(data: bytes) -> np.ndarray:
    """Return float32 [224, 224, 3]: 0 becomes -1 and 255 becomes 1. Raise UndecodableImage."""
    # The whole picture is squeezed into the square; nothing is cut off.
    resized = decode(data).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, dtype=np.float32)
    # float32 / int stays float32 for a Python number, under numpy 1 and 2.
    return pixels / 127.5 - 1


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # A few kilobytes can claim to be a gigapixel. Pillow warns at 90 megapixels and refuses at twice that; for
        # bytes from a network both are refused.
        warnings.simplefilter("error", Image.DecompressionBombWarning)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer every request; a bad one gets an error as its response.

        An exception from here would fail the whole batch, the requests of other clients included.
        """
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        # [N, 1], elements are bytes.
        files = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().reshape(-1)
        images = np.empty((len(files), SIDE, SIDE, 3), dtype=np.float32)
        for index, data in enumerate(files):
            try:
                images[index] = preprocess(data)
            except UndecodableImage as error:
                text = f"input 'IMAGE', image {index}: {error}"
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor("PREPROCESSED_IMAGE", images)])
