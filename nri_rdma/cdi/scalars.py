"""The scalars of a CDI spec, read as runtimes do.

These are the rules of Go's yaml.v3, a mixture of YAML 1.1 and 1.2. A fraction, which it cuts off, is no number here.
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
        """Return whether the scalar is null; runtimes then see the field as if it were not there."""
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}

    @property
    def number(self) -> int | None:
        """Return the number; a fraction of zero is none. A word that looks octal and is not (``08``) is no number."""
        digits = self.text.replace("_", "")
        if not self.plain or self.text.startswith("_") or len(digits) > LONGEST_NUMBER:
            return None
        if (whole := whole_number(digits)) is not None or not _FRACTION.fullmatch(digits):
            return whole
        value = float(digits)
        return int(value) if value.is_integer() else None

    @property
    def truth(self) -> bool | None:
        """Return the truth value. The words of YAML 1.1 count in quotes, too, the others do not: as in yaml.v3."""
        if self.plain and self.text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
            return self.text.lower() == "true"
        return _WORDS.get(self.text)

    @property
    def shown(self) -> str:
        """Return the scalar for an error: quotes alone can make a number or a truth value wrong."""
        return shown(self) if self.plain else f"{shown(self)} in quotes"


_FRACTION = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS = {
    **{form: True for word in ("y", "yes", "on") for form in (word, word.capitalize(), word.upper())},
    **{form: False for word in ("n", "no", "off") for form in (word, word.capitalize(), word.upper())},
}
