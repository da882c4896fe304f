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


def main(package: Path) -> None:
    """Join the script from the unpacked npm package."""
    if (found := json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]) != VERSION:
        sys.exit(f"package: got MathJax {found}; {VERSION} is needed")
    names = [name.replace("input/tex/extensions/", "[tex]/") for name in ("loader", "startup", *COMPONENTS)]
    startup, *parts = ((package / f"es5/{name}.js").read_text(encoding="utf-8") for name in ("startup", *COMPONENTS))
    head = f"/* MathJax {VERSION}, Apache License 2.0: see mathjax.LICENSE.txt. Joined by tools/make_mathjax.py. */"
    lines = [head, startup, f"MathJax.loader.preLoad({', '.join(map(json.dumps, names))});", *parts]
    target = Path(__file__).parents[1] / "bookbuild/assets/static/sslbook"
    (target / "mathjax.js").write_text("\n".join(line.rstrip("\n") for line in lines) + "\n", encoding="utf-8")
    (target / "mathjax.LICENSE.txt").write_bytes((package / "LICENSE").read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1])) if sys.argv[1:] else sys.exit(__doc__)
