"""Numbers as a page prints them."""

from __future__ import annotations

import pytest

from sslchapters.values import bound, parts, pasted, printed, prose, typeset


@pytest.mark.parametrize(
    ("plain", "printed"),
    [
        ("3.4e-15", "3.4\u00a0×\u00a010⁻¹⁵"),
        ("1e-12", "10⁻¹²"),
        ("1.0e-12", "1.0\u00a0×\u00a010⁻¹²"),
        ("2.5E+06", "2.5\u00a0×\u00a010⁶"),
        ("-0.0e+00", "0"),
        ("-0.49", "−0.49"),
        ("-0.00 / +0.0", "0.00 / +0.0"),
        ("-1.1%", "−1.1%"),
        ("≈ -0.5 ± 1e-09", "≈ −0.5 ± 10⁻⁹"),
        ("thm1-2e-3x", "thm1-2e-3x"),
        ("2026-01-02", "2026-01-02"),
    ],
)
def test_typeset(plain: str, printed: str) -> None:
    assert typeset(plain) == printed
    assert typeset(printed) == printed, "what is typeset stays"


@pytest.mark.parametrize(
    ("value", "form", "least", "most"),
    [
        (0.7299, ".1%", "72.9%", "73.0%"),
        (0.1 + 0.2, ".1f", "0.3", "0.3"),
        (1234.56, ",.1f", "1,234.5", "1,234.6"),
        (1.25, "+.1f", "+1.2", "+1.3"),
        (9.99e-5, ".1e", "9.9e-5", "1.0e-4"),
        (-0.04, ".1f", "-0.1", "0.0"),
        (12.5, "d", "12", "13"),
        (12345.6, ".3g", "1.23e+4", "1.24e+4"),
        (-1e300, ".0f", "-1" + 300 * "0", "-1" + 300 * "0"),
    ],
)
def test_a_bound_is_rounded_to_its_side(value: float, form: str, least: str, most: str) -> None:
    assert (bound(value, form, "least"), bound(value, form, "most")) == (least, most)
    assert typeset(bound(value, form, "least")) == printed("least", "x", form, {"x": value})


GAIN = {"gain": 1.16, "gain-low": 0.39, "gain-high": 2.01, "gain-n": 5, "gap": 3e-16}


def test_an_interval_is_printed_with_its_ends_to_nearest() -> None:
    between = "\u00a0to\u00a0"
    count = "n\u00a0=\u00a05"
    assert printed("interval", "gain", "+.1f", GAIN) == f"+1.2 (+0.4{between}+2.0, {count})"
    assert printed("interval", "gain", ".0%", GAIN) == f"116% (39%{between}201%, {count})"
    near = {"gain": 0.5, "gain-low": -0.04, "gain-high": 1.04, "gain-n": 5}
    assert printed("interval", "gain", ".1f", near).startswith(f"0.5 (−0.1{between}1.0"), "below zero, and it says so"
    assert printed("glue:text", "gap", ".1e", GAIN) == "3.0\u00a0×\u00a010⁻¹⁶"
    assert parts("interval", "gain") == ["gain", "gain-low", "gain-high", "gain-n"]
    with pytest.raises(KeyError, match="gap-low"):
        printed("interval", "gap", ".1f", GAIN)


PROSE = """
The gap is {glue:text}`gap:.1e` of {glue:text}`n`, elsewhere {glue:text}`other.md::rate:.3f`.

````{prf:theorem} One
Again {glue:text}`gap:.2f`.
```{note}
And {least}`rise:.1f` and {interval}`rise:+.1f`.
```
````

Written as `` {glue:text}`literal` ``.
% commented {glue:text}`comment`

```python
# {glue:text}`code`
```
"""


def test_roles_are_found_where_they_are_prose() -> None:
    assert list(pasted(PROSE, "good")) == [
        ("good", "gap", ".1e", "glue:text"),
        ("good", "n", "s", "glue:text"),
        ("other", "rate", ".3f", "glue:text"),
        ("good", "gap", ".2f", "glue:text"),
        ("good", "rise", ".1f", "least"),
        ("good", "rise", "+.1f", "interval"),
    ]
    assert "commented" not in prose(PROSE)
