"""The program on a machine that is no Linux: a process without what Linux alone has.

Blocked modules cannot be imported, whoever wants them; blocked names are taken out of the modules that have them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[4]

MODULES = ("fcntl", "termios", "tty", "pty", "resource", "grp", "spwd", "syslog", "pyroute2", "grpc")
"""Linux's, or not everywhere; netlink's and gRPC's libraries, which need it."""
NAMES = {
    "os": (
        *("setns", "unshare", "pidfd_open", "pipe2", "eventfd", "memfd_create", "sched_getaffinity", "splice"),
        *("copy_file_range", "posix_fadvise", "O_PATH", "O_TMPFILE", "getrandom", "prlimit"),
    ),
    "socket": (
        "AF_NETLINK",
        "AF_PACKET",
        "NETLINK_ROUTE",
        "SO_PEERCRED",
        "SOCK_CLOEXEC",
        "SOCK_NONBLOCK",
        "SCM_CREDENTIALS",
    ),
    "signal": ("pidfd_send_signal", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT"),
    "select": ("epoll", "EPOLLIN", "EPOLLONESHOT"),
}
_PRELUDE = """
import importlib, importlib.abc, json, sys
modules, names, arguments = json.loads(sys.argv[1])

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in modules:
            raise ModuleNotFoundError(f"No module named {name!r}: it is Linux's", name=name)
        return None

for name in modules:
    assert name not in sys.modules, name
sys.meta_path.insert(0, Blocked())
for module, gone in names.items():
    imported = importlib.import_module(module)
    for name in gone:
        if hasattr(imported, name):
            delattr(imported, name)
sys.platform = "darwin"
sys.argv = ["nri-rdma", *arguments]
from nri_rdma.commands.cli.main import main
main()
"""


def elsewhere(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run nri-rdma there to its end."""
    told = json.dumps([MODULES, NAMES, list(map(str, arguments))])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NRI_RDMA_")}
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE, told],
        cwd=PROJECT,
        env={**environment, "COLUMNS": "200", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
