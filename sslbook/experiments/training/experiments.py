"""What the chapter's recorded runs are: presets of the papers made small, and what is changed in them, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sslbook.training.presets.runs import with_changes
from sslbook.training.presets.sheets import presets
from sslbook.training.run.settings import Settings

SMALL = ("subset=5000", "networks.width=16", "epochs=10", "probes=10", "evaluate=2", "shuffle=true", "drop_last=true")
HALF = (*SMALL, "precision=bfloat16")
"""Networks that multiply in bfloat16, as on a GPU: a run takes two thirds of the time.  Views, losses and evaluation don't."""
LONG = (*HALF, "epochs=100", "probes=10,20,50,100", "evaluate=10")
WHOLE = (*HALF, "subset=none", "epochs=20", "probes=5,10,20", "evaluate=5")
SLOWER = ("rate=0.001", "schedule=constant")
"""SimCLR in so few steps."""
SIMCLR, BYOL = "cifar10-simclr-nce", "cifar10-byol"
QUICKER = ("optimizer=adam", "rate=0.001", "decay=0", "batch=64", "ema=0.9")
"""BYOL in eight hundred steps, of which the released target takes 173 to come half way."""


@dataclass(frozen=True)
class Course:
    """A run: a preset, what is changed in it, and whose last weights it begins with, by name, if not with fresh ones.

    label: its short name on the page.
    """

    label: str
    changes: tuple[str, ...] = ()
    preset: str = SIMCLR
    after: str | None = None


def _simclr(label: str, *changes: str, after: str | None = None) -> Course:
    return Course(label, (*SLOWER, *changes), after=after)


def _byol(label: str, *changes: str) -> Course:
    return Course(label, (*QUICKER, *changes), BYOL)


RUNS: dict[str, Course] = {
    "info_nce": _simclr("InfoNCE"),
    "exact": _simclr("exact", "objective=exact"),
    "exact, noise": _simclr("exact, noise", "objective=exact", "noise=0.01"),
    "beta -0.5": _simclr("β = −0.5", "objective=beta", "numbers.beta=-0.5"),
    "beta 0.2": _simclr("β = +0.2", "objective=beta", "numbers.beta=0.2"),
    "byol": _byol("BYOL"),
    "byol, no EMA": _byol("no EMA", "networks.target=none"),
    "byol, no EMA, no stop-gradient": _byol("no stop-gradient", "networks.target=none", "numbers.stop_gradient=false"),
}
"""Every objective of the book."""
EXACT: dict[str, Course] = {
    "info_nce": RUNS["info_nce"],
    "exact": RUNS["exact"],
    "exact, further": _simclr("exact, further views", "objective=exact", "numbers.weights=further"),
    "exact, clean": _simclr("exact, clean", "objective=exact", "numbers.weights=clean"),
}
"""The exact loss, by what its weights look at."""
BETAS: dict[str, Course] = {name: RUNS[name] for name in ("info_nce", "beta -0.5", "beta 0.2")}
"""The weight of the positive pair."""
TEMPERATURES = (0.1, 0.5, 1.0, 2.0, 5.0)
STEEPNESS: dict[str, Course] = {
    **{f"tau {tau:g}": _simclr(f"τ = {tau:g}", f"numbers.tau={tau}") for tau in TEMPERATURES if tau != 0.5},
    "info_nce": RUNS["info_nce"],
    "soft triplet": _simclr("soft triplet", "objective=triplet"),
    "simple": _simclr("simple", "objective=simple"),
    "quadratic": _simclr("quadratic", "objective=quadratic"),
    "simple after info_nce": _simclr("InfoNCE, then simple", "objective=simple", after="info_nce"),
    "info_nce after info_nce": _simclr("InfoNCE, then InfoNCE", after="info_nce"),
    "info_nce after simple": _simclr("simple, then InfoNCE", after="simple"),
}
"""Losses that differ in how hard they push against which negatives: InfoNCE over a range of temperatures, at whose end it is the
simple loss, and networks that change their loss."""
TUNED = ("info_nce", "exact", "beta -0.5", "beta 0.2")
TRIED = (3e-4, 1e-3, 3e-3, 1e-2)
RATES: dict[str, Course] = {
    f"{name} at {rate:g}": replace(
        RUNS[name], label=f"{RUNS[name].label}, rate {rate:g}", changes=(*RUNS[name].changes, f"rate={rate}")
    )
    for name in TUNED
    for rate in TRIED
}
"""Learning rates, the same ones for each loss."""
COURSES: Mapping[str, Course] = RUNS | EXACT | STEEPNESS | RATES


def settings_of(name: str, seed: int, changes: Sequence[str] = SMALL) -> Settings:
    """The settings of one of :data:`COURSES`, made small."""
    course = COURSES[name]
    return replace(with_changes(presets()[course.preset].settings, [*course.changes, *changes]), seed=seed)
