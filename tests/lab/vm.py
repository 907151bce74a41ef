"""One run of the lab's machine: the checkout goes in, pytest's output comes out live, results come back.

Two things end a run early: a machine that does not boot, which is tried once more (emulation on a busy host can starve
a boot; a failing test is never tried again), and the hard limit. QEMU dies with us, however we end.
"""

import io
import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import bytecode
from tests.lab.errors import LabError
from tests.lab.image import UNFINISHED, Image
from tests.lab.machine import Disk, Machine, Model, qemu_command
from tests.lab.progress import say
from tests.lab.reports import LOG
from tests.rig import cache

BOOT_LIMIT_S = 120
BOOT_ATTEMPTS = 2
_RESULTS_BYTES = 64 << 20
_OVERHEAD_S = 20  # the guest's own limit ends before ours, so that a hanging test still leaves its logs
_ENDED_BY_INIT = 124  # guest/init.py
_LOOK_S = 0.5  # how soon an interrupted run is noticed
_READY = b"lab: guest ready"
_LEFT_OUT_AT_TOP = {".cache", ".git", ".venv", "build", "dist"}
_SUMMARY = re.compile(r"^=*\s*((?:no tests ran|\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.]+s(?: \([\d:]+\))?)\s*=*$")


class BootError(LabError):
    """The machine did not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    exit_code: int
    summary: str  # pytest's own last line
    boot_attempts: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is asked for: pytest with these arguments in a machine of that model, its results in a folder."""

    model: Model
    name: str  # the model's, or that of a share of its tests
    emulator: tuple[str, ...]
    image: Image
    checkout: Path
    results: Path
    bytecode: Path  # where it is kept
    pytest_arguments: tuple[str, ...]
    limit_s: int
    label: str  # before each line of the guest's output; empty where it is the only one
    stop: threading.Event  # ends the machine when somebody sets it


def run_tests(run: Run) -> Outcome:
    """Runs pytest in the machine; LabError when there is no answer of pytest's to hand on."""
    if run.results.exists():
        shutil.rmtree(run.results)
    run.results.mkdir(parents=True)
    for attempt in range(1, BOOT_ATTEMPTS + 1):
        try:
            return _attempt(attempt, run)
        except BootError as error:
            say(f"{run.name}: boot {attempt} of {BOOT_ATTEMPTS} failed: {error}")
    where = f"console.log and qemu.log in {run.results}"
    raise LabError(f"the machine did not boot in {BOOT_ATTEMPTS} attempts. Next: read {where}.")


def find_summary(line: str) -> str:
    """pytest's last line without its frame; empty for any other line."""
    found = _SUMMARY.match(line.strip())
    return found.group(1) if found else ""


def run_shell(model: Model, emulator: tuple[str, ...], image: Image, checkout: Path) -> int:
    """The same machine with a shell on its console."""
    with _scratch(image) as scratch:
        machine = _machine(model, emulator, image, checkout, scratch, {"shell": True}, None)
        return subprocess.run(_dying_with_us(qemu_command(machine, None)), check=False).returncode


def _attempt(number: int, run: Run) -> Outcome:
    started, model, results = time.monotonic(), run.model, run.results
    job = {"shell": False, "pytest": run.pytest_arguments, "limit_s": run.limit_s - _OVERHEAD_S}
    with _scratch(run.image) as scratch:
        machine = _machine(model, run.emulator, run.image, run.checkout, scratch, job, run.bytecode)
        say(f"booting the machine {run.name!r} ({model.cpus} cpus, {model.memory_mib} MiB, {model.accelerator})")
        output = _Output(copy_to=results / LOG, label=run.label)
        with _qemu(qemu_command(machine, results / "console.log"), results / "qemu.log") as qemu:
            output.follow(qemu, boot_end=started + BOOT_LIMIT_S, end=started + run.limit_s, stop=run.stop)
        facts = _collect(scratch / "results", results)
        bytecode.keep(results / bytecode.ARCHIVE, run.bytecode)
        (results / bytecode.ARCHIVE).unlink()
    seconds = {
        "boot": round(output.ready_at - started, 1),
        "pytest": round(facts["pytest_s"], 1),
        "total": round(time.monotonic() - started, 1),
    }
    (results / "timings.json").write_text(json.dumps({"boot_attempts": number, "seconds": seconds}, indent=2) + "\n")
    if facts["exit"] == _ENDED_BY_INIT:
        raise LabError(f"pytest was ended before it was done. Next: see {results / LOG}, or raise --limit.")
    if not output.summary:
        raise LabError(f"pytest ended without a summary ({facts['exit']:.0f}). Next: read the logs in {results}.")
    return Outcome(exit_code=int(facts["exit"]), summary=output.summary, boot_attempts=number, seconds=seconds)


def _machine(
    model: Model,
    emulator: tuple[str, ...],
    image: Image,
    checkout: Path,
    scratch: Path,
    job: dict[str, object],
    compiled: Path | None,
) -> Machine:
    facts = {"machine": model.name, "node": model.node.name, "systemd": model.systemd}
    _write_job(checkout, facts | job, scratch / "job", compiled)
    with (scratch / "results").open("wb") as empty:
        empty.truncate(_RESULTS_BYTES)
    return Machine(
        model=model,
        emulator=emulator,
        kernel=image.kernel,
        initrd=image.initrd,
        disks=(
            Disk(serial="root", path=image.disk, throwaway=True),
            Disk(serial="job", path=scratch / "job", read_only=True),
            Disk(serial="results", path=scratch / "results"),
        ),
    )


def _write_job(checkout: Path, job: dict[str, object], target: Path, compiled: Path | None) -> None:
    """The checkout as it lies there, committed or not, without what it can make again, and its bytecode as kept."""
    with tarfile.open(target, "w") as tar:
        _add(tar, Path("job.json"), json.dumps(job).encode())
        for path in (*_files(checkout), *_crio(checkout)):
            try:
                tar.add(path, arcname=Path("checkout") / path.relative_to(checkout), recursive=False)
            except FileNotFoundError:
                say(f"{path.relative_to(checkout)} vanished while the checkout was copied; going on without it")
        for path, place in bytecode.kept(compiled, checkout) if compiled is not None else ():
            _add(tar, Path("checkout") / place, path.read_bytes())  # another run may put a new one in its place


def _add(tar: tarfile.TarFile, name: Path, content: bytes) -> None:
    info = tarfile.TarInfo(str(name))
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _files(checkout: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(checkout):
        left_out = {"__pycache__"} | (_LEFT_OUT_AT_TOP if folder == str(checkout) else set())
        folders[:] = sorted(name for name in folders if name not in left_out)
        yield from (Path(folder) / name for name in sorted(files))


def _crio(checkout: Path) -> Iterator[Path]:
    """CRI-O with its programs, if it is built (tests/rig/build_runtimes.py)."""
    for release in cache.built():
        if release.is_crio:
            yield from (path for path in release.programs() if path.is_relative_to(checkout))


def _collect(disk: Path, results: Path) -> dict[str, float]:
    """The guest's results folder, and the facts that its init noted."""
    try:
        with tarfile.open(disk) as tar:
            for member in tar:
                if (content := tar.extractfile(member)) is not None:
                    (results / Path(member.name).name).write_bytes(content.read())
    except tarfile.ReadError as error:
        raise LabError(f"the guest died before it could hand out its results. Next: read {results}.") from error
    facts: dict[str, float] = json.loads((results / "run.json").read_text())
    return facts


class _Output:
    """What the guest says: shown at once, kept in a file, searched for two lines."""

    def __init__(self, copy_to: Path, label: str) -> None:
        self.ready_at = 0.0
        self.summary = ""
        self._copy_to = copy_to
        self._label = label.encode()
        self._rest = b""

    def follow(self, qemu: "subprocess.Popen[bytes]", boot_end: float, end: float, stop: threading.Event) -> None:
        """Until the machine goes off; BootError or LabError when it does so too early or not at all."""
        assert qemu.stdout is not None  # _qemu opened it
        with selectors.DefaultSelector() as selector, self._copy_to.open("wb") as copy:
            selector.register(qemu.stdout, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= end:
                    raise LabError("the machine was ended at the hard limit. Next: raise it with --limit, or see logs.")
                if not self.ready_at and now >= boot_end:
                    raise BootError(f"not ready after {BOOT_LIMIT_S} s")
                if stop.is_set():
                    raise LabError("the machine was ended: the run was interrupted.")
                if not selector.select(min((end if self.ready_at else boot_end) - now, _LOOK_S)):
                    continue
                data = qemu.stdout.read1()  # type: ignore[attr-defined]  # a BufferedReader, typeshed says IO[bytes]
                if not data:
                    break
                copy.write(data)
                self._take(data)
        _show(self._label, self._rest)
        if not self.ready_at:
            raise BootError(f"the machine went off (QEMU's exit code {qemu.wait()})")

    def _take(self, data: bytes) -> None:
        """Without a label what comes is shown as it comes, half lines too: pytest's names before their outcomes."""
        if not self._label:
            _write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            _show(self._label, line)
            if line.startswith(_READY):
                self.ready_at = time.monotonic()
            elif summary := find_summary(line.decode(errors="replace")):
                self.summary = summary


def _show(label: bytes, line: bytes) -> None:
    """One whole line in one write: machines that run side by side do not mix theirs."""
    if label and line:
        _write(label + b"| " + line + b"\n")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


@contextmanager
def _qemu(command: tuple[str, ...], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as complaints:
        qemu = subprocess.Popen(
            _dying_with_us(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,  # Ctrl-C reaches us alone, and we end the machine
        )
    try:
        yield qemu
    finally:
        qemu.kill()
        qemu.wait()


def _dying_with_us(command: tuple[str, ...]) -> tuple[str, ...]:
    return ("setpriv", "--pdeathsig", "KILL", *command)


@contextmanager
def _scratch(image: Image) -> Iterator[Path]:
    """Beside the image: what a killed run leaves there, the next one removes."""
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=image.folder.parent) as folder:
        yield Path(folder)
