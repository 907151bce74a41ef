"""What each kernel and driver is expected to do: the table that a run is compared with, and docs/support.md.

`python -m tests.lab.outcomes` writes the table into that document.
"""

import errno
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.recipe import CHECKOUT, KERNELS

TABLE = Path(__file__).resolve().parent / "outcomes.toml"
DOCUMENT = CHECKOUT / "docs" / "support.md"
_BEGIN, _END = "<!-- begin: tests/lab/outcomes.toml -->\n", "<!-- end -->\n"
WORKS = "works"
NOT_RUN = "not run"
NO_DATA = "no data"
"""The devices are where they should be, and no data flows between them."""


class OutcomeError(Exception):
    """A test met something else than `works`: the errno's name, or the product's code. The table may expect it."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(f"{outcome}: {text}")
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One ability of the node, and how it ends under each kernel."""

    what: str
    driver: str
    outcomes: Mapping[str, str]


def load(table: Path = TABLE) -> dict[str, Row]:
    """The rows by name, in their order."""
    return {name: Row(**fields) for name, fields in tomllib.loads(table.read_text()).items()}


def kernel_of(release: str) -> str:
    """`7.2` of `7.2.12+deb14-amd64`: the name by which the table knows it."""
    found = re.match(r"\d+\.\d+", release)
    return found.group() if found else release


def complaint(row: Row, kernel: str, seen: str) -> str:
    """What is wrong with an outcome; empty when it is the expected one."""
    expected = row.outcomes.get(kernel, "nothing")
    if seen == expected:
        return ""
    return f"outcomes.toml expects {expected!r} of {row.driver} on {kernel}, seen is {seen!r}: {row.what}"


def with_table(document: str, rows: Mapping[str, Row]) -> str:
    """The document with the rows in the place of the table that it had."""
    before, _, rest = document.partition(_BEGIN)
    after = rest.partition(_END)[2]
    return before + _BEGIN + support_table(rows, KERNELS) + _END + after


def support_table(rows: Mapping[str, Row], kernels: tuple[str, ...]) -> str:
    """The rows as a Markdown table."""
    lines = [
        f"| What | Driver | {' | '.join(kernels)} |",
        f"|---|---|{'---|' * len(kernels)}",
    ]
    for row in rows.values():
        cells = (_cell(row.outcomes[kernel]) for kernel in kernels)
        lines.append(f"| {row.what} | {row.driver} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(outcome: str) -> str:
    if outcome in {WORKS, NOT_RUN, NO_DATA}:
        return outcome
    return f"the kernel says {outcome}" if hasattr(errno, outcome) else f"refused by us: {outcome}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), load()))
