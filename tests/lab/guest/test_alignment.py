"""On a node with eight roots, pods get the RDMA devices beside the GPUs that they name, or that a kubelet gave them."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.lab.guest import lspci, verbs
from tests.lab.guest.process import Server
from tests.lab.outcomes import OutcomeError
from tests.rig.cri import Container, Cri, Sandbox
from tests.rig.deadline import wait_until
from tests.rig.kubelet import FakeKubelet, Given

NAMING, GIVEN = (5, 2, 7, 0), (3, 6, 1, 4)
"""The GPUs of the pods in the order in which these come, which is not that of the devices: first pods that name theirs
on a node without a kubelet, then pods whose GPUs a kubelet tells."""
OPENING = (7, 3)
"""The pods in which a device is opened: one of each NUMA node."""
KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
STRICT = "mode: shared, align: {to: gpu, strict: true}"


@pytest.fixture(scope="session")
def kubelet() -> Iterator[FakeKubelet]:
    """Not there before the test that starts it; then to the end, since a daemon that has met one goes on asking it."""
    with FakeKubelet() as fake:
        fake.stop()
        yield fake


@pytest.mark.machine("eight")
def test_eight_pods_have_the_devices_below_the_switches_of_their_gpus_and_a_ninth_is_told_who_has_them(
    cri: Cri, daemon: Server, kubelet: FakeKubelet
) -> None:
    pairs = list(beside())
    assert [len({it[number] for it in pairs}) for number in range(2)] == [8, 8]
    with ExitStack() as pods:
        for number in NAMING:
            gpu, near = pairs[number]
            sandbox = pods.enter_context(pod(cri, f"job-{number}", f'mode: shared, gpus: ["{gpu}"]'))
            hold(cri, sandbox, near, opening=number in OPENING)
        start(kubelet)
        for number in GIVEN:
            gpu, near = pairs[number]
            kubelet.add_pod("default", f"job-{number}", Given(name="main", resources={"amd.com/gpu": (gpu,)}))
            hold(cri, run_insistently(cri, f"job-{number}", pods), near, opening=number in OPENING)
        with (
            pytest.raises(OutcomeError, match="DEVICES-EXHAUSTED: asked 1, free 0 of 8 devices") as refused,
            pod(cri, "ninth", "mode: exclusive"),
        ):
            pass
        for _gpu, near in pairs:
            assert f"{near} is held by another pod" in str(refused.value)


def pod(cri: Cri, name: str, asks: str) -> AbstractContextManager[Sandbox]:
    """Its own network is of no matter here, and takes longest under emulation."""
    return verbs.pod(cri, name, verbs.asks(asks), runtime_handler=verbs.NOWHERE)


def start(kubelet: FakeKubelet) -> None:
    """Where daemons look for one by default."""
    kubelet.start()
    KUBELET_SOCKET.parent.mkdir(parents=True, exist_ok=True)
    KUBELET_SOCKET.symlink_to(kubelet.socket)


def run_insistently(cri: Cri, name: str, pods: ExitStack) -> Sandbox:
    """A strict pod, asked for again while the kubelet is too late for it: the machine is emulated, 50 ms are little."""

    def run() -> Sandbox | None:
        try:
            return pods.enter_context(pod(cri, name, STRICT))
        except OutcomeError as error:
            if "(KUBELET-" not in str(error):
                raise
            return None

    return wait_until(run, f"pod {name} to run", seconds=30)


def hold(cri: Cri, sandbox: Sandbox, near: str, *, opening: bool) -> None:
    """A container of the pod has that device, and can open it."""
    container = verbs.create(cri, sandbox, "main")
    assert got(cri, container) == [near]
    if opening:
        cri.start(container)
        opened = cri.exec(container, ["ibv_devinfo", "-d", near])
        assert opened.exit_code == 0, opened.stderr
        assert re.search(rf"^hca_id:\s+{near}$", opened.stdout, re.MULTILINE)


def beside() -> Iterator[tuple[str, str]]:
    """The GPUs in lspci's order, each with the RDMA device below the same switch, by lspci and realpath."""
    node: dict[str, Any] = lspci.node()
    for gpu, (root, path, numa) in node["gpus"].items():
        (near,) = (it["name"] for it in node["devices"] if it["place"][0] == root and it["place"][1][:2] == path[:2])
        assert all(it["place"][2] == numa for it in node["devices"] if it["name"] == near)
        yield gpu, near


def got(cri: Cri, container: Container) -> list[str]:
    """The RDMA devices whose verbs nodes the runtime gives a container, by their numbers in its OCI configuration."""
    folders = Path("/sys/class/infiniband_verbs").glob("uverbs*")
    ibdevs = {(it / "dev").read_text().strip(): (it / "ibdev").read_text().strip() for it in folders}
    devices = cri.container_status(container).spec["linux"].get("devices", [])
    numbers = (f"{device['major']}:{device['minor']}" for device in devices)
    return [ibdevs[number] for number in numbers if number in ibdevs]
