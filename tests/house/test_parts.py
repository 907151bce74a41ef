"""The parts of a run forget no test, run none twice, and fail when one of them does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import durations, namespaces, parts

PROJECT = parts.PROJECT
COLLECTED = (
    "tests/kernel/test_held.py",
    "tests/kernel/test_host_use.py",
    "tests/runtime/test_rig.py",
    "tests/unit/tasks",
    "tests/unit/wire",
    "tests/wheel/test_wheel.py",
)
"""Some of every kind: alone, of the host, on the machine, and others; few, because each part collects them anew."""
LOOK = "ip -o link show; ls /sys/class/net /run /var/lib"
"""What a part sees of its links and of its folders."""


def all_files() -> list[str]:
    """Return every file of tests that a run of everything collects."""
    found = (path.relative_to(PROJECT).as_posix() for path in (PROJECT / "tests").rglob("test_*.py"))
    return sorted(file for file in found if not file.startswith("tests/lab/guest/"))


def collect(*arguments: str) -> list[str]:
    """Return the names of the tests that pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *COLLECTED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("one_host", [False, True], ids=["hosts of their own", "one host"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seconds", [parts.read_seed(), {}], ids=["by the seed", "without a seed"])
def test_every_file_is_in_exactly_one_part(count: int, seconds: dict[str, float], one_host: bool) -> None:
    files = all_files()
    dealt = [file for part in parts.names(count, one_host=one_host) for file in parts.choose(part, files, seconds)]
    assert sorted(dealt) == files


def test_what_pytest_collects_in_all_parts_is_what_it_collects_without_them() -> None:
    together = Counter(name for part in parts.names(1) for name in collect("--part", part))
    assert together == Counter(collect())


def test_what_changes_or_compares_the_host_is_in_one_part_when_they_share_it() -> None:
    names = parts.names(2, one_host=True)
    first, second, alone = (parts.choose(part, all_files(), parts.read_seed()) for part in names)
    assert {file for file in first | alone if file.startswith(parts.HOST)}
    assert not {file for file in second if file.startswith(parts.HOST)}


def test_only_parts_with_hosts_of_their_own_have_what_changes_or_compares_the_host_side_by_side() -> None:
    chosen = {part: parts.choose(part, all_files(), parts.read_seed()) for part in parts.names()}
    having = {part for part, files in chosen.items() if any(file.startswith(parts.HOST) for file in files)}
    assert having - {parts.MACHINE, parts.ALONE} == {part for part in parts.names() if parts.has_own_host(part)}
    assert [part for part in parts.names() if not parts.has_own_host(part)] == [parts.MACHINE, parts.ALONE]
    assert not any(parts.has_own_host(part) for part in parts.names(one_host=True))


def test_each_file_that_needs_the_machine_and_each_that_runs_alone_is_there_and_has_one_reason() -> None:
    gone = (parts.ALONE_FILES.keys() | parts.MACHINE_FILES.keys()) - set(all_files())
    assert not gone, "tests/parts.py names these files, which are not there: write the names that they have now"
    assert not parts.ALONE_FILES.keys() & parts.MACHINE_FILES.keys()


def test_the_longest_file_is_dealt_first_and_the_parts_end_together() -> None:
    seconds = {"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "tests/runtime/test_x.py": 4.0}
    shared = [set(parts.choose(part, seconds, seconds)) for part in parts.names(2, one_host=True)]
    assert shared == [{"tests/runtime/test_x.py", "b", "d"}, {"a", "c"}, set()]
    own = [set(parts.choose(part, seconds, seconds)) for part in parts.names(2)]
    assert own == [{"a", "c", "d"}, {"tests/runtime/test_x.py", "b"}, set(), set()]


@contextmanager
def on_own_host(script: str) -> Iterator[subprocess.Popen[str]]:
    """A shell in a part's namespaces. It goes on until what it reads ends."""
    with subprocess.Popen(
        namespaces.wrapped(["sh", "-ec", f"{script}; echo end; cat"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    ) as shell:
        yield shell


def told(shell: subprocess.Popen[str]) -> list[str]:
    """Return the words of what the shell's script says."""
    assert shell.stdout is not None
    words: list[str] = []
    for line in shell.stdout:
        if line == "end\n":
            return words
        words += line.split()
    raise AssertionError(f"it ended early: {words}")


@pytest.mark.root
def test_a_part_has_a_network_and_mounts_of_its_own_and_the_machines_processes_and_cgroups() -> None:
    kinds = ("net", "mnt", "pid", "cgroup", "user")
    with on_own_host("cd /proc/self/ns; readlink net mnt pid cgroup user; ls /sys/fs/cgroup") as shell:
        links, cgroups = (words := told(shell))[: len(kinds)], words[len(kinds) :]
    machines = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds]
    different = {kind for kind, own, machine in zip(kinds, links, machines, strict=True) if own != machine}
    assert different == {"net", "mnt"}
    assert cgroups == sorted(path.name for path in Path("/sys/fs/cgroup").iterdir())


@pytest.mark.root
def test_links_and_files_of_one_part_are_seen_in_no_other() -> None:
    made = f"part{os.getpid()}"
    make = f"ip link add {made} type veth peer name {made}p; touch /run/{made} /var/lib/{made}"
    with on_own_host(f"{make}; {LOOK}") as one, on_own_host(f"true; {LOOK}") as other:
        assert told(one).count(made) == 3
        assert not [word for word in told(other) if made in word]
        here = subprocess.run(["sh", "-ec", LOOK], capture_output=True, text=True, check=True).stdout
        assert made not in here


@pytest.mark.root
def test_a_part_has_a_route_that_what_compares_hosts_can_miss() -> None:
    with on_own_host("ip route show default; ip -6 route show default") as shell:
        assert told(shell).count("default") == 2


@pytest.mark.root
def test_where_namespaces_are_refused_the_parts_share_the_machines_network_and_say_so(tmp_path: Path) -> None:
    """A process without CAP_SYS_ADMIN, as in a container."""
    (tmp_path / "test_planted.py").write_text("def test_planted() -> None:\n    assert 1 + 1 == 2\n")
    ours = ["-p", "tests.conftest", "-c", str(PROJECT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    program = "import sys; from pathlib import Path; from tests import parts; "
    program += "sys.exit(parts.run(sys.argv[2:], Path(sys.argv[1])))"
    powerless = ["setpriv", "--inh-caps=-sys_admin", "--bounding-set=-sys_admin", sys.executable, "-c", program]
    command = [*powerless, str(tmp_path), str(tmp_path / "test_planted.py"), "-q", *ours]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    words = "--- 2 parts, not 3: they share this machine's network (unshare: Operation not permitted)"
    assert lines[0] == words
    ended = [line.split(":")[0] for line in lines if line.startswith("--- part ")]
    assert ended == ["--- part 1/2@host", "--- part 2/2@host"]


def test_what_tests_need_is_not_hidden_by_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", "/run/tests")
    assert namespaces.why_not() == "/run/tests is below /run, which is to be empty"


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0, 0], 0),
        ([0, 0, 5], 0),
        ([0, 1, 0], 1),
        ([1, 0, 0], 1),
        ([0, 0, 1], 1),
        ([5, 2, 5], 2),
        ([5, 5], 5),
        ([0, -signal.SIGKILL], 137),
    ],
)
def test_a_failure_of_any_part_fails_the_run(codes: list[int], code: int) -> None:
    assert parts.exit_code(codes) == code


def test_the_last_lines_name_every_test_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_planted.py").write_text("def test_planted() -> None:\n    assert 1 + 1 == 3\n")
    ours = ["-p", "tests.conftest", "-c", str(PROJECT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    assert parts.run([str(tmp_path / "test_planted.py"), "-q", *ours], tmp_path) == 1
    last = capsys.readouterr().out.splitlines()[-4:]
    assert [line for line in last if line.startswith("FAILED ") and "test_planted.py::test_planted" in line]


def test_the_last_lines_count_what_was_skipped_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, number in (("one", 2), ("two", 1)):
        lines = (f"def test_{name}{it}() -> None:\n    pytest.skip('no: such thing')\n" for it in range(number))
        (tmp_path / f"test_{name}.py").write_text("import pytest\n" + "".join(lines))
    ours = ["-p", "tests.conftest", "-c", str(PROJECT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    parts.run([str(tmp_path), "-q", *ours], tmp_path)
    assert "--- skipped 3: no: such thing" in capsys.readouterr().out.splitlines()


def test_a_seed_has_the_files_that_are_there(tmp_path: Path) -> None:
    kept, seed = tmp_path / "kept.json", tmp_path / "seed.json"
    durations.keep(kept, {"a.py": 1.26, "gone.py": 2.0, "short.py": 0.02})
    for name in ("a.py", "short.py"):
        (tmp_path / name).touch()
    durations.write_seed(kept, seed, tmp_path)
    assert parts.read_seed(seed) == {"a.py": 1.3}


@pytest.mark.root
def test_make_has_no_tests_in_memory_where_no_program_can_be_run() -> None:
    mounting = 'mount -t tmpfs -o noexec tmpfs /dev/shm && exec make --silent --eval="$0" show'
    command = ["unshare", "--mount", "sh", "-c", mounting, "show: ; @echo in $$PYTEST_DEBUG_TEMPROOT"]
    assert subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout == "in\n"
