"""Starts a plugin as a runtime does: no arguments, three variables, a connection as descriptor 3, nothing to read or
write. Also the program as pip installs it, since runtimes start files and not modules."""

import ctypes
import os
import signal
import socket
import sys
import threading
import venv
from pathlib import Path
from types import TracebackType
from typing import Any, Self  # Any: code without types

from pip._vendor.distlib.scripts import ScriptMaker

from tests.rig.deadline import wait_until

PROJECT = Path(__file__).resolve().parents[2]
ENTRY_POINT = "nri-rdma = nri_rdma.commands.cli.main:main"
"""What pyproject.toml says under [project.scripts]; a test holds it to that."""

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 1 << 18  # linux/sched.h, linux/mount.h


def install(folder: Path) -> Path:
    """A virtual environment with the project and what it needs in it; the path of its `nri-rdma`.

    Packages are those of the running Python; the script is made by pip's own maker.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    (python,) = folder.glob("lib/python3*")
    packages = [str(PROJECT), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    (python / "site-packages/project.pth").write_text("".join(f"{entry}\n" for entry in packages))
    maker: Any = ScriptMaker(None, str(folder / "bin"))  # type: ignore[no-untyped-call] # pip's code has no types
    maker.executable = str(folder / "bin/python")
    maker.variants = {""}
    (script,) = maker.make(ENTRY_POINT)
    return Path(script)


class LaunchedPlugin:
    """One process of a plugin, until its end or the end of the `with`. `connection` is the runtime's end.

    It sees the folder `run` as /run: what it writes there by default is not the machine's.
    """

    def __init__(self, program: Path, run: Path, *, name: str = "", socket_variable: str = "3") -> None:
        index, _, base = program.name.partition("-")
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        variables = {
            "NRI_PLUGIN_NAME": name or base,
            "NRI_PLUGIN_IDX": index,
            "NRI_PLUGIN_SOCKET": socket_variable,
        }
        self.pid = 0
        with theirs:
            thread = threading.Thread(target=self._start, args=(program, run, variables, theirs.fileno()))
            thread.start()
            thread.join()
        assert self.pid, "the thread's traceback says why there is no plugin"
        self.exit_code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.connection.close()
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)  # as runtimes do
            self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = 30.0) -> int:
        """Its exit code, negative for a signal; raises DeadlineError when it does not end."""
        wait_until(self._has_ended, "the plugin to end", seconds)
        assert self.exit_code is not None
        return self.exit_code

    def _start(self, program: Path, run: Path, variables: dict[str, str], connection: int) -> None:
        """For a thread: the mounts of its own end with it, and its child keeps them."""
        libc = ctypes.CDLL(None, use_errno=True)
        private = libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
        if private or libc.mount(os.fsencode(run), b"/run", None, _MS_BIND, None):
            raise OSError(ctypes.get_errno(), "a mount namespace for the plugin")
        null = ((os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3))
        actions = [(os.POSIX_SPAWN_DUP2, connection, 3), *null]
        self.pid = os.posix_spawn(program, [str(program)], variables, file_actions=actions)

    def _has_ended(self) -> bool:
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None
