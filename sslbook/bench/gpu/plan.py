"""The steps, in order of worth, and how long each is thought to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sslbook.arguments import unknown

PATIENCE, LEAST_SHARE = 1.5, 90.0
"""How many times its predicted seconds a step may take before its turn is over, and seconds that it may take anyway."""


@dataclass(frozen=True)
class Step:
    """A part of the plan.

    seconds: predicted on one H100 with 16 cores, of runs those of the first seed; from what is asked of it, until one has run.
    tiny: predicted on two cores with ``--tiny``.  needs: modules beyond those that every step needs.
    images: wants CIFAR-10.
    """

    name: str
    what: str
    seconds: float
    tiny: float
    needs: tuple[str, ...] = ()
    images: bool = False

    def share(self, tiny: bool) -> float:
        """Seconds after which a step lets the next ones have their turn, and goes on when they have had it."""
        return max(LEAST_SHARE, PATIENCE * (self.tiny if tiny else self.seconds))


STEPS = (
    Step("tests", "the tests that need a GPU", 60, 15, needs=("pytest", "hypothesis")),
    Step("bench", "sslbook bench training: every stage, in images a second", 240, 12),
    Step("simclr", "A-Tab2 on CIFAR-10, 100 epochs: a seed of each loss, then the next", 900, 10, images=True),
    Step(
        "chapters",
        "all chapters at the papers' size, each number held to the expected one",
        600,
        40,
        needs=("papermill", "jupytext", "nbformat", "ipykernel"),
    ),
    Step("tables", "A-Tab6 and C-Tab1, rerun at full size on all cores", 120, 25),
    Step("byol", "B-Tab3 on CIFAR-10, 100 epochs: its eight cells", 2800, 10, images=True),
    Step("operator", "the covariance operator of a ResNet-18 of full width along a run", 240, 20, images=True),
)
"""In order of worth: what comes first is worked through first."""


def choose(names: Sequence[str]) -> list[Step]:
    """The steps called ``names``, in the plan's order, all if none is named; raises InputError, with the nearest, for others."""
    known = [step.name for step in STEPS]
    for name in names:
        if name not in known:
            raise unknown("--only", name, known)
    return [step for step in STEPS if not names or step.name in names]
