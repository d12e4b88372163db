from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pb_utils_stand_in import TritonError, execute, strings
from PIL import Image

SCENE = Path(__file__).resolve().parents[2] / "examples" / "data" / "scene.jpg"


@pytest.fixture
def model(load_model: Callable[[str], ModuleType]) -> Any:
    model = load_model("image_preprocessing").TritonPythonModel()
    model.initialize({})
    return model


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def solid(colour: Any, mode: str = "RGB", kind: str = "PNG") -> bytes:
    return encode(Image.new(mode, (30, 20), colour), kind)


def halves(left: str, right: str) -> Image.Image:
    image = Image.new("RGB", (448, 224), left)
    image.paste(right, (224, 0, 448, 224))
    return image


def answer(model: Any, data: bytes) -> np.ndarray:
    [response] = execute(model, {"IMAGE": strings(data)})
    [image] = response.arrays()["PREPROCESSED_IMAGE"]
    return image


def refusal(model: Any, data: bytes) -> str:
    [response] = execute(model, {"IMAGE": strings(data)})
    assert response.error.code() is TritonError.INVALID_ARG
    return response.error.message()


def test_black_is_minus_one_and_white_is_one(model: Any) -> None:
    assert np.all(answer(model, solid("black")) == -1)
    assert np.all(answer(model, solid("white")) == 1)


def test_channels_are_red_green_blue_in_fp32(model: Any) -> None:
    image = answer(model, solid((0, 102, 204)))
    assert image.dtype == np.float32 and image.shape == (224, 224, 3)
    assert image[100, 100] == pytest.approx([-1, -0.2, 0.6])


def test_rows_come_before_columns(model: Any) -> None:
    image = answer(model, encode(halves("red", "blue")))
    assert np.all(image[:, :110] == [1, -1, -1])
    assert np.all(image[:, 114:] == [-1, -1, 1])


def test_jpeg_of_the_examples_keeps_its_brightness(model: Any) -> None:
    with Image.open(SCENE) as scene:
        expected = np.asarray(scene.convert("RGB"), dtype=np.float64).mean(axis=(0, 1)) / 255 * 2 - 1
    assert answer(model, SCENE.read_bytes()).mean(axis=(0, 1)) == pytest.approx(expected, abs=0.01)


def test_photo_taken_with_the_camera_on_its_side_comes_out_upright(model: Any) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # "the first row is the right side": turn a quarter clockwise
    image = answer(model, encode(halves("red", "blue"), "JPEG", exif=exif))
    assert image[20, 112] == pytest.approx([1, -1, -1], abs=0.05)
    assert image[200, 112] == pytest.approx([-1, -1, 1], abs=0.05)


def test_transparent_pixels_are_white_whatever_colour_they_hide(model: Any) -> None:
    assert np.all(answer(model, solid((255, 0, 0, 0), "RGBA")) == 1)


def test_grey_and_palette_images_become_rgb(model: Any) -> None:
    assert answer(model, solid(51, "L"))[0, 0] == pytest.approx([-0.6] * 3)
    assert answer(model, encode(halves("red", "blue").quantize(2)))[0, 0] == pytest.approx([1, -1, -1])


def test_sixteen_bit_grey_is_scaled_and_not_clipped(model: Any) -> None:
    grey = Image.fromarray(np.full((20, 30), 51 * 257, dtype=np.uint16))
    assert answer(model, encode(grey))[0, 0] == pytest.approx([-0.6] * 3)


def test_cmyk_jpeg_becomes_rgb(model: Any) -> None:
    assert answer(model, solid((255, 255, 0, 0), "CMYK", "JPEG"))[0, 0] == pytest.approx([-1, -1, 1], abs=0.05)


def test_broken_images_get_errors_and_their_batch_mates_answers(model: Any) -> None:
    jpeg = SCENE.read_bytes()
    files = [solid("black"), b"no image", jpeg[: len(jpeg) // 2], b"", solid("white")]
    responses = execute(model, *({"IMAGE": strings(data)} for data in files))
    assert [response.error is not None for response in responses] == [False, True, True, True, False]
    assert {response.error.code() for response in responses[1:4]} == {TritonError.INVALID_ARG}
    assert np.all(responses[0].arrays()["PREPROCESSED_IMAGE"] == -1)
    assert np.all(responses[4].arrays()["PREPROCESSED_IMAGE"] == 1)


def test_error_names_the_input_and_the_image_within_the_request(model: Any) -> None:
    [response] = execute(model, {"IMAGE": strings(solid("black"), b"no image")})
    assert (
        response.error.message() == "input 'IMAGE', image 1: expected a JPEG or PNG file, got 8 bytes of something else"
    )


def test_several_images_in_one_request_keep_their_order(model: Any) -> None:
    [response] = execute(model, {"IMAGE": strings(solid("white"), solid("black"), solid("white"))})
    images = response.arrays()["PREPROCESSED_IMAGE"]
    assert images.shape == (3, 224, 224, 3)
    assert images[:, 0, 0, 0].tolist() == [1, -1, 1]


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF"])
def test_other_formats_are_refused_although_pillow_knows_them(model: Any, kind: str) -> None:
    assert "expected a JPEG or PNG file" in refusal(model, solid("white", kind=kind))


def test_small_file_that_claims_a_hundred_megapixels_is_refused_before_it_is_decoded(model: Any) -> None:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    assert "decompression bomb" in refusal(model, bomb)


@pytest.mark.parametrize("position", [10, 40, 60])
def test_damaged_png_is_an_error_of_the_request_not_of_the_model(model: Any, position: int) -> None:
    data = bytearray(solid((1, 2, 3)))
    data[position] ^= 0xFF
    assert "input 'IMAGE', image 0" in refusal(model, bytes(data))
