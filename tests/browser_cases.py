"""The system's Chromium, for the tests of the pages and of the notebooks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
AXE = Path(__file__).with_name("vendor") / "axe.min.js"

MARKS = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="no Chromium here; on Debian and Ubuntu: apt-get install chromium chromium-driver",
    ),
]


def in_browser(test: Any) -> Any:
    """A test with all of :data:`MARKS`."""
    for mark in MARKS:
        test = mark(test)
    return test


def headless(*flags: str, logging: dict[str, str] | None = None) -> Any:
    """A headless Chromium that stays on this machine, with more ``flags``; ``logging`` says what selenium keeps of its logs."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "no-proxy-server", "no-first-run", *flags):
        options.add_argument(f"--{flag}")
    if logging:
        options.set_capability("goog:loggingPrefs", logging)
    return webdriver.Chrome(options=options, service=Service(DRIVER))
