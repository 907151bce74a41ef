"""Containers with a CDI device that somebody else prepared, on real runtimes: a spec in the runtime's own directory, as
a DRA driver writes it, and a kubelet that tells of it, or none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.daemon import EXCLUSIVE_FIRST, MEMLOCK, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import described_mac, host_link, look, tree_number
from tests.rig.fabric import Fabric
from tests.rig.kubelet import PATIENT, Claim, Claimed, FakeKubelet, Given, Mode
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

KEY = "rdma.noderesource.dev"
OURS, FOREIGN = "dra.example.com/nic", "sriovnetwork.k8snetworkplumbingwg.io/vf"
TELLS_NAMES = ("containerd-2.3", "containerd-2.4")
READS_1_1 = ("containerd-2.2", "containerd-2.3", "containerd-2.4")
MOVE = "{mode: exclusive, interface: {name: fab0, mtu: 4200}}"


class Driver:
    """A DRA driver, as far as a node sees it: it writes a spec for each claim, and removes it."""

    def __init__(self, folder: Path, node: Fabric) -> None:
        self._folder = folder
        self._node = node

    def prepare(self, name: str, nic: int, keys: str = "", env: tuple[str, ...] = (), **edits: Any) -> str:
        """A CDI device for the node's NIC of that number; its qualified name. `keys` is what stands under ours."""
        kind, _, device = name.partition("=")
        nodes = [self._node_of(f"uverbs{nic}"), self._node_of("rdma_cm")]
        item: dict[str, Any] = {"name": device, "containerEdits": {"deviceNodes": nodes, **edits}}
        if env:
            item["containerEdits"]["env"] = list(env)
        spec: dict[str, Any] = {
            "cdiVersion": "1.1.0" if "netDevices" in edits else "0.6.0",
            "kind": kind,
            "devices": [item],
        }
        if keys:
            item["annotations"] = {KEY: keys}
        path = self._folder / f"{kind.replace('/', '-')}_{device}.json"
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(spec))
        beside.rename(path)
        return name

    def unprepare(self) -> None:
        """No spec is left."""
        for path in self._folder.iterdir():
            path.unlink()

    def _node_of(self, name: str) -> dict[str, Any]:
        major, minor = map(int, tree_number(self._node, name).split(":"))
        return {"path": f"/dev/infiniband/{name}", "type": "c", "major": major, "minor": minor, "permissions": "rw"}


@pytest.fixture
def driver(runtime: Runtime, node: Fabric) -> Iterator[Driver]:
    made = Driver(runtime.cdi_dir, node)
    yield made
    made.unprepare()


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with FakeKubelet() as running:
        yield running


@pytest.fixture
def told(runtime: Runtime, node: Fabric, kubelet: FakeKubelet) -> Iterator[Daemon]:
    """A daemon that a kubelet tells what it allocates, and whose log says of every reading of the specs."""
    extra = (*EXCLUSIVE_FIRST, *PATIENT, "--log-level", "debug")
    with Daemon(runtime, node, kubelet=kubelet.socket, extra=extra) as running:
        wait_until(
            lambda: "kubelet reports" in running.log, lambda: f"the kubelet to be asked; its log:\n{running.log}", 10
        )
        yield running


def allocate(kubelet: FakeKubelet, pod: str, container: str, *names: str) -> None:
    device = Claimed(driver="dra.example.com", pool="node", device="nic-2", cdi=names)
    claim = Claim(namespace="default", name="nics", devices=(device,))
    kubelet.add_pod("default", pod, Given(name=container, claims=(claim,)), Given(name="sidecar"))


def wait_read(daemon: Daemon, devices: int) -> None:
    """Wait until the daemon knows that many CDI devices: it asks the kubelet only if a known spec concerns us.

    Reading a spec takes 20 to 200 ms, CRI-O calls the daemon 60 ms after it was asked for the pod; a spec that is read
    later is attached when the container is created, without any question to the kubelet."""
    read = f"CDI specs were read devices={devices} "
    wait_until(lambda: read in daemon.log, lambda: f"{devices} devices to be read; its log:\n{daemon.log}")


def run(cri: Cri, pod: Sandbox, name: str, *devices: str) -> Container:
    container = cri.create_container(pod, name, cdi_devices=devices)
    cri.start(container)
    return container


def sightings(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.status()["from_others"]
    return found


def test_its_netdev_moves_when_the_container_is_made_and_comes_home(
    host_equal: None, node: Fabric, cri: Cri, daemon: Daemon, driver: Driver
) -> None:
    name = driver.prepare(f"{OURS}=claim-a", 2, MOVE, env=("CLAIM=a",))
    pod = cri.run_pod("late")
    assert host_link("rail2") is not None
    seen = look(cri, run(cri, pod, "trainer", name))
    assert host_link("rail2") is None
    assert (seen.macs["fab0"], seen.mtus["fab0"]) == (described_mac(node, "rail2"), 4200)
    assert seen.nodes == {key: tree_number(node, key) for key in ("uverbs2", "rdma_cm")}
    assert (seen.env["CLAIM"], seen.env["NCCL_IB_HCA"]) == ("a", "=mlx5_2")
    assert seen.env["RDMA_NETDEVS_CLAIM_A"] == "fab0"
    assert seen.memlock_kib == str(MEMLOCK // 1024)
    beside = look(cri, cri.run_container(pod, "sidecar"))
    assert (beside.nodes, "NCCL_IB_HCA" in beside.env) == ({}, False)
    (sighting,) = sightings(daemon)
    assert (sighting["container"], sighting["what"], sighting["devices"]) == ("trainer", name, ["mlx5_2"])
    assert sighting["adopt"] == "its own keys"
    cri.delete_pod(pod)
    daemon.wait_given_back()
    assert sightings(daemon) == []


def test_what_the_kubelet_tells_is_there_before_any_container(
    host_equal: None, node: Fabric, cri: Cri, told: Daemon, kubelet: FakeKubelet, driver: Driver
) -> None:
    name = driver.prepare(f"{OURS}=claim-b", 2, MOVE)
    allocate(kubelet, "early", "trainer", name)
    wait_read(told, 1)
    pod = cri.run_pod("early")
    wait_until(lambda: host_link("rail2") is None, "the netdev to be in the pod")
    seen = look(cri, run(cri, pod, "trainer", name))
    assert seen.macs["fab0"] == described_mac(node, "rail2")
    assert seen.env["NCCL_IB_HCA"] == "=mlx5_2"
    assert "NCCL_IB_HCA" not in look(cri, cri.run_container(pod, "sidecar")).env
    assert sightings(told)[0]["source"] == "kubelet"
    cri.delete_pod(pod)


def test_containers_that_share_a_claim_have_the_nodes_of_their_own_requests(
    host_equal: None, node: Fabric, cri: Cri, told: Daemon, kubelet: FakeKubelet, driver: Driver
) -> None:
    """The kubelet lists each container with the whole claim; CRI's CDI devices are those of its request."""
    names = [driver.prepare(f"{OURS}=claim-s{nic}", nic, "{mode: exclusive}") for nic in (2, 3)]
    nics = [
        Claimed(driver="dra.example.com", pool="node", device=f"nic-{nic}", cdi=(name,))
        for nic, name in zip((2, 3), names, strict=True)
    ]
    claim = Claim(namespace="default", name="both", devices=tuple(nics))
    kubelet.add_pod("default", "shares", *(Given(name=name, claims=(claim,)) for name in ("one", "two", "none")))
    wait_read(told, 2)
    pod = cri.run_pod("shares")
    one, two = look(cri, run(cri, pod, "one", names[0])), look(cri, run(cri, pod, "two", names[1]))
    assert (set(one.nodes), one.env["NCCL_IB_HCA"]) == ({"uverbs2", "rdma_cm"}, "=mlx5_2")
    assert (set(two.nodes), two.env["NCCL_IB_HCA"]) == ({"uverbs3", "rdma_cm"}, "=mlx5_3")
    bare = look(cri, cri.run_container(pod, "none"))
    assert (bare.nodes, "NCCL_IB_HCA" in bare.env) == ({}, False)
    assert set(one.macs) >= {"rdma0", "rdma1"}
    given = {(it["container"], *it["devices"]) for it in sightings(told)}
    assert given == {("one", "mlx5_2"), ("two", "mlx5_3")}
    cri.delete_pod(pod)


def test_a_kubelet_that_hangs_costs_the_pod_nothing_but_time(
    host_equal: None, node: Fabric, cri: Cri, told: Daemon, kubelet: FakeKubelet, driver: Driver
) -> None:
    name = driver.prepare(f"{OURS}=claim-c", 2, MOVE)
    allocate(kubelet, "hung", "trainer", name)
    wait_read(told, 1)
    kubelet.mode = Mode.HANGS
    pod = cri.run_pod("hung")
    assert host_link("rail2") is not None
    assert look(cri, run(cri, pod, "trainer", name)).macs["fab0"] == described_mac(node, "rail2")
    assert "KUBELET-LATE" in told.log
    cri.delete_pod(pod)


def test_a_container_that_is_made_again_has_its_device_again(
    host_equal: None, node: Fabric, cri: Cri, daemon: Daemon, driver: Driver
) -> None:
    name = driver.prepare(f"{OURS}=claim-d", 2, MOVE)
    pod = cri.run_pod("again")
    first = run(cri, pod, "trainer", name)
    before = look(cri, first)
    cri.stop_container(first)
    cri.remove_container(first)
    daemon.kill()
    daemon.start()
    after = look(cri, run(cri, pod, "trainer", name))
    assert (after.macs, after.nodes, after.env["NCCL_IB_HCA"]) == (before.macs, before.nodes, "=mlx5_2")
    cri.delete_pod(pod)


@pytest.mark.usefixtures("daemon")
def test_specs_that_are_written_just_before_their_containers_are_made_are_heeded(
    host_equal: None, cri: Cri, driver: Driver
) -> None:
    pod = cri.run_pod("moments")
    for nic in range(4):
        name = driver.prepare(f"{OURS}=moment-{nic}", nic, "{mode: shared}")
        seen = look(cri, run(cri, pod, f"trainer-{nic}", name))
        assert seen.env.get("NCCL_IB_HCA") == f"=mlx5_{nic}"
    cri.delete_pod(pod)


@pytest.mark.usefixtures("daemon")
def test_a_spec_that_asks_what_cannot_be_given_refuses_its_container(
    host_equal: None, cri: Cri, driver: Driver
) -> None:
    name = driver.prepare(f"{OURS}=claim-e", 2, "{mode: exclusive, limits: {hcaHandles: 4}}")  # cgroup v1
    pod = cri.run_pod("limits")
    with pytest.raises(CriError, match=r"nri-rdma: LIMITS-UNSUPPORTED: .*dra.example.com/nic=claim-e"):
        cri.create_container(pod, "trainer", cdi_devices=[name])
    assert host_link("rail2") is not None
    cri.delete_pod(pod)


@pytest.mark.usefixtures("daemon")
def test_netdevices_of_cdi_1_1_move_under_their_names_and_come_home(
    host_equal: None, node: Fabric, cri: Cri, runtime: Runtime, driver: Driver
) -> None:
    if runtime.release.name not in READS_1_1:
        pytest.skip(f"{runtime.release.name} reads no CDI 1.1; containerd 2.3 does")
    name = driver.prepare(f"{OURS}=claim-f", 2, netDevices=[{"hostInterfaceName": "rail2", "name": "fabric0"}])
    pod = cri.run_pod("netdevices")
    container = run(cri, pod, "trainer", name)
    assert look(cri, container).macs["fabric0"] == described_mac(node, "rail2")
    assert "rail2" not in cri.container_status(container).spec["linux"].get("netDevices", {})
    assert "fabric0" in look(cri, run(cri, pod, "helper", name)).macs
    cri.delete_pod(pod)


def test_others_are_observed_and_unchanged(
    host_equal: None, node: Fabric, cri: Cri, daemon: Daemon, driver: Driver
) -> None:
    name = driver.prepare(
        f"{FOREIGN}=0000-41-00-0",
        2,
        env=("SRIOVNETWORK_PCI_ADDRESSES=0000:41:00.0", "SRIOVNETWORK_VF_RDMA_UVERB=uverbs2"),
    )
    pod = cri.run_pod("foreign")
    seen = look(cri, run(cri, pod, "main", name))
    assert seen.nodes["uverbs2"] == tree_number(node, "uverbs2")
    assert not any(key.startswith(("NCCL", "UCX", "RDMA")) for key in seen.env)
    (sighting,) = sightings(daemon)
    assert (sighting["what"], sighting["adopt"]) == (name, "observe")
    cri.delete_pod(pod)


def with_adopt(tmp_path: Path, mode: str) -> tuple[str, ...]:
    path = tmp_path / "adopt.toml"
    path.write_text(f'[adopt.vendors."{FOREIGN.partition("/")[0]}"]\nmode = "{mode}"\nmemlock = 4194304\n')
    return ("--allow-default-pool", "--config", str(path))


def test_complete_adds_environment_and_memlock(
    host_equal: None, node: Fabric, cri: Cri, runtime: Runtime, driver: Driver, tmp_path: Path
) -> None:
    name = driver.prepare(f"{FOREIGN}=0000-41-00-0", 2)
    with Daemon(runtime, node, extra=with_adopt(tmp_path, "complete")):
        pod = cri.run_pod("complete")
        seen = look(cri, run(cri, pod, "main", name))
        assert seen.env["NCCL_IB_HCA"] == "=mlx5_2"
        assert seen.memlock_kib == "4096"
        assert seen.nodes == {key: tree_number(node, key) for key in ("uverbs2", "rdma_cm")}
        assert host_link("rail2") is not None
        cri.delete_pod(pod)


def test_enforce_refuses_who_has_the_nodes_and_no_claim(
    host_equal: None,
    node: Fabric,
    cri: Cri,
    runtime: Runtime,
    kubelet: FakeKubelet,
    driver: Driver,
    tmp_path: Path,
) -> None:
    name = driver.prepare(f"{FOREIGN}=0000-41-00-0", 2)
    allocate(kubelet, "enforce", "main", name)
    with Daemon(runtime, node, extra=(*with_adopt(tmp_path, "enforce"), *PATIENT), kubelet=kubelet.socket) as daemon:
        wait_until(lambda: "the kubelet reports" in daemon.log, "the kubelet to be asked")
        pod = cri.run_pod("enforce")
        assert look(cri, run(cri, pod, "main", name)).env["NCCL_IB_HCA"] == "=mlx5_2"
        if runtime.release.name not in TELLS_NAMES:  # where the runtime names it, somebody has asked for it by its name
            with pytest.raises(CriError, match=r"nri-rdma: NOT-ALLOCATED: .*mlx5_2"):
                cri.create_container(pod, "thief", cdi_devices=[name])
        cri.delete_pod(pod)
