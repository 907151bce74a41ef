"""Whatever is restarted or killed: no share is lost or given twice, and no container with a share starts bare."""

import time
from collections import Counter
from signal import SIGCONT, SIGSTOP

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, events, pod, runs, start
from tests.cluster.test_shares import CONFIG as SHARES
from tests.cluster.test_shares import A, allocatable, devices, sharing
from tests.rig.deadline import wait_until

CONFIG = SHARES
RETURN_S = 30.0
"""A container that had to wait for the daemon runs this soon after it is back."""


def given(cluster: Cluster, *names: str) -> Counter[str]:
    """How many pods have each HCA."""
    return Counter(found for name in names for found in devices(cluster, name) if found.startswith("uverbs"))


def restarts(cluster: Cluster, name: str) -> int:
    """How often the container of a pod was made again."""
    return int(cluster.get("pod", name)["status"]["containerStatuses"][0]["restartCount"])


@pytest.fixture(autouse=True)
def counted(cluster: Cluster) -> None:
    wait_until(lambda: allocatable(cluster, A) == "8", "the node's shares", 60)


def start_and_fill(cluster: Cluster, *names: str) -> None:
    """Start these pods, and see that with them each of the four HCAs has its two shares."""
    for name in names:
        start(cluster, sharing(name, a=1))


def test_the_kubelet_is_restarted(cluster: Cluster) -> None:
    start_and_fill(cluster, "k0", "k1", "k2")
    before = given(cluster, "k0", "k1", "k2")
    node = cluster.nodes["n1"]
    node.kill("kubelet")
    node.start_kubelet()
    wait_until(lambda: node.nri_rdma("status").count("k0") > 0, "status", 30)
    log = (node.machine.folder / "log/nri-rdma.log").read_text
    wait_until(lambda: log().count("registered with the kubelet") >= 4, "the registration with both kubelets", 30)
    wait_until(lambda: allocatable(cluster, A) == "8", "the node's shares", 30)
    assert given(cluster, "k0", "k1", "k2") == before
    rest = [f"k{number}" for number in range(3, 8)]
    start_and_fill(cluster, *rest)
    assert given(cluster, "k0", "k1", "k2", *rest) == {f"uverbs{number}": 2 for number in range(4)}
    assert {restarts(cluster, name) for name in ("k0", "k1", "k2")} == {0}
    for name in ("k0", "k1", "k2", *rest):
        delete(cluster, name)


def test_the_daemon_is_killed(cluster: Cluster) -> None:
    names = [f"d{number}" for number in range(8)]
    start_and_fill(cluster, *names[:4])
    node = cluster.nodes["n1"]
    node.kill("nri-rdma")
    node.start_daemon()
    wait_until(lambda: allocatable(cluster, A) == "8", "the node's shares", 30)
    start_and_fill(cluster, *names[4:])
    assert given(cluster, *names) == {f"uverbs{number}": 2 for number in range(4)}
    for name in names:
        delete(cluster, name)


def test_kubelet_and_daemon_are_killed_at_once(cluster: Cluster) -> None:
    names = [f"b{number}" for number in range(8)]
    start_and_fill(cluster, *names[:4])
    node = cluster.nodes["n1"]
    node.kill("kubelet")
    node.kill("nri-rdma")
    node.start_kubelet()
    node.start_daemon()
    wait_until(lambda: allocatable(cluster, A) == "8", "the node's shares", 60)
    start_and_fill(cluster, *names[4:])
    assert given(cluster, *names) == {f"uverbs{number}": 2 for number in range(4)}
    for name in names:
        delete(cluster, name)


def late(name: str) -> dict[str, object]:
    """A pod whose container with the share is created three seconds after the kubelet has allocated it."""
    first = {"name": "first", "image": "", "command": ["sleep", "3"]}
    asked = pod(name, containers=[{"resources": {"limits": {A: 1}}}])
    first["image"] = asked["spec"]["containers"][0]["image"]
    asked["spec"]["initContainers"] = [{**first, "imagePullPolicy": "Never"}]
    return asked


def initializing(cluster: Cluster, name: str) -> bool:
    """Whether the first container of such a pod runs."""
    statuses = cluster.get("pod", name)["status"].get("initContainerStatuses", [{}])
    return "running" in statuses[0].get("state", {})


def test_a_container_whose_daemon_died_after_the_allocation_waits_for_the_next_one(cluster: Cluster) -> None:
    cluster.kubectl("create", "-f", "-", given=late("waits"))
    cluster.wait("its first container", lambda: initializing(cluster, "waits"))
    node = cluster.nodes["n1"]
    node.kill("nri-rdma")
    wait_until(lambda: any("DAEMON-ABSENT" in it for it in events(cluster, "waits")), "the guard's refusal", 60)
    assert not runs(cluster, "waits")
    node.start_daemon()
    back = time.monotonic()
    cluster.wait("the container", lambda: runs(cluster, "waits"), RETURN_S)
    print(f"\nit runs {time.monotonic() - back:.1f} s after the daemon is back")
    assert len(devices(cluster, "waits")) == 2
    delete(cluster, "waits")


def test_a_container_whose_daemon_hangs_waits_until_it_goes_on(cluster: Cluster) -> None:
    cluster.kubectl("create", "-f", "-", given=late("hangs"))
    cluster.wait("its first container", lambda: initializing(cluster, "hangs"))
    daemon = cluster.nodes["n1"].machine.programs["nri-rdma"]
    daemon.send(SIGSTOP)
    try:
        wait_until(lambda: any("DAEMON-LATE" in it for it in events(cluster, "hangs")), "the guard's refusal", 60)
        assert not runs(cluster, "hangs")
    finally:
        daemon.send(SIGCONT)
    cluster.wait("the container", lambda: runs(cluster, "hangs"), RETURN_S)
    assert len(devices(cluster, "hangs")) == 2
    delete(cluster, "hangs")


def test_a_container_that_is_made_again_has_its_device_again_and_never_runs_without(cluster: Cluster) -> None:
    """The kubelet allocates nothing anew for it."""
    start(cluster, sharing("again", a=1))
    before = devices(cluster, "again")
    node = cluster.nodes["n1"]
    node.kill("nri-rdma")
    node.kill_container(cluster.get("pod", "again")["status"]["containerStatuses"][0]["containerID"])
    wait_until(lambda: any("DAEMON-ABSENT" in it for it in events(cluster, "again")), "the guard's refusal", 60)
    start(cluster, pod("plain"))
    delete(cluster, "plain")
    node.start_daemon()
    cluster.wait("the container", lambda: len(devices_if_any(cluster, "again")) == 2, RETURN_S)
    assert devices(cluster, "again") == before
    delete(cluster, "again")


def devices_if_any(cluster: Cluster, name: str) -> list[str]:
    """The same of a container that may not run."""
    listed = cluster.kubectl("exec", name, "-c", "c0", "--", "ls", "/dev/infiniband", fails=True)
    return listed.split() if "error" not in listed else []


def test_the_node_is_rebooted(cluster: Cluster) -> None:
    names = [f"r{number}" for number in range(4)]
    start_and_fill(cluster, *names)
    cluster.reboot("n1")
    wait_until(lambda: allocatable(cluster, A) == "8", "the node's shares", 60)
    for name in names:
        delete(cluster, name)
    names = [f"n{number}" for number in range(8)]
    start_and_fill(cluster, *names)
    assert given(cluster, *names) == {f"uverbs{number}": 2 for number in range(4)}
    for name in names:
        delete(cluster, name)


def test_the_api_server_is_away_for_a_minute(cluster: Cluster) -> None:
    names = [f"a{number}" for number in range(8)]
    start_and_fill(cluster, *names[:4])
    before = given(cluster, *names[:4])
    server = cluster.control.programs["kube-apiserver"]
    server.send(SIGSTOP)
    try:
        time.sleep(60)
    finally:
        server.send(SIGCONT)
    cluster.wait("the API server", lambda: cluster.kubectl("get", "--raw", "/readyz", fails=True) == "ok", 60)
    cluster.wait("the node", lambda: allocatable(cluster, A) == "8", 60)
    assert given(cluster, *names[:4]) == before
    assert {restarts(cluster, name) for name in names[:4]} == {0}
    cluster.kubectl("taint", "node", "n1", "node.kubernetes.io/unreachable-", fails=True)
    start_and_fill(cluster, *names[4:])
    assert given(cluster, *names) == {f"uverbs{number}": 2 for number in range(4)}
    for name in names:
        delete(cluster, name)
