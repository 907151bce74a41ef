"""Numbers of bytes as Kubernetes writes them: ``512Mi``, ``1.5Gi``, ``1G``, ``1073741824``."""

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
"""What every quantity looks like; ``0.3`` looks so, too, and is no number of bytes."""


def bytes_of(text: str) -> int | None:
    """Return the number of bytes of a quantity; None when it is no quantity, or no whole number."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        return None
    number = Fraction(found[1]) * _FACTORS[found[2] or ""]
    return int(number) if number.denominator == 1 else None
