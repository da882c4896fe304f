"""Settings as a command line writes them: ``--set KEY=VALUE``, and all keys with their values."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable
from typing import Any

from sslbook.training.networks.siamese import Networks
from sslbook.training.objectives import OBJECTIVES
from sslbook.training.runs.settings import Settings, known_keys, with_values


def with_changes(settings: Settings, changes: Iterable[str]) -> Settings:
    """The settings with ``key=value`` set, as ``--set`` gives them: ``rate=0.03``, ``networks.width=16``, ``numbers.tau=0.2``.

    A value is read as JSON, or else as a word; ``none`` is nothing, and a list has commas: ``probes=100,300``.  Another
    objective keeps those numbers that it takes too.
    Raises ValueError for what is not of that form, an unknown key (with the nearest ones), or a value that is not allowed.
    """
    top: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {"networks": {}, "numbers": {}}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ValueError(f"a change must be of the form key=value, got {change!r}")
        room, dot, name = key.partition(".")
        if dot and room in inner:
            inner[room][name] = _read(text)
        elif key in inner:
            raise ValueError(f"{key} can't be set as a whole: set {key}.NAME=value")
        else:
            top[key] = _read(text)
    if inner["numbers"] or "objective" in top:
        taken = _taken(top.get("objective", settings.objective))
        kept = {name: value for name, value in settings.numbers.items() if name in taken}
        top["numbers"] = {**kept, **inner["numbers"]}
    if inner["networks"]:
        top["networks"] = with_values(settings.networks, inner["networks"], "networks.")
    return with_values(settings, top)


def values_of(settings: Settings) -> dict[str, str]:
    """Everything that :func:`with_changes` can set, as it takes it, with the present values."""
    defaults = {name: p.default for name, p in inspect.signature(OBJECTIVES[settings.objective]).parameters.items()}
    values = {name: getattr(settings, name) for name in known_keys() if "." not in name}
    values |= {f"numbers.{name}": value for name, value in {**defaults, **settings.numbers}.items()}
    values |= {f"networks.{f.name}": getattr(settings.networks, f.name) for f in dataclasses.fields(Networks)}
    return {name: _written(value) for name, value in values.items()}


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_written, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _taken(name: object) -> list[str]:
    """The numbers that an objective takes; none for a name that there is not, which is refused elsewhere."""
    known = isinstance(name, str) and name in OBJECTIVES
    return list(inspect.signature(OBJECTIVES[str(name)]).parameters) if known else []


def _read(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "," in text and not text.startswith("["):
        return tuple(_read(part.strip()) for part in text.split(",") if part.strip())
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
