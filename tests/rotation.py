"""What CI tests besides, one turn in each run: the one that was green longest ago, by the record in docs/rotation.md.

`python -m tests.rotation [TURN]`. A green turn writes its line into the record, and who lands commits it: as many
landings as there are turns open every door.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import environ
from pathlib import Path

from tests.lab.shares import CORE

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs/rotation.md"
BEGIN, END = "<!-- turns: begin -->", "<!-- turns: end -->"
RUNTIMES = ("containerd-2.0", "containerd-2.4", "containerd-1.7", "containerd-2.1", "containerd-2.3", "cri-o-1.36")
KERNELS = ("6.12", "6.1")
"""The kernels of tests/lab/recipe.py that `make lab` does not boot by itself."""
MACHINES = {"lab: small": ("small",), "lab: eight and sriov": ("eight", "sriov"), "lab: systemd": ("systemd",)}
"""The machines of tests/lab/machine.py, by turn; each is in one."""
CLUSTER = {
    "claims": (
        "test_claims",
        "test_claim_again",
        "test_claim_shapes",
        "test_claim_status",
        "test_gate",
        "test_guard_resource",
        "test_lost_netdevs",
        "test_slice_writes",
    ),
    "faults of claims": ("test_claim_churn", "test_claim_faults", "test_driver_restart"),
    "DRANET shapes": ("test_peer_behaviours", "test_peer_examples", "test_programs"),
    "shares": (
        "test_annotations",
        "test_share_guard",
        "test_share_restarts",
        "test_shares",
        "test_shares_many",
        "test_shares_nodes",
    ),
    "kubelets": ("test_device_pools", "test_kubelet_answers", "test_many_nodes", "test_split_node"),
    "KubeRay": ("test_kuberay", "test_kuberay_one"),
}
"""The files of tests/cluster, by turn; each is in one."""
CHART_FILES = ("test_chart_uninstall", "test_chart_upgrade", "test_chart_values")
PRIVILEGES = ("test_chart_privileges",)
PODMAN = {"runc": "not docker and not crun", "crun": "crun and not docker"}
"""pytest's -k by the OCI runtime; what needs none of the two is in the first."""
OLDER_KUBERNETES = {"1.35": "v1.35.8", "1.36": "v1.36.5"}
OLDER_FILES = ("test_annotations", "test_shares", "test_claims")
_PASSED = re.compile(r"\b(\d+) passed\b")
_REPEATED = tuple(f"{name}: " for names in MACHINES.values() for name in names)
"""How the lab's last lines begin, which say again what pytest has said."""
_NEVER = "never"
_HEAD = "| Turn | What it runs | Last green | Commit | Minutes | Tests passed |\n|---|---|---|---|---|---|\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is tested at once, and the commands that build and test it, in order."""

    name: str
    what: str
    """For the page."""
    commands: tuple[tuple[str, ...], ...]
    """Each is the arguments of Python."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Green:
    """When a turn was last green: a line of the record."""

    date: str
    """In UTC and as ISO 8601 has it, so that dates are in the order of their texts."""
    commit: str
    minutes: str
    passed: str


def _turns() -> Iterator[Turn]:
    for name in RUNTIMES:
        which = ("-m", "every_runtime", "--other-runtimes", "-k", name)
        tests = ("-m", "tests.parts", "tests/runtime", "-q", *which)
        what = "what tests/runtime has for every runtime and `make test` does not run on this one"
        yield Turn(name=name, what=what, commands=(("-m", "tests.rig.build_runtimes", name), tests))
    for name, files in CLUSTER.items():
        yield Turn(
            name=name,
            what=f"a real Kubernetes: {', '.join(files)} of tests/cluster",
            commands=(_cluster(files),),
        )
    for minor, version in OLDER_KUBERNETES.items():
        yield Turn(
            name=f"Kubernetes {minor}",
            what=f"Kubernetes {version}: {', '.join(OLDER_FILES)} of tests/cluster",
            commands=(_cluster(OLDER_FILES),),
            environment={"KUBERNETES": version},
        )
    for oci_runtime, keywords in PODMAN.items():
        yield Turn(
            name=f"podman with {oci_runtime}",
            what=f"real podman of Debian 13 with {oci_runtime}: tests/oci without Docker",
            commands=(("-m", "tests.oci", "--", "-q", "-k", keywords),),
        )
    yield Turn(
        name="Docker",
        what="real Docker of Debian forky: tests/oci, what names Docker",
        commands=(("-m", "tests.oci", "forky", "--", "-q", "-k", "docker"),),
    )
    yield Turn(
        name="image",
        what="the images for both architectures, what is in them, and the Dockerfile: tests/image",
        commands=(("-m", "tests.image", "--", "-q"),),
    )
    yield Turn(
        name="chart",
        what=f"helm, a real Kubernetes: tests/chart, `make cluster-demo`, {', '.join(CHART_FILES)} of tests/cluster",
        commands=(("-m", "tests.chart", "--", "-q"), ("-m", "tests.cluster", "--demo"), _cluster(CHART_FILES)),
    )
    yield Turn(
        name="privileges",
        what=f"what the daemon's pod may do and sees, one thing less at a time: {PRIVILEGES[0]} of tests/cluster",
        commands=(_cluster(PRIVILEGES),),
    )
    for name, machines in MACHINES.items():
        chosen = (word for machine in machines for word in ("--machine", machine))
        what = f"all tests of the lab in its virtual machine{'s' * (len(machines) > 1)} {' and '.join(machines)}"
        yield Turn(name=name, what=what, commands=(("-m", "tests.lab", *chosen),))
    for kernel in KERNELS:
        what = f"the lab's virtual machine with kernel {kernel}: {', '.join(CORE)} of tests/lab/guest"
        yield Turn(name=f"kernel {kernel}", what=what, commands=(("-m", "tests.lab", "--kernel", kernel, "--core"),))


def _cluster(files: Sequence[str]) -> tuple[str, ...]:
    return ("-m", "tests.cluster", *(f"tests/cluster/{name}.py" for name in files), "--", "-q")


TURNS = {turn.name: turn for turn in _turns()}


def read(page: Path = PAGE) -> dict[str, Green]:
    """Return the page's record, by turn; turns that were never green, or exist no longer, are left out."""
    table = page.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line]
    return {
        name: Green(date=date, commit=commit.strip("`"), minutes=minutes, passed=passed)
        for name, _, date, commit, minutes, passed in rows
        if name in TURNS and date != _NEVER
    }


def write(record: Mapping[str, Green], page: Path = PAGE) -> None:
    """Replace the page's table; all other text stays."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    rows = "".join(_row(turn, record.get(turn.name)) for turn in TURNS.values())
    page.write_text(f"{before}{BEGIN}\n\n{_HEAD}{rows}\n{END}{after}")


def _row(turn: Turn, green: Green | None) -> str:
    when = (green.date, f"`{green.commit}`", green.minutes, green.passed) if green is not None else (_NEVER, "", "", "")
    return f"| {' | '.join((turn.name, turn.what, *when))} |\n"


def longest_ago(record: Mapping[str, Green]) -> Turn:
    """Return the turn that was green longest ago. One that never was has to be run by its name first: what nobody has
    seen green must not stop a change."""
    return TURNS[min(record or TURNS, key=lambda name: record[name].date if name in record else "")]


def run(turn: Turn, page: Path = PAGE) -> int:
    """Do it all, also after a failure, and return the first exit code that is not 0; write down what was green."""
    print(f"--- rotation: {turn.name} (to repeat it: make rotation TURN='{turn.name}')", flush=True)
    begun = time.monotonic()
    codes, passed = [], 0
    for command in turn.commands:
        command_begun = time.monotonic()
        code, count = _run([sys.executable, *command], turn.environment)
        codes.append(code)
        passed += count
        print(f"--- {' '.join(command)}: {time.monotonic() - command_begun:.0f} s, exit code {code}", flush=True)
    first = next((code for code in codes if code), 0)
    minutes = (time.monotonic() - begun) / 60
    if first or not passed:
        print(f"--- rotation: {turn.name}: failed, {passed} passed, {minutes:.1f} minutes", flush=True)
        return first or 1
    today = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    green = Green(date=today, commit=_commit(), minutes=f"{minutes:.1f}", passed=str(passed))
    write({**read(page), turn.name: green}, page)
    print(
        f"--- rotation: {turn.name}: green, {passed} passed, {minutes:.1f} minutes: commit docs/rotation.md", flush=True
    )
    return 0


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
    """Run a command, show what it prints, and return its exit code and how many tests passed."""
    passed = 0
    process = subprocess.Popen(
        command, cwd=PROJECT, env={**environ, **environment}, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        passed += 0 if line.startswith(_REPEATED) else sum(map(int, _PASSED.findall(line)))
    return process.wait(), passed


def _commit() -> str:
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Take the turn that the command line names, or the one that was green longest ago."""
    given = sys.argv[1:]
    unknown = [name for name in given if name not in TURNS]
    if unknown or len(given) > 1:
        print(f"rotation: no turn {' '.join(given)!r}. Next: name one of {', '.join(TURNS)}.", file=sys.stderr)
        return 2
    return run(TURNS[given[0]] if given else longest_ago(read()))


if __name__ == "__main__":
    sys.exit(main())
