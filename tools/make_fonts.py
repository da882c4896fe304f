"""Write the book's text face: `serif-*.woff2` for the pages, `sslchapters/assets/fonts/serif-*.ttf` for the figures.

They are Source Serif 4, reduced to what the book writes, and renamed, because its licence reserves the name "Source" for the
unmodified fonts. Run it again after adding a character to `CHARACTERS`:

    python tools/make_fonts.py FOLDER          # with the TTF files of the npm package; needs fonttools and brotli
"""

from __future__ import annotations

import sys
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

NAME, VERSION = "Book Serif", "4.5.1"
STYLES = {"Regular": ("Regular", 400, 0, 0x40), "It": ("Italic", 400, 2, 0x01), "Semibold": ("Bold", 700, 1, 0x20)}
RANGES = ((0x20, 0x17F), (0x2010, 0x205E), (0x2070, 0x209F), (0x2150, 0x22C5), (0x391, 0x3F5), (0x25A0, 0x2717))
CHARACTERS = [point for first, last in RANGES for point in range(first, last + 1)]
ASSETS = Path(__file__).parents[1] / "bookbuild/assets"


def make(source: Path) -> None:
    """Each style, as TTF and as WOFF2."""
    for file, (style, weight, mac, selection) in STYLES.items():
        font, options = TTFont(source / f"SourceSerif4-{file}.ttf"), Options()
        options.layout_features = ["kern", "liga", "mark", "mkmk", "ccmp", "locl", "tnum", "lnum"]
        options.name_IDs, options.hinting = [0, 13, 14], False
        subsetter = Subsetter(options)
        subsetter.populate(unicodes=CHARACTERS)
        subsetter.subset(font)
        told = f"{style}, from Source Serif {VERSION}"
        for name_id, text in {1: NAME, 2: style, 3: told, 4: f"{NAME} {style}", 6: f"BookSerif-{style}"}.items():
            font["name"].setName(text, name_id, 3, 1, 0x409)
        font["OS/2"].usWeightClass, font["head"].macStyle = weight, mac
        font["OS/2"].fsSelection = font["OS/2"].fsSelection & ~0x61 | selection
        font.save(ASSETS / f"fonts/serif-{style.lower()}.ttf")
        font.flavor = "woff2"
        font.save(ASSETS / f"static/sslbook/serif-{style.lower()}.woff2")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
