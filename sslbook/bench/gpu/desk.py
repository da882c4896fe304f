"""The folder that a plan is worked in: what is done lies there whole, so that whatever is killed can go on.

DIR/machine.json              where it runs, and how (`Desk.begin`)
DIR/spent.json                seconds that each step has had
DIR/done/<step>/<item>.json   what an item gave, written when it is done and not before
DIR/records/<name>.json       recorded runs with provenance, for data/results
DIR/runs/                     checkpoints and results of training
DIR/executed/                 chapters
DIR/logs/<step>.log           what the steps printed
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sslbook import data_files
from sslbook.arguments import InputError
from sslbook.bench.gpu.machine import Machine
from sslbook.files import write_text

MACHINE, SPENT = "machine.json", "spent.json"


@dataclass(frozen=True)
class Desk:
    """A folder with the device and the size (``tiny``: seconds on two cores, to try it all out) of what is done in it."""

    folder: Path
    device: str
    tiny: bool

    def begin(self, machine: Machine) -> None:
        """Make the folder, or go on in it; raises InputError if it holds another machine's, version's or size's work.

        Another commit may go on: whatever is kept says for itself at which it was made.
        """
        facts = asdict(machine) | {"tiny": self.tiny, "commit": data_files.commit(), "begun": time.strftime("%Y-%m-%d")}
        path = self.folder / MACHINE
        if path.is_file():
            before = read(path)
            other = [name for name in ("name", "device", "tiny", "torch") if before.get(name) != facts[name]]
            if other:
                told = "; ".join(f"{name} was {before.get(name)} and is {facts[name]}" for name in other)
                raise InputError(f"{self.folder} holds other work ({told}): name another folder with --out")
            facts["begun"] = before.get("begun")
        write_text(path, json.dumps(facts, indent=2) + "\n")

    def spent(self, step: str) -> float:
        """Seconds that a step has had so far, in all calls."""
        return float(self._spent().get(step, 0.0))

    def spend(self, step: str, seconds: float) -> None:
        """Add to what a step has had."""
        spent = self._spent()
        spent[step] = round(spent.get(step, 0.0) + seconds, 1)
        write_text(self.folder / SPENT, json.dumps(spent) + "\n")

    def _spent(self) -> dict[str, Any]:
        path = self.folder / SPENT
        return read(path) if path.is_file() else {}

    def path(self, step: str, item: str) -> Path:
        """The file of an item."""
        return self.folder / "done" / step / f"{item}.json"

    def has(self, step: str, item: str) -> bool:
        """Whether an item is done."""
        return self.path(step, item).is_file()

    def keep(self, step: str, item: str, values: Mapping[str, Any]) -> None:
        """Write what an item gave, atomically, with the commit: from now on it is done."""
        values = {**values, "commit": data_files.commit()}
        write_text(self.path(step, item), json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def done(self, step: str) -> dict[str, dict[str, Any]]:
        """What each item of a step gave, by name."""
        return {path.stem: read(path) for path in sorted((self.folder / "done" / step).glob("*.json"))}

    @property
    def records(self) -> Path:
        """Where recorded runs go."""
        return self.folder / "records"

    @property
    def runs(self) -> Path:
        """Where training runs lie."""
        return self.folder / "runs"


def read(path: Path) -> dict[str, Any]:
    """A file of the folder; raises InputError, naming it, if it is no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, and holds {type(content).__name__}")
    return content


def opened(folder: Path) -> Desk:
    """The desk that lies in a folder; raises InputError if none does."""
    if not (folder / MACHINE).is_file():
        raise InputError(f"{folder} is no folder of sslbook gpu: it has no {MACHINE}")
    facts = read(folder / MACHINE)
    return Desk(folder, str(facts.get("device")), bool(facts.get("tiny")))
