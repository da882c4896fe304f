"""Numbers as a page prints them."""

from __future__ import annotations

import pytest

from sslbook.book.typeset import typeset


@pytest.mark.parametrize(
    ("plain", "printed"),
    [
        ("3.4e-15", "3.4\u00a0×\u00a010⁻¹⁵"),
        ("-3.4e-15", "−3.4\u00a0×\u00a010⁻¹⁵"),
        ("1e-12", "10⁻¹²"),
        ("-1e-12", "−10⁻¹²"),
        ("1.0e-12", "1.0\u00a0×\u00a010⁻¹²"),
        ("2.5E+06", "2.5\u00a0×\u00a010⁶"),
        ("0e+00", "0"),
        ("-0.0e+00", "0"),
        ("2.0e+00", "2.0"),
        ("-0.49", "−0.49"),
        ("-1.1%", "−1.1%"),
        ("1,234.5", "1,234.5"),
        ("≈ -0.5 ± 1e-09", "≈ −0.5 ± 10⁻⁹"),
        ("nan", "nan"),
        ("A-Thm1", "A-Thm1"),
        ("thm1-2e-3x", "thm1-2e-3x"),
        ("2026-01-02", "2026-01-02"),
    ],
)
def test_typeset(plain: str, printed: str) -> None:
    assert typeset(plain) == printed
    assert typeset(printed) == printed, "what is typeset stays"
