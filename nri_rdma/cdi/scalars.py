"""The scalars of a CDI spec, read as runtimes do.

The rules are those of Go's yaml.v3, a mixture of YAML 1.1 and 1.2, with one exception. yaml.v3 cuts the fraction of a
number like ``1.5`` off; here such a text is not a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nri_rdma.text.nodes import Scalar, shown
from nri_rdma.text.placed_yaml import LONGEST_NUMBER, whole_number


@dataclass(frozen=True, slots=True)
class Text(Scalar):
    """A scalar of a CDI spec."""

    @property
    def is_missing(self) -> bool:
        """Return whether the scalar is null. Runtimes then read the spec as if the field were missing."""
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}

    @property
    def number(self) -> int | None:
        """Return the whole number that the scalar stands for; None if it is not a number. ``1.0`` is 1. ``1.5`` is not
        a number here, nor is a word that only looks octal (``08``)."""
        digits = self.text.replace("_", "")
        if not self.plain or self.text.startswith("_") or len(digits) > LONGEST_NUMBER:
            return None
        if (whole := whole_number(digits)) is not None or not _FRACTION.fullmatch(digits):
            return whole
        value = float(digits)
        return int(value) if value.is_integer() else None

    @property
    def truth(self) -> bool | None:
        """Return the truth value; None if there is none. ``true`` and ``false`` count only without quotes. The words of
        YAML 1.1 (yes, no, on, off, y, n) also count in quotes, because yaml.v3 accepts them so."""
        if self.plain and self.text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
            return self.text.lower() == "true"
        return _WORDS.get(self.text)

    @property
    def shown(self) -> str:
        """Return the scalar for an error text, with the words ``in quotes`` if it has quotes: they alone can make a
        number or a truth value wrong."""
        return shown(self) if self.plain else f"{shown(self)} in quotes"


_FRACTION = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS = {
    **{form: True for word in ("y", "yes", "on") for form in (word, word.capitalize(), word.upper())},
    **{form: False for word in ("n", "no", "off") for form in (word, word.capitalize(), word.upper())},
}
