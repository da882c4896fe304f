"""Write `bookbuild/assets/static/sslbook/mathjax.js`: the parts of MathJax that typeset the book, as one script.

MathJax's own single files carry a menu of 0.4 MB and a loader that fetches what is missing. Its components, loaded one by one,
arrive in any order, and the font before the output it belongs to breaks the page (seen in one load of five). So the components
are joined in the order of their dependencies; as one script they run before the loader's promise resolves.

    npm pack mathjax@3.2.2 && tar xzf mathjax-3.2.2.tgz
    python tools/make_mathjax.py package
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VERSION = "3.2.2"
TEX_PACKAGES = ("ams", "newcommand", "configmacros", "textmacros", "boldsymbol", "mathtools")
"""TeX extensions; `MATHJAX` in bookbuild/sphinx_ext.py switches on the same ones."""

COMPONENTS = (
    "core",
    "input/tex-base",
    *(f"input/tex/extensions/{name}" for name in TEX_PACKAGES),
    "output/svg",
    "output/svg/fonts/tex",
    "a11y/assistive-mml",
)


def join(package: Path) -> str:
    """The joined script, from the unpacked npm package."""
    version = json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]
    if version != VERSION:
        raise ValueError(f"package: got MathJax {version}; {VERSION} is needed")
    names = [name.replace("input/tex/extensions/", "[tex]/") for name in ("loader", "startup", *COMPONENTS)]
    parts = [
        f"/* MathJax {VERSION}, Apache License 2.0: see mathjax.LICENSE.txt. Joined by tools/make_mathjax.py. */",
        (package / "es5/startup.js").read_text(encoding="utf-8"),
        f"MathJax.loader.preLoad({', '.join(map(json.dumps, names))});",
        *((package / f"es5/{name}.js").read_text(encoding="utf-8") for name in COMPONENTS),
    ]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def main() -> None:
    package = Path(sys.argv[1])
    target = Path(__file__).parents[1] / "bookbuild/assets/static/sslbook"
    (target / "mathjax.js").write_text(join(package), encoding="utf-8")
    (target / "mathjax.LICENSE.txt").write_bytes((package / "LICENSE").read_bytes())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
