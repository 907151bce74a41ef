"""Records what real runtimes say to the daemon: `python -m tests.rig.record_sessions [NAME...]`, as root.

Each runtime that is there (fetched, or built by tests/rig/build_runtimes.py) lives through the same story with a tap in
between; the bytes of both directions become test data. Run it again for a new runtime or when the story changes.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rig import cache
from tests.rig.containerd import Containerd
from tests.rig.cri import CriError
from tests.rig.crio import Crio
from tests.rig.daemon import Daemon
from tests.rig.fabric import Fabric
from tests.rig.node import load
from tests.rig.nri_tap import RECORDINGS, Tap, write_recording
from tests.rig.runtime import Runtime

POD = "rdma.noderesource.dev/pod"
ALONE, SHARED = "- {match: {device: mlx5_2}}", "- {mode: shared, match: {device: mlx5_7}}"
TOO_MUCH = "99"


@dataclass(frozen=True, slots=True)
class _Place:
    """The runtime's folders, with the tap's socket in the place of its own."""

    run: Path
    work: Path
    nri_socket: Path


def main(names: Sequence[str]) -> int:
    """Records those runtimes, or every one that is there."""
    releases = [it for it in (*cache.ALWAYS, *cache.others()) if not names or it.name in names]
    RECORDINGS.mkdir(exist_ok=True)
    for release in releases:
        kind = Crio if release.is_crio else Containerd
        with tempfile.TemporaryDirectory(prefix="nri-recording-") as work, kind(Path(work), release=release) as runtime:
            record(runtime, RECORDINGS / f"{release.name}.jsonl")
    return 0


def record(runtime: Runtime, target: Path) -> None:
    """Has this runtime tell its story, and writes it."""
    socket = runtime.run / "tap.sock"
    header = {"runtime": runtime.cri.version(), "node": "eight", "alone": "mlx5_2", "shared": "mlx5_7"}
    place = _Place(run=runtime.run, work=runtime.work, nri_socket=socket)
    with Fabric(load("eight")) as node, Tap(socket, runtime.nri_socket) as tap:
        older = runtime.cri.run_pod("older")
        runtime.cri.run_container(older, "main")
        with Daemon(place, node) as daemon:
            _first_life(runtime)
            kept = runtime.cri.run_pod("kept", annotations={POD: SHARED})
            runtime.cri.run_container(kept, "main")
            runtime.restart()
            daemon.wait_synchronized(times=2)
            runtime.cri.run_container(kept, "late")
            _life(runtime, "second")
            runtime.cri.delete_pod(kept)
            runtime.cri.delete_pod(older)
        write_recording(target, header, tap.pieces)


def _first_life(runtime: Runtime) -> None:
    """A pod that asks for nothing, one that is refused, and one that gets a device alone."""
    _life(runtime, "plain", asks="")
    try:
        runtime.cri.run_pod("refused", annotations={POD: TOO_MUCH})
    except CriError:
        pass  # the recording has our answer
    else:
        raise AssertionError("a pod was to be refused")
    _life(runtime, "first")


def _life(runtime: Runtime, name: str, asks: str = ALONE) -> None:
    """Run, create, start, stop, remove, create again, and the end of the pod."""
    cri = runtime.cri
    pod = cri.run_pod(name, annotations={POD: asks} if asks else {})
    container = cri.run_container(pod, "main")
    cri.stop_container(container)
    cri.remove_container(container)
    cri.run_container(pod, "main")
    cri.delete_pod(pod)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
