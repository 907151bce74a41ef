"""Pods come and go while daemon, runtime and shims are killed at random: afterwards every device is home.

Each pod has an RDMA device alone, which the product moves (see test_exclusive.py). `--fault-seconds 120` after the `--`
of the lab's command line is the long run.
"""

import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.control import ask_status
from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.deadline import DeadlineError, wait_until

SIDE_BY_SIDE = 3
PAUSE_S = (5.0, 15.0)
"""Between two kills; an emulated machine beside another one needs that long to start a daemon, and half as long for a
pod."""
STATE = Path("/run/nri-rdma")
NAMED_NAMESPACES = Path("/run/netns")
LONG_S, LONG_ATTACHES, SHORT_ATTACHES = 120, 30, 3
PATIENCE_S = 240
"""A machine that has not attached as many by its time goes on for so long."""
OPEN = 'for node in /dev/infiniband/uverbs*; do [ -c "$node" ] && exec 3<>"$node" || exit 1; done'
"""In a container: what it has can be opened, and it has one."""
_COMMAND = 200  # characters of a command line that are enough to know it


@pytest.fixture(scope="module", autouse=True)
def exclusive(cri: Cri, daemon: Server, rdma_device: str) -> Iterator[None]:
    """The driver that can move, and a kernel that shows each device in one namespace only."""
    with kernel.labs_rxe(rdma_device), kernel.rdma_netns("exclusive"):
        yield


@pytest.mark.outcome("exclusive-twenty")
def test_every_device_is_home_whatever_was_killed(
    cri: Cri, containerd: Server, daemon: Server, pytestconfig: pytest.Config
) -> None:
    seconds = float(pytestconfig.getoption("--fault-seconds"))
    seed = int(os.environ.get("NRI_RDMA_FAULT_SEED", random.SystemRandom().randrange(1 << 32)))
    choose = random.Random(seed)
    before = kernel.NodeState.take()
    wanted = LONG_ATTACHES if seconds >= LONG_S else SHORT_ATTACHES
    begun = time.monotonic()
    pods = Pods(cri, begun + seconds, wanted)
    kills = kill_at_random(pods, {"containerd": containerd, "nri-rdma": daemon}, choose)
    pods.finish()
    print(
        f"{pods.attached} attaches done in {time.monotonic() - begun:.0f} s, {pods.failed} pods failed, "
        f"killed: {dict(kills)}, seed {seed}"
    )
    wait_until(lambda: _delete_all(cri), "the runtime to have no pods", seconds=60)
    print(f"left by the runtime: {end_orphans() or 'nothing'}")
    with suppress(DeadlineError):
        wait_until(lambda: not before.differences_to(kernel.NodeState.take()), "the node to settle", seconds=60)
    assert before.differences_to(kernel.NodeState.take()) == []
    wait_until(_holds_nothing, "the daemon to hold no sandbox", seconds=30)
    assert ask_status(STATE / "control.sock")["namespaces_held"] == 0
    assert list((STATE / "journal").iterdir()) == []
    assert kills
    assert pods.attached >= wanted


class Pods:
    """Some side by side, one after the other, until a moment of `time.monotonic`, and until so many were attached."""

    def __init__(self, cri: Cri, until: float, wanted: int) -> None:
        self._cri = cri
        self.until = until
        self._wanted = wanted
        self.attached = 0
        self.failed = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="pod")
        self._lanes = [self._threads.submit(self._lane, lane) for lane in range(SIDE_BY_SIDE)]

    @property
    def is_over(self) -> bool:
        """Whether no more pods come."""
        now = time.monotonic()
        return now >= self.until and (self.attached >= self._wanted or now >= self.until + PATIENCE_S)

    def finish(self) -> None:
        """Waits for the last ones. Raises what a lane raised."""
        self._threads.shutdown()
        for lane in self._lanes:
            lane.result()

    def _lane(self, lane: int) -> None:
        number = 0
        while not self.is_over:
            number += 1
            is_attached = self._one(f"rxe1-lane{lane}.{number}")
            with self._lock:
                self.attached += is_attached
                self.failed += not is_attached

    def _one(self, name: str) -> bool:
        """From nothing to nothing; whether its container could open its device meanwhile."""
        uid = str(uuid.uuid4())
        text = f"- {{mode: exclusive, match: {{device: {name}.0}}}}"
        try:
            annotations = {f"{verbs.PREFIX}/pod": text}
            pod = self._cri.run_pod(name, annotations=annotations, uid=uid, runtime_handler=verbs.NOWHERE)
            container = self._cri.create_container(pod, "main", image=WORKLOAD)
            self._cri.start(container)
            opened = self._cri.exec(container, ["sh", "-c", OPEN])
        except CriError as error:
            print(f"{name}: {error}"[:300])
            return False
        else:
            if opened.exit_code != 0:
                print(f"{name}: no device that opens: {opened.stderr}")
            return opened.exit_code == 0
        finally:
            wait_until(lambda: _delete(self._cri, uid), f"{name} to be deleted", seconds=60)


def kill_at_random(pods: Pods, servers: dict[str, Server], choose: random.Random) -> Counter[str]:
    """SIGKILL to one or the other, which is started again, until the pods end; how often each."""
    killed: Counter[str] = Counter()
    while time.monotonic() + PAUSE_S[1] < pods.until:
        time.sleep(choose.uniform(*PAUSE_S))  # the faults come at random times, and nothing is awaited
        what = choose.choice(["containerd", "nri-rdma", "nri-rdma", "shim"])
        if what == "shim":
            killed[what] += kill_a_shim(choose)
        else:
            servers[what].kill_and_start()
            killed[what] += 1
    return killed


def kill_a_shim(choose: random.Random) -> int:
    """1, or 0 when there is none."""
    shims = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended while we read the list
            if b"containerd-shim" in (folder / "cmdline").read_bytes().split(b"\0")[0]:
                shims.append(int(folder.name))
    if not shims:
        return 0
    with suppress(ProcessLookupError):
        os.kill(choose.choice(sorted(shims)), signal.SIGKILL)
    return 1


def end_orphans() -> list[str]:
    """Ends what a killed runtime left of pods that it no longer knows, once there are no pods; what that was.

    A shim that is killed while it has a container created leaves that container's first process, a containerd between
    making a namespace and writing it down leaves the namespace. No one looks for them again, and the kernel's rdmaNetns
    cannot be changed meanwhile.
    """
    own = Path("/proc/self/ns/net").stat().st_ino
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if (folder / "ns/net").stat().st_ino != own:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                os.kill(int(folder.name), signal.SIGKILL)
                left.append(f"process {command[:_COMMAND]}")
    for path in NAMED_NAMESPACES.iterdir() if NAMED_NAMESPACES.exists() else ():
        subprocess.run(["ip", "netns", "delete", path.name], check=True)
        left.append(f"namespace {path.name}")
    return left


def _holds_nothing() -> bool:
    """What the daemon says of sandboxes. One that has just been started again has no socket yet."""
    with suppress(ConnectionRefusedError, FileNotFoundError):
        return bool(ask_status(STATE / "control.sock")["sandboxes"] == [])
    return False


def _delete(cri: Cri, uid: str) -> bool:
    return _again(lambda: [pod for pod in cri.pods() if pod.uid == uid], cri)


def _delete_all(cri: Cri) -> bool:
    return _again(lambda: list(cri.pods()), cri)


def _again(pods: Callable[[], list[Sandbox]], cri: Cri) -> bool:
    """Deletes them; whether there are none. A runtime that is dead just now is asked again."""
    try:
        for pod in pods():
            cri.delete_pod(pod)
        return not pods()
    except CriError:
        return False
