"""Reads numbers and truth values of a CDI spec as runtimes do.

These are the rules of Go's yaml.v3, a mixture of YAML 1.1 and 1.2. A fraction, which it cuts off, is no number here.
"""

from __future__ import annotations

import re

from nri_rdma.cdi.document import Text


def whole_number(text: Text) -> int | None:
    """Return the number, or None: decimal, 0x, 0o, 0b, octal with a leading 0; ``_`` between digits; a fraction of
    zero. A word that looks octal and is not (``08``) is no number."""
    digits = text.text.replace("_", "")
    if not text.plain or text.text.startswith("_") or len(digits) > _LONGEST_NUMBER:
        return None
    for pattern, base in _NUMBERS:
        if found := pattern.fullmatch(digits):
            return int(found[1] + found[2], base)
    if not _FRACTION.fullmatch(digits):
        return None
    value = float(digits)
    return int(value) if value.is_integer() else None


def truth(text: Text) -> bool | None:
    """Return the truth value, or None. The words of YAML 1.1 count in quotes, too, the others do not: as in yaml.v3."""
    if text.plain and text.text in {"true", "True", "TRUE", "false", "False", "FALSE"}:
        return text.text.lower() == "true"
    return _WORDS.get(text.text)


_LONGEST_NUMBER = 67
"""Most characters of a number: 64 bits in binary, with sign and prefix."""
_NUMBERS = (
    (re.compile(r"([-+]?)(0|[1-9][0-9]*)", re.ASCII), 10),
    (re.compile(r"([-+]?)0[xX]([0-9a-fA-F]+)"), 16),
    (re.compile(r"([-+]?)0[oO]?([0-7]+)"), 8),
    (re.compile(r"([-+]?)0[bB]([01]+)"), 2),
)
_FRACTION = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS = {
    **{form: True for word in ("y", "yes", "on") for form in (word, word.capitalize(), word.upper())},
    **{form: False for word in ("n", "no", "off") for form in (word, word.capitalize(), word.upper())},
}
