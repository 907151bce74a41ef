"""Reads quantities as Kubernetes writes them: bytes (``512Mi``, ``1.5Gi``, ``1073741824``) and CPUs (``4``,
``500m``)."""

from __future__ import annotations

import re
from fractions import Fraction

_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("k", "M", "G", "T", "P", "E")
_FACTORS = {
    "": 1,
    **{unit: 1024**power for power, unit in enumerate(_BINARY, 1)},
    **{unit: 1000**power for power, unit in enumerate(_DECIMAL, 1)},
}
QUANTITY = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([KMGTPE]i|[kMGTPE])?")
"""Matches every quantity. It also matches ``0.3``, which is no whole number of bytes."""


def bytes_of(text: str) -> int | None:
    """Return the number of bytes in a quantity; None if the text is no quantity, or not a whole number of bytes."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        return None
    number = Fraction(found[1]) * _FACTORS[found[2] or ""]
    return int(number) if number.denominator == 1 else None


def cpus_of(text: str) -> Fraction | None:
    """Return the number of CPUs in a quantity, which may be in thousandths (``500m``); None if the text is no
    quantity."""
    found = QUANTITY.fullmatch(text.removesuffix("m"))
    if found is None or (found[2] and text.endswith("m")):
        return None
    return Fraction(found[1]) * Fraction(_FACTORS[found[2] or ""], 1000 if text.endswith("m") else 1)
