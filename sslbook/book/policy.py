"""What a built page may load and run: a `Content-Security-Policy` in its head.

The scripts that stand in a page are allowed by their hashes, taken from the finished pages, so that whoever changes one need not
know of it; an injected script, a handler in an attribute (`htmlcheck` looks for those) and whatever lies on another machine are
refused by the browser.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

_INLINE = re.compile(r"<script\b(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_CHARSET = re.compile(r"<meta charset=[^>]*>", re.IGNORECASE)

# Chromium takes 'self' on file:// to be any file; that other browsers do so was not tried, so the scheme is named too. Elsewhere it
# allows nothing: no page from a server may load a file. Styles need 'unsafe-inline' for MathJax, which writes a style sheet into
# the page with the rules of what it found there; of scripts, nothing needs it, nor 'unsafe-eval'.
_OWN = "'self' file:"
_FIXED = {
    "default-src": "'none'",
    "style-src": f"{_OWN} 'unsafe-inline'",
    "img-src": f"{_OWN} data:",
    "font-src": f"{_OWN} data:",  # icons.css holds its font
    "form-action": _OWN,
    "base-uri": "'none'",
}


def policy(page: str) -> str:
    """The policy of a page, from its HTML."""
    own = {_hash(script) for script in _INLINE.findall(page) if script.strip()}
    told = {**_FIXED, "script-src": " ".join([_OWN, *sorted(own)])}
    return "; ".join(f"{directive} {sources}" for directive, sources in told.items())


def apply(folder: Path) -> None:
    """Write its policy into each page below ``folder``; raises ValueError, naming it, for a page that declares no charset."""
    for path in sorted(folder.rglob("*.html")):
        if "_static" in path.relative_to(folder).parts:
            continue
        page = path.read_text(encoding="utf-8")
        charset = _CHARSET.search(page)  # browsers look for it in the first kilobyte, so the policy comes second
        if charset is None:
            raise ValueError(f"{path}: has no <meta charset>, after which its policy would stand")
        line = f'\n<meta http-equiv="Content-Security-Policy" content="{policy(page)}">'
        path.write_text(page[: charset.end()] + line + page[charset.end() :], encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
