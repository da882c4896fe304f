"""The built book in a browser: every page, light and dark, wide and from a folder, on a phone and from a server.

Needs the system's Chromium and its driver.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import browser_cases
import pytest
from page_cases import CONTRAST, INLINE, SCROLLED, VIEWS, Browser, address, browser, html, page_names, serve, settles

from sslbook.book import sphinx_ext

__all__ = ["address", "browser", "html"]  # fixtures
pytestmark = browser_cases.MARKS

FRAMES = """
const figure = arguments[0];
const seen = i => !i.hidden && i.naturalWidth && i.getBoundingClientRect().height > 20;
return [...figure.querySelectorAll('img[data-text]')].map((i, n) => seen(i) && [n, i.dataset.text, i.alt]).filter(x => x);
"""


@pytest.mark.parametrize("page", page_names())
def test_page_at_a_desk_from_a_folder(browser: Browser, html: Path, page: str) -> None:
    browser.open((html / f"{page}.html").as_uri(), VIEWS["light"])
    assert not any(stop for stop, _ in browser.driver.execute_script(INLINE)), "no formula in a sentence is a tab stop"
    check(browser, html.as_uri())


@pytest.mark.parametrize("page", page_names())
def test_page_on_a_phone_from_a_server(browser: Browser, address: str, page: str) -> None:
    browser.open(f"{address}/{page}.html", VIEWS["phone"])
    assert not any(cut for _, cut in browser.driver.execute_script(INLINE)), "no formula reaches beyond the edge"
    assert browser.driver.execute_script(SCROLLED) == [], "nor scrolls: break it, or give a part of it a name"
    check(browser, address)


def check(browser: Browser, home: str) -> None:
    """Whatever moves does, and nothing is wrong with the open page, light and, with other colours, dark as the system is."""
    check_sliders(browser)
    assert settles(browser.theme, "light") == "light"
    assert browser.problems(home) == []
    browser.prefer("dark")
    assert settles(browser.theme, "dark") == "dark"
    assert browser.problems(home) == []
    assert browser.violations(runOnly=[CONTRAST]) == []
    browser.prefer("light")
    assert settles(browser.theme, "light") == "light"
    assert browser.violations() == []
    assert browser.use() == []


def check_sliders(browser: Browser) -> None:
    """Move every slider of the open page by keyboard and by pointer."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    figures = browser.driver.find_elements(By.CSS_SELECTOR, "[data-sslbook-slider]")
    for figure in figures:
        control = figure.find_element(By.CSS_SELECTOR, "input[type=range]")
        last = int(control.get_attribute("max"))
        browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", control)

        def state(figure: Any = figure) -> tuple[int, str, str]:
            visible = browser.driver.execute_script(FRAMES, figure)
            assert len(visible) == 1, "one frame is visible, and only one"
            index, text, alt = visible[0]
            assert figure.find_element(By.TAG_NAME, "output").text == text
            assert alt.strip()
            return index, text, alt

        def place(state: Callable[[], tuple[int, str, str]] = state) -> int:
            return state()[0]

        control.send_keys(Keys.HOME)
        assert settles(place, 0) == 0
        control.send_keys(Keys.ARROW_RIGHT)
        assert settles(place, 1) == 1
        control.send_keys(Keys.END)
        assert settles(place, last) == last
        assert control.get_attribute("aria-valuetext") == state()[1]
        half = control.size["width"] // 2
        left, right = (control, 3 - half, 0), (control, half - 3, 0)
        ActionChains(browser.driver).move_to_element_with_offset(*left).click().perform()
        assert settles(place, 0) == 0
        drag = ActionChains(browser.driver).move_to_element_with_offset(*left).click_and_hold()
        drag.move_to_element_with_offset(*right).release().perform()
        assert settles(place, last) == last


def test_a_slider_shows_three_of_its_frames_on_paper_and_needs_no_script(browser: Browser, address: str) -> None:
    from selenium.webdriver.common.by import By

    try:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=True)
        browser.driver.get(f"{address}/chapters/covariance.html")
        figure = browser.driver.find_element(By.CSS_SELECTOR, "[data-sslbook-slider]")
        frames = figure.find_elements(By.TAG_NAME, "img")
        assert any(frame.is_displayed() for frame in frames)
        browser.cdp("Emulation.setEmulatedMedia", media="print")
        assert [i for i, one in enumerate(frames) if one.is_displayed()] == [0, len(frames) // 2, len(frames) - 1]
        assert figure.find_element(By.CSS_SELECTOR, ".sslbook-slider-note").is_displayed()
        assert not figure.find_element(By.CSS_SELECTOR, ".sslbook-slider-control").is_displayed()
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=False)
        browser.cdp("Emulation.setEmulatedMedia", media="")


WIDE = """
return [...document.querySelectorAll('[data-sslbook-wide]')].map(e => [
  e.dataset.sslbookWide, e.tabIndex, e.scrollWidth > e.clientWidth + 1, getComputedStyle(e).maskImage !== 'none']);
"""


# A table and code of so many pixels, whatever fonts there are; what is narrow is left alone.
SCROLLING = """<!DOCTYPE html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>Wide</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="book.css"><script defer src="book.js"></script>
</head><body><main class="bd-article">
<div class="pst-scrollable-table-container"><table class="table"><tr><td><div style="width: {0}px">1</div></td></tr></table></div>
<pre style="overflow: auto"><div style="width: {0}px">1</div></pre></main></body></html>"""


@pytest.mark.parametrize(("width", "state"), [(900, ["right", 0, True, True]), (90, None)])
def test_what_scrolls_says_so(browser: Browser, tmp_path: Path, width: int, state: list[Any] | None) -> None:
    """Faded at the side where there is more, and reached by keyboard."""
    for name in ("book.js", "book.css"):
        shutil.copy(sphinx_ext.ASSETS / "static/sslbook" / name, tmp_path)
    (tmp_path / "wide.html").write_text(SCROLLING.format(width), encoding="utf-8")
    for home in serve(tmp_path):
        browser.open(f"{home}/wide.html", VIEWS["phone"])
        wanted = [state, state] if state else []
        assert settles(lambda: browser.driver.execute_script(WIDE), wanted) == wanted
        if state:
            browser.driver.execute_script("document.querySelector('[data-sslbook-wide]').scrollLeft = 1e4")
            assert settles(lambda: browser.driver.execute_script(WIDE)[0][0], "left") == "left"


def test_code_can_be_copied_and_downloaded(browser: Browser, address: str, html: Path) -> None:
    from selenium.webdriver.common.by import By

    browser.open(f"{address}/chapters/covariance.html", VIEWS["light"])
    assert browser.driver.find_elements(By.CSS_SELECTOR, "div.cell_input button.copybtn")
    offers = browser.driver.find_elements(By.CSS_SELECTOR, ".dropdown-download-buttons a[download]")
    files = {str(offer.get_attribute("download")): str(offer.get_attribute("href")) for offer in offers}
    assert set(files) == {"covariance.ipynb", "covariance.md"}
    notebook = json.loads((html / files["covariance.ipynb"].removeprefix(address + "/")).read_text(encoding="utf-8"))
    assert any(
        "image/png" in output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", ())
    )
    assert not any("injected-parameters" in cell["metadata"].get("tags", ()) for cell in notebook["cells"])


PLAYABLE = "[data-sslbook-slider]:has(button.sslbook-play)"
STATE = """
const frames = [...arguments[0].querySelectorAll('img[data-text]')];
return [frames.findIndex(frame => !frame.hidden), Number(arguments[0].querySelector('input').value),
        arguments[0].querySelector('button').ariaLabel];
"""
PLAY = """
const button = arguments[0].querySelector('button'), input = arguments[0].querySelector('input');
button.click();
const during = [input.value, button.ariaLabel];
"""
STOPS = ["button.click()", "input.dispatchEvent(new Event('input'))", "input.dispatchEvent(new Event('pointerdown'))"]
OUTLINED = """
const element = document.activeElement, style = getComputedStyle(element);
const drawn = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1.5;
return [element.tagName, element.getAttribute('aria-label') || element.textContent.trim(), drawn];
"""
KEPT = """
return [...document.querySelectorAll('.cell_output img.keep-colors')].map(i => {
  const style = getComputedStyle(i);
  return [style.filter, style.padding, style.borderTopWidth, style.backgroundColor];
});
"""


def playable(browser: Browser) -> tuple[Any, Any, Any]:
    """The first slider of the open page that plays, its control and its button."""
    from selenium.webdriver.common.by import By

    figure = browser.driver.find_element(By.CSS_SELECTOR, PLAYABLE)
    button = figure.find_element(By.CSS_SELECTOR, "button.sslbook-play")
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    return figure, figure.find_element(By.CSS_SELECTOR, "input[type=range]"), button


def test_a_slider_plays_when_somebody_asks_for_it(browser: Browser, html: Path) -> None:
    """Not before, to the end, and not against whoever takes the slider."""
    from selenium.webdriver.common.keys import Keys

    browser.open((html / "chapters/training.html").as_uri(), VIEWS["light"])
    figure, control, button = playable(browser)
    last = int(control.get_attribute("max"))

    def state() -> list[object]:
        return list(browser.driver.execute_script(STATE, figure))

    control.send_keys(Keys.HOME)
    still = [0, 0, "Play: epochs of training"]
    assert settles(state, still) == still
    time.sleep(0.9)  # a frame takes 0.7
    assert state() == still, "nothing moves by itself"
    button.send_keys(Keys.ENTER)
    ended = [last, last, "Play: epochs of training"]
    assert settles(state, ended) == ended
    for stop in STOPS:  # in one script: on a busy machine it may have ended before a second one runs
        during, after = browser.driver.execute_script(f"{PLAY} {stop}; return [during, button.ariaLabel];", figure)
        assert (during, after) == (["0", "Pause: epochs of training"], "Play: epochs of training")
        time.sleep(0.9)
        assert state() == still
        control.send_keys(Keys.END)
        assert settles(state, ended) == ended
    button.send_keys(Keys.SPACE)
    assert settles(lambda: state() != ended, True), "by either key"
    assert settles(state, ended) == ended


def test_every_button_shows_that_it_has_the_focus(browser: Browser, address: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(f"{address}/chapters/training.html", VIEWS["dark"])
    found: dict[str, bool] = {}
    for _ in range(40):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        tag, name, outlined = browser.driver.execute_script(OUTLINED)
        if tag == "BUTTON":
            found[name] = outlined
    _, control, button = playable(browser)
    control.send_keys(Keys.SHIFT, Keys.TAB)
    _, name, found["play"] = browser.driver.execute_script(OUTLINED)
    assert name == button.get_attribute("aria-label")
    assert {"Toggle primary sidebar", "Download this page"} <= set(found)
    assert [name for name, outlined in found.items() if not outlined] == []


def test_photographs_are_true_in_the_dark_and_lie_on_the_page(browser: Browser, address: str) -> None:
    browser.open(f"{address}/chapters/training.html", VIEWS["dark"])
    kept = browser.driver.execute_script(KEPT)
    assert len(kept) > 4
    assert [style for style in kept if style != ["none", "0px", "0px", "rgba(0, 0, 0, 0)"]] == []
