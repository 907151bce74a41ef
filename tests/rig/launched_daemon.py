"""The daemon as a real runtime starts it: a link in the runtime's folder of plugins and a drop-in with the settings."""

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from tests.rig.daemon import MEMLOCK, AnyDaemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.record import process_started
from tests.rig.runtime import Runtime

_PLUGIN = "90-nri-rdma"
_FIRST_LOG = Path("/run/nri-rdma")
"""Where the program logs before it has settings, on a machine without syslog."""


class LaunchedDaemon(AnyDaemon):
    """The daemon that this runtime starts with itself, from start() to stop(); `program` is the installed script."""

    def __init__(
        self, runtime: Runtime, fabric: Fabric, program: Path, settings: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(runtime)
        self._runtime = runtime
        self.link = runtime.run / "nri-plugins" / _PLUGIN
        self._drop_in = runtime.run / "nri-conf" / f"{_PLUGIN}.conf"
        self._program = program
        self._settings = {
            "nri_socket": str(runtime.nri_socket),
            "containerd_socket": str(runtime.cri_address),
            "sysfs_root": str(fabric.sysfs),
            "dev_root": str(fabric.dev),
            "proc_root": str(fabric.proc),
            "state_dir": str(self.state_dir),
            "log_file": str(self.log_path),
            "memlock": MEMLOCK,
            "pools.default.modes": ["exclusive", "shared"],
        } | dict(settings or {})
        self._made_first_log = not _FIRST_LOG.exists()

    @property
    def pid(self) -> int:
        """The process that runs: its command line is the interpreter and the link."""
        found = [pid for pid, words in _processes() if str(self.link) in words[1:2]]
        assert len(found) == 1, f"processes of {self.link}: {found}"
        return found[0]

    def start(self) -> None:
        """Restarts the runtime with the plugin in its folder: there is no other way to have it started."""
        self.install()
        self._runtime.restart()
        self.wait_started()

    def install(self) -> None:
        """The link and the drop-in, for the runtime's next start."""
        self._mark_log()
        self._drop_in.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in self._settings.items()))
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(self._program)

    def wait_started(self, other_than: int = 0) -> None:
        """Waits until one process, and not that one, serves the runtime."""
        wait_until(lambda: self._answers(other_than), lambda: f"the runtime's daemon; its log:\n{self.log}")

    def end(self, number: signal.Signals) -> None:
        """Ends it with a signal and waits for that; the runtime does not start it again."""
        pid = self.pid
        os.kill(pid, number)
        # Its remains stay until the runtime ends, which does not look at them.
        wait_until(lambda: not process_started(pid), f"process {pid} to end")

    def stop(self) -> None:
        """Takes the plugin away and restarts the runtime without it."""
        self.uninstall()
        self._runtime.restart()

    def uninstall(self) -> None:
        """Takes the link and the drop-in away, for the runtime's next start."""
        self.link.unlink(missing_ok=True)
        self._drop_in.unlink(missing_ok=True)
        if self._made_first_log:
            shutil.rmtree(_FIRST_LOG, ignore_errors=True)

    def _answers(self, other_than: int) -> bool:
        done = self.cli("status", "-o", "json")
        if done.returncode != 0:
            return False
        status = json.loads(done.stdout)
        pid, link = status["daemon"]["pid"], status["runtime"]["link"]
        is_settled = link == "synchronized" and status["cdi_specs_read"]
        return bool(is_settled and pid != other_than and pid == self.pid)


def _processes() -> list[tuple[int, list[str]]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we read the list
        found.append((int(folder.name), words))
    return found
