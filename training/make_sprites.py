"""Render the sprite sheet of the miniature world from the Noto Color Emoji font (SIL OFL 1.1).

Needs the font (Debian: fonts-noto-color-emoji). The sheet is committed, so this runs only when categories change.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from heal.world.categories import CATEGORIES
from heal.world.sprites import COLUMNS, SHEET, SIZE

BITMAP = 109  # the only size of the font's bitmaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--font", type=Path, default=Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"))
    font = ImageFont.truetype(str(parser.parse_args().font), BITMAP)
    rows = -(-len(CATEGORIES) // COLUMNS)
    sheet = Image.new("RGBA", (COLUMNS * SIZE, rows * SIZE))
    for index, category in enumerate(CATEGORIES):
        sprite = render(category.emoji, font)
        if category.name == "fork":  # the emoji shows a fork and a knife
            sprite = trim(sprite.crop((0, 0, int(sprite.width * 0.5), sprite.height)))
        sheet.paste(fit(sprite), ((index % COLUMNS) * SIZE, (index // COLUMNS) * SIZE))
    sheet.save(SHEET, optimize=True)
    print(f"{SHEET}: {SHEET.stat().st_size:,} bytes")


def render(emoji: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    canvas = Image.new("RGBA", (160, 160))
    ImageDraw.Draw(canvas).text((10, 10), emoji, font=font, embedded_color=True)
    return trim(canvas)


def trim(image: Image.Image) -> Image.Image:
    box = image.getbbox()
    if box is None:
        raise SystemExit("the font does not have this emoji: install a newer fonts-noto-color-emoji")
    return image.crop(box)


def fit(image: Image.Image) -> Image.Image:
    """Centre in a square whose side is SIZE."""
    scale = SIZE / max(image.size)
    small = image.resize(
        (max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.LANCZOS
    )
    square = Image.new("RGBA", (SIZE, SIZE))
    square.paste(small, ((SIZE - small.width) // 2, (SIZE - small.height) // 2))
    return square


if __name__ == "__main__":
    main()
