"""The canvas: what it shows against the library, moved by mouse, finger and keys; and what a reader without scripts has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import browser_cases
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from bookbuild.canvas import CANVAS, canvas
from bookbuild.sphinx_ext import ASSETS
from sslbook import covariance_operator, intra_operator, mlp
from sslbook.losses import pairs
from sslchapters.linear_byol import theory

PAGE = """<!DOCTYPE html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>One</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="book.css">
<script defer src="canvas.js"></script></head><body><main class="bd-article"><h1>One</h1>{}</main></body></html>"""


def half_squared(z: torch.Tensor) -> torch.Tensor:
    return pairs.half_squared_distance(z[:, None], z[None, :])


def info_nce(z: torch.Tensor, images: torch.Tensor, tau: float) -> torch.Tensor:
    """Of outputs (4, d): each view an anchor, each view of its image its partner, all four in the denominator; times tau."""
    r, same = half_squared(z), images[:, None] == images
    anchor, partner = same.nonzero().T
    each = pairs.info_nce(r[anchor, partner], r[anchor], temperature=tau, epsilon=0)
    return tau * (each / same.sum(1)[anchor]).sum() / len(z)


def wanted(seen: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Operator and step by the library: of the simple loss, by listing with autograd, and of BYOL's loss."""
    x = torch.tensor(seen["views"], dtype=torch.float64)
    images = torch.tensor([0, 0, 1, 1] if seen["averaged"] else [0, 1, 2, 3])
    views = x.unflatten(0, (2, 2)) if seen["averaged"] else x[:, None]
    neuron = mlp((2, 1))
    w = torch.tensor([seen["weight"]], dtype=torch.float64, requires_grad=True)
    neuron[0].weight.data = w.detach().clone()
    between, within = (of(neuron, "0", views).dense() for of in (covariance_operator, intra_operator))
    common = torch.outer(x.mean(0), x.mean(0))
    same = images[:, None] == images
    chance = same / same.sum(1, keepdim=True) / 4
    z = x @ w.T
    if seen["loss"] == "simple":
        r = half_squared(z)
        loss = (chance * r).sum() - r.mean() if seen["centred"] else -(chance * (z @ z.T)).sum()
        operator = between + (0 if seen["centred"] else common)
    elif seen["loss"] == "info_nce":
        loss = info_nce(z, images, seen["tau"])
        shape, tau = views, seen["tau"]
        operator = (
            covariance_operator(neuron, "0", shape, loss=lambda y: info_nce(y.flatten(0, 1), images, tau)).dense() / 2
        )
    else:
        beta, z = seen["beta"], z - z.mean() if seen["centred"] else z
        loss = (chance * (beta * z - z.detach().T).square() / 2).sum() * 2  # of one tower: not to be halved
        kept = 0 if seen["centred"] else common
        operator = beta * (between + kept) - beta**2 * (between + within + kept)
    step = -torch.autograd.grad(loss, w)[0][0] / 2
    return {"operator": operator, "step": step, "between": between, "within": within}


def gap(seen: dict[str, Any]) -> float:
    """The largest difference between what the canvas holds and the library's."""

    def matrix(m: list[float]) -> torch.Tensor:
        return torch.tensor([[m[0], m[1]], [m[1], m[2]]], dtype=torch.float64)

    due = wanted(seen)
    found = [matrix(seen[name]) - due[name] for name in ("operator", "between", "within")]
    values, axes = (torch.tensor(seen[name], dtype=torch.float64) for name in ("values", "axes"))
    found += [torch.tensor(seen["step"], dtype=torch.float64) - due["step"], axes.T * values @ axes - due["operator"]]
    return max(float(one.abs().max()) for one in found)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("canvas")
    for name in ("book.css", "canvas.js"):
        (folder / name).write_bytes((ASSETS / "static/sslbook" / name).read_bytes())
    (folder / "one.html").write_text(PAGE.format(canvas("world") + canvas("fates")), encoding="utf-8")
    driver = browser_cases.headless("window-size=1100,900", "hide-scrollbars", logging={"browser": "ALL"})
    driver.get((folder / "one.html").as_uri())
    yield driver
    driver.quit()


def numbers(driver: Any, name: str = "world") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(driver.find_element("id", f"canvas-{name}").get_attribute("data-numbers"))
    return found


@browser_cases.in_browser
def test_mouse_finger_and_keys_move_it_and_its_numbers_are_the_library_s(driver: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    handles = {h.get_attribute("data-handle"): h for h in driver.find_elements("css selector", "[data-handle]")}
    start = numbers(driver)
    ActionChains(driver).drag_and_drop_by_offset(handles["view-0"], 37, 22).perform()
    box = handles["view-3"].rect
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for kind, points in (("Start", [(x, y)]), ("Move", [(x - 25, y + 31)]), ("End", [])):
        touch = {"type": f"touch{kind}", "touchPoints": [{"x": a, "y": b} for a, b in points]}
        driver.execute_cdp_cmd("Input.dispatchTouchEvent", touch)
    handles["view-1"].send_keys(Keys.ARROW_RIGHT * 3 + Keys.ARROW_UP)
    handles["weight"].send_keys(Keys.ARROW_LEFT * 2, Keys.SHIFT, Keys.ARROW_DOWN)
    seen = numbers(driver)
    moved = [after != before for before, after in zip(start["views"], seen["views"], strict=True)]
    assert moved == [True, True, False, True]
    assert seen["weight"] == pytest.approx([0.5, 0.69])
    worst = gap(start)
    form = driver.find_element("css selector", f".{CANVAS}-panel")
    for loss, keys in (("simple", ""), ("info_nce", "tau"), ("byol", "beta")):
        form.find_element("css selector", f"[value={loss}]").click()
        places = (Keys.HOME, Keys.ARROW_RIGHT * 40, Keys.END) if keys else ("",)
        for place, averaged, centred in itertools.product(places, (False, True), (False, True)):
            if keys:
                form.find_element("name", keys).send_keys(place)
            for name, wish in (("averaged", averaged), ("centred", centred)):
                if numbers(driver)[name] != wish:
                    form.find_element("name", name).click()
            seen = numbers(driver)
            assert (seen["loss"], seen["averaged"], seen["centred"]) == (loss, averaged, centred)
            worst = max(worst, gap(seen))
            told = driver.find_element("id", "canvas-world-said").text
            assert f"{seen['step'][0]:.2f}".replace("-", "−").replace("−0.00", "0.00") in told
    assert worst < 1e-6, f"largest difference from the library {worst:.1e}"
    form.find_element("css selector", "[data-do=step]").click()
    assert numbers(driver)["weight"] != seen["weight"]
    form.find_element("css selector", "[data-do=reset]").click()
    assert numbers(driver) == start
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def flow_gap(seen: dict[str, Any]) -> float:
    """How far a run of the plane is from SciPy's, at the times of its points, and how far its end from the theorem's."""
    h, decay, path = seen["h"], seen["decay"], np.array(seen["path"])

    def move(_: float, w: np.ndarray) -> list[float]:
        error = w[2] * h - w[1] * w[0]
        return [w[1] * error - decay * w[0], error * w[0] - decay * w[1], w[0] - w[2]]

    begin = [*seen["start"], seen["start"][0]]
    due = solve_ivp(move, (0, path[-1, 0]), begin, method="DOP853", t_eval=path[:, 0], rtol=1e-11, atol=1e-13)
    return float(np.abs(path[:, 1:] - due.y.T).max())


@browser_cases.in_browser
def test_a_run_starts_where_one_presses_and_is_scipy_s_flow(driver: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    plane, said = (driver.find_element("css selector", f"#canvas-fates{what}") for what in (" svg", "-said"))
    handle, form = (
        plane.find_element("css selector", "[data-handle=start]"),
        driver.find_elements("css selector", f".{CANVAS}-panel")[1],
    )
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", plane)
    start, worst = numbers(driver, "fates"), 0.0
    for x, y, lives in ((-1.5, 0.4, True), (1, -1.6, False), (0.8, 0.9, True), (0.2, 1.5, False)):
        side = plane.rect["width"]
        ActionChains(driver).move_to_element_with_offset(plane, x * side / 4.4, -y * side / 4.4).click().perform()
        seen = numbers(driver, "fates")
        assert seen["start"] == pytest.approx([x, y], abs=0.03)
        assert (seen["lives"], "collapses" in said.text) == (lives, not lives)
        ends = theory.scalar_ends(np.array(seen["start"][:1]), np.array(seen["start"][1:]), seen["h"])
        assert [abs(seen["end"][0]), seen["end"][1]] == pytest.approx([float(end[0]) for end in ends], abs=1e-6)
        assert seen["after"] == pytest.approx(seen["q"], abs=1e-6)
        worst = max(worst, flow_gap(seen))
    assert len(plane.find_elements("css selector", "g > path")) == 4
    handle.send_keys(Keys.ARROW_RIGHT * 2, Keys.ARROW_DOWN, Keys.ENTER)
    assert numbers(driver, "fates")["start"] == pytest.approx([seen["start"][0] + 0.2, seen["start"][1] - 0.1])
    assert len(plane.find_elements("css selector", "g > path")) == 5
    for name in ("h", "decay"):
        for place in (Keys.END, Keys.ARROW_LEFT * 7):
            form.find_element("name", name).send_keys(place)
            worst = max(worst, flow_gap(numbers(driver, "fates")))
    assert "Weight decay moves Q towards 0" in said.text
    assert worst < 1e-6, f"largest difference from SciPy {worst:.1e}"
    form.find_element("css selector", "[data-do=reset]").click()
    assert numbers(driver, "fates") == start
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
