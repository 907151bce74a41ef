"""The daemon with all that it asks of the kernel written down: `python -m tests.rig.watched_daemon FILE FLAGS...`.

A line of FILE is one call: its thread, the name of the span in which it was made, and what it was. Watched are netlink
sockets (made, bound, sent to), entries into network namespaces, and files and folders opened below /sys, /proc and the
folders that stand for these. The product has no switch for this.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from nri_rdma.commands.common.options import settings_options
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.daemon import Daemon as Product
from nri_rdma.host.netlink.namespaces import netns_visit
from nri_rdma.observe.logs import set_up_logging
from nri_rdma.observe.spans import current_span
from tests.rig.daemon import PROJECT, Daemon

_OPENS = frozenset({"open", "os.listdir", "os.scandir"})
_DEPTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One call; `span` is "" for one outside of any, `stack` names the functions that led to it, the innermost last."""

    thread: str
    span: str
    what: str
    stack: tuple[str, ...]


class WatchedDaemon(Daemon):
    """One `nri-rdma run` whose kernel calls are written down."""

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """What it has asked of the kernel since its start."""
        lines = [json.loads(line) for line in self._calls_path.read_text().splitlines()]
        return tuple(KernelCall(**line | {"stack": tuple(line["stack"])}) for line in lines)

    def start_process(self) -> None:
        """Starts it and does not wait."""
        self._mark_log()
        self._calls_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.rig.watched_daemon", str(self._calls_path), *self._flags]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=PROJECT, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def _calls_path(self) -> Path:
        return self.log_path.with_suffix(".calls")


class _Watch:
    """Writes calls down; a line is one write, so threads do not mix theirs."""

    def __init__(self, path: Path, roots: tuple[str, ...]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._roots = roots

    def note(self, what: str) -> None:
        span = current_span()
        stack = [it.name for it in traceback.extract_stack(limit=_DEPTH)[:-2]]
        call = {"thread": threading.current_thread().name, "span": span.name if span else "", "what": what}
        os.write(self._fd, f"{json.dumps(call | {'stack': stack})}\n".encode())

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """For sys.addaudithook."""
        if event in _OPENS and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.fsdecode(arguments[0])
            if path.startswith(self._roots):
                self.note(f"{event} {path}")


def watch_sockets(watch: _Watch) -> None:
    """Has all that is asked of netlink sockets noted."""

    class Watched(socket.socket):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._note("socket")

        def bind(self, address: Any) -> None:
            self._note("bind")
            super().bind(address)

        def send(self, data: Any, flags: int = 0) -> int:
            self._note("send")
            return super().send(data, flags)

        def _note(self, verb: str) -> None:
            if self.family == socket.AF_NETLINK:
                watch.note(f"{verb} netlink {self.proto}")

    socket.socket = Watched  # type: ignore[misc] # what the product makes its sockets of


def main(path: Path, flags: list[str]) -> None:
    """Run the daemon with these flags."""

    @click.command()
    @settings_options()
    def run(settings: Settings) -> None:
        set_up_logging(settings.log_level, settings.log_format)
        folders = (settings.sysfs_root, settings.dev_root, settings.proc_root, settings.cgroup_root)
        watch = _Watch(path, tuple(map(str, (*folders, "/sys/", "/proc/"))))
        watch_sockets(watch)
        entering = netns_visit.enter

        def enter(fd: int) -> None:
            watch.note("setns")
            entering(fd)

        netns_visit.enter = enter
        sys.addaudithook(watch.audit)
        Product(settings, reread=lambda: settings).run()

    run(flags)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
