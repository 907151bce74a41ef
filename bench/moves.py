"""The floor of an attach: a C program with the bare requests, compiled when it is needed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.hosts import Host

SOURCE = Path(__file__).with_name("moves.c")


def compile_moves(folder: Path) -> Path:
    """The program. Raises RuntimeError, with the command that installs what is missing."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the floor of an attach is C, and there is no compiler. Next: apt-get install gcc libc6-dev")
    program = folder / "moves"
    done = subprocess.run(
        [compiler, "-O2", "-Wall", "-Wextra", "-o", str(program), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"moves.c cannot be compiled. Next: apt-get install gcc libc6-dev\n{done.stderr}")
    return program


class Moves:
    """The program on a host: its first netdevs into a pod and home again, in nanoseconds of time and of processor."""

    def __init__(self, program: Path, host: Host, mtu: int) -> None:
        self._program, self._host, self._mtu = program, host, mtu
        self._number = 0

    def attach_and_return(
        self,
        nics: int,
        mtu_at_home: int,
        settings: Callable[[int], Sequence[str]] = lambda _number: (),
        *,
        looks: bool = False,
    ) -> tuple[int, int]:
        """Of the attach only. `settings` are words of moves.c for the link of a number. `looks`: with all that
        nri-rdma asks the kernel for, and with its journal. Raises RuntimeError."""
        self._number += 1
        pod = self._host.make_pod(f"bare-{self._number}")
        names = list(self._host.ifindexes.items())[:nics]
        words: list[str] = []
        for at, (name, ifindex) in enumerate(names):
            words += (f"{ifindex},{name},rdma{at},10.9.{at}.1/24", *settings(at))
        took = self._run("attach" if looks else "in", pod, self._mtu, words)
        self._run("home", pod, mtu_at_home, words)
        self._host.remove_pod(pod)
        return took

    def _run(self, how: str, pod: Path, mtu: int, words: list[str]) -> tuple[int, int]:
        command = self._host.inside([str(self._program), how, str(pod), str(mtu), *words])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"moves {how}: {done.stderr.strip() or done.returncode}")
        wall, cpu = done.stdout.split()
        return int(wall), int(cpu)
