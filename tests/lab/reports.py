"""What all machines of a run say together: pytest's summaries as one, and every test in one junit.xml.

Each run of a machine, or of a share of it, has a folder below RESULTS that is called like it, with a report of its own.
"""

import re
import shutil
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.recipe import CHECKOUT

RESULTS = CHECKOUT / "build" / "lab"
OUTCOME = "outcome"
"""The property of a test in the report that names its row of outcomes.toml."""
FAILED = "lab: failed: "
"""Before each line of the guest's output that names a test which failed, and why."""
LOG = "pytest.log"
"""All of its output."""
_REPORT = "junit.xml"
_COUNT = re.compile(r"(\d+) ([a-z]+)")
_BAD = ("failed", "errors")
_LINE = 300
_SECONDS = re.compile(r" in ([\d.]+)s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A test that has run, as a report tells it; one that also failed afterwards is told twice."""

    part: str
    file: str
    name: str
    seconds: float
    rows: tuple[str, ...]  # of outcomes.toml
    problem: str = ""  # why it failed, in one line; empty where it did not

    @property
    def machine(self) -> str:
        return machine_of(self.part)


def part_name(machine: str, number: int) -> str:
    """What the share of a machine with this number is called."""
    return f"{machine}-{number}"


def machine_of(part: str) -> str:
    """The machine that a part is, or is a share of."""
    return part.partition("-")[0]


def remove_results(machines: Collection[str], results: Path = RESULTS) -> None:
    """Forget what these machines and their shares said before."""
    (results / _REPORT).unlink(missing_ok=True)
    for folder in list(results.iterdir()) if results.exists() else ():
        if folder.is_dir() and machine_of(folder.name) in machines:
            shutil.rmtree(folder)


def joined(summaries: Collection[str]) -> str:
    """Several of pytest's last lines as one: the tests of all, and the seconds that they took one after the other."""
    if len(summaries) == 1:
        return next(iter(summaries))
    counts: Counter[str] = Counter()
    for summary in summaries:
        counts.update({_one(word): int(number) for number, word in _COUNT.findall(summary.partition(" in ")[0])})
    seconds = sum(float(found) for summary in summaries for found in _SECONDS.findall(summary))
    worst_first = sorted(counts.items(), key=lambda item: item[0] not in _BAD)
    told = ", ".join(f"{number} {word}" for word, number in worst_first) or "no tests ran"
    return f"{told} in {seconds:.2f}s, in {len(summaries)} shares"


def read_cases(results: Path = RESULTS) -> tuple[Case, ...]:
    """Every test of every report below this folder."""
    return tuple(
        _case(report.parent.name, element)
        for report in sorted(results.glob(f"*/{_REPORT}"))
        for element in ET.parse(report).iter("testcase")
    )


def join_reports(parts: Iterable[str], results: Path = RESULTS) -> Path:
    """One report with the suites of these parts, each called like its part. A part that ended without a report has none
    in it."""
    suites = ET.Element("testsuites", name="lab")
    for part in parts:
        report = results / part / _REPORT
        for suite in ET.parse(report).iter("testsuite") if report.exists() else ():
            suite.set("name", part)
            suites.append(suite)
    target = results / _REPORT
    ET.ElementTree(suites).write(target, encoding="utf-8", xml_declaration=True)
    return target


def complaints(cases: Collection[Case], rows: Iterable[str]) -> Iterator[str]:
    """What is wrong with a run: tests that several shares of a machine ran, rows of outcomes.toml that no test met."""
    parts: dict[tuple[str, str, str], set[str]] = {}
    for case in cases:
        parts.setdefault((case.machine, case.file, case.name), set()).add(case.part)
    for (_, file, name), ran in parts.items():
        if len(ran) > 1:
            yield f"{file}::{name} ran in {' and '.join(sorted(ran))}"
    met = {row for case in cases for row in case.rows}
    yield from (f"no test met the row {row!r} of outcomes.toml" for row in rows if row not in met)


def failures(cases: Iterable[Case]) -> Iterator[str]:
    """What failed where, a line each, to be read where the output that tells more has long scrolled away."""
    return (f"{case.part}: {case.file}::{case.name}: {case.problem}" for case in cases if case.problem)


def failures_so_far(part: str, results: Path = RESULTS) -> Iterator[str]:
    """The same of a part that ended without a report, out of what it said until then; nothing where there is one."""
    log = results / part / LOG
    is_told = (results / part / _REPORT).exists()
    for line in log.read_text(errors="replace").splitlines() if log.exists() and not is_told else ():
        if line.startswith(FAILED):
            yield f"{part}: {_shortened(line.removeprefix(FAILED))}"


def _case(part: str, element: ET.Element) -> Case:
    properties = element.iter("property")
    problems = [_first_line(it) for kind in ("failure", "error") for it in element.iter(kind)]
    return Case(
        part=part,
        file=element.get("classname", "").rpartition(".")[2] + ".py",
        name=element.get("name", ""),
        seconds=float(element.get("time", "0")),
        rows=tuple(it.get("value", "") for it in properties if it.get("name") == OUTCOME),
        problem="; ".join(problems),
    )


def _first_line(problem: ET.Element) -> str:
    """pytest's own word for what was wrong, as far as a line goes."""
    words = " ".join((problem.get("message") or problem.text or "").split()) or f"{problem.tag} without a word"
    return _shortened(words)


def _shortened(line: str) -> str:
    return line if len(line) <= _LINE else line[: _LINE - 3] + "..."


def _one(word: str) -> str:
    """pytest says `1 warning` and `1 error`."""
    return word + "s" if word in {"warning", "error"} else word
