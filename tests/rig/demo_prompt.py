"""A prompt on the demo's node, as `make demo KEEP=1` starts it: a real containerd, the daemon, and the command `pod`.

When the shell ends, everything is given back, as at the end of the demo.
"""

import os
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from tests.rig import cache
from tests.rig.containerd import Containerd
from tests.rig.daemon import Daemon
from tests.rig.fabric import Fabric
from tests.rig.node import load

_WORK = cache.PROJECT / "build/demo"
_PROMPT = "demo-node# "
_HELP = f"""\
A node with eight adapters, a containerd and nri-rdma. Try:

  pod run one 1                                      a pod that asks for one device
  pod run two '[{{name: fast, count: 2, mode: exclusive}}]'
  pod apply {cache.PROJECT / "docs/examples/own-addresses.yaml"}
  pod exec two sh -c 'env | grep RDMA; ls /dev/infiniband; ip -br link'
  nri-rdma status            nri-rdma trace two      nri-rdma explain FILE
  pod run greedy 99                                  refused, with the reason
  pod list                   pod delete two          exit gives everything back
"""


def main() -> int:
    """Make the node, run the shell, remove the node."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    signal.signal(signal.SIGINT, _nothing)  # it is the shell's, and that of what runs there
    with ExitStack() as stack:
        fabric = stack.enter_context(Fabric(load("eight")))
        containerd = Containerd(_WORK, release=cache.CONTAINERD_2_1)
        stack.callback(containerd.stop)
        containerd.start()
        daemon = Daemon(containerd, fabric, extra=("--allow-default-pool",))
        stack.callback(daemon.stop)
        stack.callback(_delete_pods, containerd)
        daemon.start()
        programs = containerd.run / "programs"
        _write_programs(programs, containerd)
        print(_HELP, flush=True)
        subprocess.run(_shell(programs), env=_environment(programs, fabric, daemon), check=False)
    return 0  # the shell's own code is that of its last command


def _shell(programs: Path) -> list[str]:
    start = programs / "start"
    start.write_text(f"PS1={shlex.quote(_PROMPT)}\n")
    return ["bash", "--rcfile", str(start), *(["-i"] if sys.stdin.isatty() else [])]


def _environment(programs: Path, fabric: Fabric, daemon: Daemon) -> dict[str, str]:
    settings = {"STATE_DIR": daemon.state_dir, "SYSFS_ROOT": fabric.sysfs, "DEV_ROOT": fabric.dev}
    variables = {f"NRI_RDMA_{name}": str(value) for name, value in settings.items()}
    return {**os.environ, **variables, "PATH": f"{programs}:{os.environ['PATH']}"}


def _write_programs(folder: Path, containerd: Containerd) -> None:
    """Write `pod` and `nri-rdma`, as they are called in the shell from whatever folder."""
    folder.mkdir()
    place = f"PYTHONPATH={shlex.quote(str(cache.PROJECT))} exec {shlex.quote(sys.executable)} -m"
    where = shlex.join((str(containerd.cri_address), containerd.cgroup_parent, str(_WORK)))
    for name, words in (("pod", f"tests.rig.demo_pod {where}"), ("nri-rdma", "nri_rdma")):
        (folder / name).write_text(f'#!/bin/sh\n{place} {words} "$@"\n')
        (folder / name).chmod(0o755)


def _delete_pods(containerd: Containerd) -> None:
    for pod in containerd.cri.pods():
        containerd.cri.delete_pod(pod)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    return


def _end(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # it is being done
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
