"""Draw examples/data/scene.jpg and scene.png: a landscape at sunset, ours to give away.

python examples/make_images.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

DATA = Path(__file__).resolve().parent / "data"
WIDTH, HEIGHT = 480, 320


def landscape() -> Image.Image:
    """Sky, sun, three ranges of hills and a house, with the softness and the grain of a photograph."""
    rng = np.random.default_rng(2)
    downwards = np.linspace(0, 1, HEIGHT)[:, np.newaxis, np.newaxis]
    sky = (1 - downwards) * np.array([70, 110, 190]) + downwards * np.array([250, 180, 120])
    image = Image.fromarray(np.broadcast_to(sky, (HEIGHT, WIDTH, 3)).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse((330, 90, 390, 150), fill=(255, 236, 180))
    across = np.arange(WIDTH)
    for top, swing, colour in ((190, 26, (110, 110, 140)), (225, 18, (70, 95, 90)), (262, 12, (38, 66, 44))):
        ridge = top + swing * np.sin(across / (55 + swing) + top) + swing / 3 * np.sin(across / 17 + top)
        draw.polygon([(0, HEIGHT), *zip(across.tolist(), ridge.tolist()), (WIDTH, HEIGHT)], fill=colour)
    draw.rectangle((110, 232, 166, 272), fill=(150, 70, 60))
    draw.polygon([(102, 234), (138, 204), (174, 234)], fill=(80, 40, 40))
    draw.rectangle((132, 244, 146, 258), fill=(255, 220, 130))
    soft = np.asarray(image.filter(ImageFilter.GaussianBlur(0.8)), dtype=np.float64)
    grain = rng.normal(0, 3, size=(HEIGHT, WIDTH, 1))
    return Image.fromarray((soft + grain).clip(0, 255).astype(np.uint8))


def main() -> None:
    DATA.mkdir(exist_ok=True)
    scene = landscape()
    scene.save(DATA / "scene.jpg", quality=85, optimize=True)
    # PNG keeps every grain, so it is smaller in size and in colours.
    scene.resize((WIDTH // 2, HEIGHT // 2)).quantize(64).save(DATA / "scene.png", optimize=True)


if __name__ == "__main__":
    main()
