"""Writes the tables of docs/outcomes.md: `python -m tests.rig.outcomes_page` after tests have kept outcomes.

What a run did not see stays on the page as it is. Runtimes with the same outcomes have one table.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.rig import cache
from tests.rig.outcomes import ASKS, RUNTIMES, SITUATIONS, recorded, why_impossible

PAGE = cache.PROJECT / "docs/outcomes.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
_HEAD = "### "
_JOINED = ", "
Table = Mapping[str, Mapping[str, str]]
"""Outcomes by situation and ask."""


def expected(runtime: str, situation: str, page: Path = PAGE) -> Mapping[str, str]:
    """Return what the page says of a situation, by what was asked; of a cell that it does not know, nothing."""
    return read(page).get(runtime, {}).get(situation, {})


def read(page: Path = PAGE) -> dict[str, dict[str, dict[str, str]]]:
    """Return the outcomes of the page's tables, by runtime. Raise ValueError if nobody knows a runtime."""
    runtimes = {label: name for name, label in RUNTIMES.items()}
    situations = {label: name for name, label in SITUATIONS.items()}
    found: dict[str, dict[str, dict[str, str]]] = {}
    of: list[str] = []
    for line in _parts(page)[1].splitlines():
        cells = [it.strip() for it in line.strip("|").split("|")]
        if line.startswith(_HEAD):
            labels = line.removeprefix(_HEAD).split(_JOINED)
            if unknown := {*labels} - runtimes.keys():
                raise ValueError(f"{page}: no runtime of tests/rig/outcomes.py is {unknown}: take them out of {line!r}")
            of = [runtimes[label] for label in labels]
        elif line.startswith("| ") and cells[0] in situations:
            for runtime in of:
                row = {ask: cell for ask, cell in zip(ASKS, cells[1:], strict=True) if not _NOTE.fullmatch(cell)}
                found.setdefault(runtime, {})[situations[cells[0]]] = row
    return found


def write(seen: Mapping[str, Table], page: Path = PAGE) -> None:
    """Put these outcomes onto the page; those that it has of others stay, and so does all text outside of the marks.

    Raise ValueError, and write nothing, if the page does not have the marks.
    """
    kept = read(page)
    for runtime, table in seen.items():
        for situation, row in table.items():
            kept.setdefault(runtime, {}).setdefault(situation, {}).update(row)
    before, _, after = _parts(page)
    page.write_text(f"{before}{BEGIN}\n\n{''.join(_tables(kept))}\n{END}{after}")


_NOTE = re.compile(r"\([a-z]\)|not run")


def _parts(page: Path) -> tuple[str, str, str]:
    """Return the text before, between and after the marks of the page; raise ValueError if it does not have each once,
    in this order."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    tables, end, after = rest.partition(END)
    if not (begin and end) or text.count(BEGIN) + text.count(END) != 2:
        raise ValueError(f"{page} needs one {BEGIN} and one {END} after it. Next: write both where the tables belong")
    return before, tables, after


def _tables(kept: Mapping[str, Table]) -> Iterator[str]:
    notes: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for runtime in RUNTIMES:
        if runtime in kept:
            groups.setdefault("".join(_rows(runtime, kept[runtime], notes)), []).append(RUNTIMES[runtime])
    for rows, labels in groups.items():
        yield f"{_HEAD}{_JOINED.join(labels)}\n\n"
        yield f"| the daemon | {' | '.join(ASKS.values())} |\n|{'---|' * (len(ASKS) + 1)}\n{rows}\n"
    for reason, letter in notes.items():
        yield f"- ({letter}) {reason}.\n"


def _rows(runtime: str, table: Table, notes: dict[str, str]) -> Iterator[str]:
    for situation, label in SITUATIONS.items():
        cells = []
        for ask in ASKS:
            reason = why_impossible(runtime, situation, ask)
            letter = notes.setdefault(reason, chr(ord("a") + len(notes))) if reason else ""
            cells.append(f"({letter})" if reason else table.get(situation, {}).get(ask, "not run"))
        yield f"| {label} | {' | '.join(cells)} |\n"


if __name__ == "__main__":
    write(recorded())
    sys.stdout.write(_parts(PAGE)[1])
