"""What a reader operates on the built pages: play buttons, what has the focus; and photographs in the dark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import browser_cases
import pytest
from page_cases import VIEWS, Browser, address, browser, html, settles

__all__ = ["address", "browser", "html"]  # fixtures
pytestmark = browser_cases.MARKS

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


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_slider_plays_when_somebody_asks_for_it(browser: Browser, address: str, html: Path, scheme: str) -> None:
    """Not before, to the end, and not against whoever takes the slider."""
    from selenium.webdriver.common.keys import Keys

    browser.open(f"{address if scheme == 'http' else html.as_uri()}/chapters/training.html", VIEWS["light"])
    figure, control, button = playable(browser)
    last = int(control.get_attribute("max"))

    def state() -> list[object]:
        return list(browser.driver.execute_script(STATE, figure))

    control.send_keys(Keys.HOME)
    still = [0, 0, "Play: epochs of training"]
    assert settles(state, still) == still
    time.sleep(1.6)
    assert state() == still, "nothing moves by itself"
    button.send_keys(Keys.ENTER)
    ended = [last, last, "Play: epochs of training"]
    assert settles(state, ended) == ended
    for stop in STOPS:  # in one script: on a busy machine it may have ended before a second one runs
        during, after = browser.driver.execute_script(f"{PLAY} {stop}; return [during, button.ariaLabel];", figure)
        assert (during, after) == (["0", "Pause: epochs of training"], "Play: epochs of training")
        time.sleep(1.6)
        assert state() == still
        control.send_keys(Keys.END)
        assert settles(state, ended) == ended
    button.send_keys(Keys.SPACE)
    assert settles(lambda: state() != ended, True), "by either key"
    assert settles(state, ended) == ended


def test_a_play_button_can_be_clicked_on_a_phone(browser: Browser, address: str) -> None:
    browser.open(f"{address}/chapters/training.html", VIEWS["phone"])
    _, control, button = playable(browser)
    size = button.size
    assert min(size["width"], size["height"]) >= 24
    assert abs(button.location["y"] + size["height"] / 2 - control.location["y"] - control.size["height"] / 2) < 12
    button.click()
    assert button.get_attribute("aria-label").startswith("Pause")
    button.click()
    assert button.get_attribute("aria-label").startswith("Play")


@pytest.mark.parametrize("view", ["light", "dark", "phone"])
def test_every_button_shows_that_it_has_the_focus(browser: Browser, address: str, view: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(f"{address}/chapters/training.html", VIEWS[view])
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
    assert len(kept) > 7
    assert [style for style in kept if style != ["none", "0px", "0px", "rgba(0, 0, 0, 0)"]] == []
