"""Records what a commit's daemon leaves when it is killed: `python -m tests.recorded.record COMMIT`, as root.

The daemon is the one of the work tree, so this refuses where `nri_rdma` differs from the commit. COMMIT is also the
folder that gets the recording; `node.toml` and `cdi` are in it before. README.md says more.
"""

import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nri_rdma.ttrpc import RpcError
from tests.fakes.runtime import FakeRuntime
from tests.recorded.recording import FOLDER, Container, Pod, Recording
from tests.recorded.serving import RUNTIME, WorldsDaemon, states_in, write_specs
from tests.recorded.world import FIRST_IFINDEX, World, links_of, make_world
from tests.rig.daemon import PROJECT
from tests.rig.deadline import wait_until
from tests.rig.faults import Faults

MAIN = (Container(name="main"),)
EXCLUSIVE = """
- {name: near, match: {device: mlx5_0}, mode: exclusive, gpus: ["0000:18:00.0"], align: gpu, containers: [trainer],
   interface: {name: fab0, mtu: 4200, addresses: [10.77.0.1/24, "fd00:77::1/64"]}, memlock: 65536}
- {name: far, match: {device: mlx5_1}, mode: exclusive}
"""


def _asking(name: str, asks: str, *, eth0: int = 2, containers: tuple[Container, ...] = MAIN) -> Pod:
    return Pod(name=name, eth0=eth0, annotations={"rdma.noderesource.dev/pod": asks.strip()}, containers=containers)


def _alone(*numbers: int) -> str:
    return "\n".join(f"- {{match: {{device: mlx5_{number}}}, mode: exclusive}}" for number in numbers)


def _claiming(name: str, claim: str, *containers: str) -> Pod:
    devices = (f"dra.example.com/nic={claim}",)
    made = tuple(Container(name=container, cdi_devices=devices) for container in containers)
    return Pod(name=name, eth0=2, annotations={}, containers=made)


PODS = (
    # Its own link has the number that rail0 has on the host, so rail0 gets another one in the pod.
    _asking("exclusive", EXCLUSIVE, eth0=FIRST_IFINDEX, containers=(Container(name="trainer"), Container(name="side"))),
    _asking("shared", "- {match: {device: mlx5_2}, mode: shared}"),
    _asking("hostnet", "- {match: {device: mlx5_2}, mode: shared}", eth0=0),
    _asking("planned", _alone(3)),
    _asking("half", _alone(4, 5)),
    _asking("returning", _alone(6, 7)),
    _claiming("late", "claim-8", "trainer", "helper"),
    _claiming("late-half", "claim-9", "trainer"),
)
HELD = {
    "sandbox-planned": "after write-journal sandbox-planned",
    "sandbox-half": "after move-netdev mlx5_4",
    "sandbox-returning": "after undo move-netdev mlx5_7",
    "sandbox-late-half+trainer": "after move-netdev mlx5_9",
}
"""Where the daemon is held, by the attach that is."""
_ATTEMPTS = 5
"""How often a container is made; that of an attach that is held is never made, and waits 0.2 s each time."""
STATES = {
    "sandbox-exclusive": "attached",
    "sandbox-shared": "attached",
    "sandbox-hostnet": "attached",
    "sandbox-planned": "planned",
    "sandbox-half": "attaching",
    "sandbox-returning": "returning",
    "sandbox-late+trainer": "attached",
    "sandbox-late-half+trainer": "attaching",
}


def main(commit: str) -> int:
    """Record that commit."""
    if subprocess.run(["git", "diff", "--quiet", commit, "--", "nri_rdma"], cwd=PROJECT, check=False).returncode != 0:
        print(f"nri_rdma is not that of {commit}. Next: record in a work tree of that commit.", file=sys.stderr)
        return 1
    recording = Recording.blank(FOLDER / commit, PODS)
    with make_world(recording.node) as world:
        write_specs(world, recording.cdi)
        with FakeRuntime(world.nri_socket, version=RUNTIME) as runtime:
            _record(recording, world, runtime).write(FOLDER / commit)
    return 0


def _record(recording: Recording, world: World, runtime: FakeRuntime) -> Recording:
    faults = Faults(world.run / "faults")
    faults.plant(*(f"{place}=pause" for place in HELD.values()))
    daemon = WorldsDaemon(world, runtime, faults=faults)
    daemon.start()
    netns = {pod.name: world.add_pod(pod.name, pod.eth0) for pod in recording.pods if pod.eth0}
    for pod in recording.pods:
        _tell(runtime, world, pod, netns.get(pod.name))
    try:
        wait_until(lambda: states_in(daemon.records()) == STATES, "the attaches to have come so far")
        wait_until(lambda: set(HELD.values()) <= set(faults.places(daemon.pid)), "the daemon to be held everywhere")
    finally:
        daemon.kill()
    pods = tuple(replace(it, links=links_of(netns[it.name]) if it.name in netns else ()) for it in recording.pods)
    return replace(recording, host=links_of(world.host), pods=pods, journal=daemon.records())


def _tell(runtime: FakeRuntime, world: World, pod: Pod, netns: Path | None) -> None:
    """Start the pod and make its containers; the one that is to return is stopped."""
    message = pod.message(netns, 0 if netns is not None else world.add_process())
    runtime.run_pod_sandbox(message)
    for container in pod.containers:
        for _ in range(_ATTEMPTS):
            with suppress(RpcError):  # network is not ready: the kubelet makes the container again
                runtime.create_container(message, pod.container_message(container))
                break
    if pod.name == "returning":
        runtime.stop_pod_sandbox(message)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
