"""Figures as readers see them: `python scripts/view_figures.py FOLDER OUT` for every PNG below FOLDER.

Each becomes one sheet with three views, scaled to 3.3 inches (one column of a paper): as it is, in greyscale, and
as a reader with deuteranopia sees it (the matrix of Machado, Oliveira and Fernandes, 2009, in linear light).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

COLUMN = 726  # pixels: 3.3 inches at 220 dots an inch
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)


def deuteranopic(picture: Image.Image) -> Image.Image:
    """As a reader with deuteranopia sees it."""
    values = np.asarray(picture) / 255.0
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    changed = np.clip(linear @ DEUTERANOPIA.T, 0, 1)
    shown = np.where(
        changed <= 0.0031308, changed * 12.92, 1.055 * changed ** (1 / 2.4) - 0.055
    )
    return Image.fromarray((shown * 255).round().astype(np.uint8))


def views(picture: Image.Image) -> Image.Image:
    """The three views beside each other."""
    ground = Image.new("RGBA", picture.size, "white")
    plain = Image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")
    height = round(plain.height * COLUMN / plain.width)
    plain = plain.resize((COLUMN, height), Image.Resampling.LANCZOS)
    sheet = Image.new("RGB", (3 * COLUMN, height), "white")
    for number, view in enumerate((plain, plain.convert("L"), deuteranopic(plain))):
        sheet.paste(view, (number * COLUMN, 0))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description="Figures as readers see them.")
    parser.add_argument("folder", type=Path, help="PNG files in it and in its folders are read")
    parser.add_argument("out", type=Path, help="where the views are written")
    asked = parser.parse_args()
    for path in sorted(asked.folder.rglob("*.png")):
        to = asked.out / path.relative_to(asked.folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        views(Image.open(path)).save(to)
        print(to)


if __name__ == "__main__":
    main()
