"""Limits that the kernel enforces: the rdma cgroup's, and RLIMIT_MEMLOCK."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import STATE
from tests.lab.guest.process import Server
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.control import ask_status
from tests.rig.cri import Container, Cri, CriError
from tests.rig.deadline import wait_until

HALF_GIB = 512 << 20
NOBODY = 65534
SECOND = "rxe9"
LIMITS = {"hcaHandles": 2, "hcaObjects": 4}, {"hcaHandles": 3, "hcaObjects": 6}


@pytest.fixture
def second_device(daemon: Server, rdma_device: str) -> Iterator[str]:
    """A second RDMA device of the host, that the daemon knows as long as it is there."""
    with another_device(rdma_device) as name:
        yield name


@contextmanager
def another_device(rdma_device: str, state: Path = STATE) -> Iterator[str]:
    """An RDMA device beside that one, for the daemon with that state."""
    subprocess.run(["ip", "link", "add", "second", "type", "veth", "peer", "name", "second-peer"], check=True)
    for name in ("second", "second-peer"):
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
    kernel.rdma("link", "add", SECOND, "type", "rxe", "netdev", "second")
    wait_until(lambda: {it["state"] for it in kernel.rdma_links()} == {"ACTIVE"}, "both ports to be up", seconds=30)
    await_known({rdma_device, SECOND}, state)
    try:
        yield SECOND
    finally:
        kernel.rdma("link", "delete", SECOND)
        subprocess.run(["ip", "link", "delete", "second"], check=True)
        await_known({rdma_device}, state)


def await_known(devices: set[str], state: Path) -> None:
    """Until the daemon, which hears of it from the kernel, knows these devices."""
    wait_until(lambda: {it["name"] for it in status(state)["devices"]} == devices, f"it to know {devices}", seconds=60)


def asks_for_both(devices: tuple[str, str]) -> dict[str, str]:
    """A request per device, each with limits of its own."""
    requests = [
        {"mode": "shared", "match": {"device": device}, "limits": limits}
        for device, limits in zip(devices, LIMITS, strict=True)
    ]
    return {f"{verbs.PREFIX}/pod": json.dumps(requests)}


@pytest.mark.outcome("rdma-limits")
def test_a_container_at_its_limit_gets_no_object_more_while_its_neighbour_does(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    keep_sixteen = ["sh", "-c", f"exec verbs-probe objects {rdma_device} 16 >/tmp/got"]
    limit = verbs.asks("mode: shared, limits: {hcaObjects: 4}")
    with (
        verbs.pod(cri, "limited", limit) as limited_pod,
        verbs.pod(cri, "free", verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}")) as free_pod,
    ):
        limited = verbs.start(cri, limited_pod, "main", keep_sixteen)
        assert _got(cri, limited) == "4 EAGAIN"
        in_use = kernel.cgroup_file(cri.container_status(limited).pid, "rdma.current")
        assert in_use == f"{rdma_device} hca_handle=1 hca_object=4"
        neighbour = verbs.start(cri, free_pod, "main", keep_sixteen)
        assert _got(cri, neighbour) == "16 OK"


def test_a_pod_with_the_charts_mounts_reads_and_writes_the_hosts_cgroups(cri: Cri) -> None:
    assert_cgroups_of_the_host(cri)


def assert_cgroups_of_the_host(cri: Cri) -> None:
    """The daemon's pod mounts /sys read-only (deploy/helm) and has a cgroup namespace of its own."""
    with verbs.pod(cri, "chart", {}) as sandbox:
        container = cri.create_container(sandbox, "daemon", mounts={"/sys": "/sys"}, read_only=True)
        cri.start(container)
        seen = cri.exec(container, ["ls", "/sys/fs/cgroup"]).stdout.split()
        assert set(seen) == {path.name for path in Path("/sys/fs/cgroup").iterdir()}
        enable = "echo +rdma >/sys/fs/cgroup/cgroup.subtree_control"
        assert cri.exec(container, ["sh", "-c", enable]).exit_code == 0


@pytest.mark.outcome("rdma-limits-two")
def test_a_container_with_two_devices_has_the_limits_of_both_before_it_runs(
    cri: Cri, rdma_device: str, second_device: str
) -> None:
    devices = (rdma_device, second_device)
    fill = " & ".join(f"verbs-probe objects {device} 16 >/tmp/{device}" for device in devices)
    look_and_fill = ["sh", "-c", f"cat /sys/fs/cgroup/rdma.max >/tmp/look; {fill} & wait"]
    with verbs.pod(cri, "both", asks_for_both(devices)) as sandbox:
        container = verbs.start(cri, sandbox, "main", look_and_fill)
        pid = cri.container_status(container).pid
        limited = [f"{rdma_device} hca_handle=2 hca_object=4", f"{second_device} hca_handle=3 hca_object=6"]
        assert lines(kernel.cgroup_file(pid, "rdma.max")) == limited
        assert lines(_got(cri, container, "/tmp/look")) == limited
        assert [_got(cri, container, f"/tmp/{device}") for device in devices] == ["4 EAGAIN", "6 EAGAIN"]
        in_use = [f"{rdma_device} hca_handle=1 hca_object=4", f"{second_device} hca_handle=1 hca_object=6"]
        assert lines(kernel.cgroup_file(pid, "rdma.current")) == in_use
        assert status_rows(sandbox.id) == rows_of(sandbox.id, "main", pid)
    assert status_rows(sandbox.id) == []


@pytest.mark.outcome("rdma-limits-refused")
def test_a_container_that_cannot_be_limited_does_not_start(cri: Cri, rdma_device: str, second_device: str) -> None:
    with verbs.pod(cri, "without", asks_for_both((rdma_device, second_device))) as sandbox:
        container = verbs.create(cri, sandbox, "main")
        kernel.rdma("link", "delete", second_device)
        try:
            with pytest.raises(CriError, match=f"LIMITS-NOT-SET: {second_device} cannot be limited: No such device"):
                cri.start(container)
        finally:
            kernel.rdma("link", "add", second_device, "type", "rxe", "netdev", "second")
        assert cri.container_status(container).state != "running"
        assert status_rows(sandbox.id) == []


@pytest.mark.outcome("memlock")
def test_a_user_without_privileges_registers_512_mib_only_in_the_pod_that_asked(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    register = ["verbs-probe", "register", rdma_device, str(HALF_GIB)]
    with verbs.pod(cri, "memlock", verbs.asks("mode: shared")) as sandbox:
        asked = verbs.start(cri, sandbox, "asked", user=NOBODY)
        shown = cri.exec(asked, register, seconds=60)
        assert shown.stdout.strip() == f"{HALF_GIB} OK"
    with verbs.pod(cri, "plain", {}) as sandbox:
        # The same device, handed to the runtime by somebody else.
        plain = cri.create_container(sandbox, "plain", image=WORKLOAD, user=NOBODY, devices=["/dev/infiniband/uverbs0"])
        cri.start(plain)
        assert cri.exec(plain, register, seconds=60).stdout.strip() == "0 ENOMEM"
        little = cri.exec(plain, ["verbs-probe", "register", rdma_device, "65536"], seconds=60)
        assert little.stdout.strip() == "65536 OK", "the refusal is not the limit's"


@pytest.mark.outcome("limited-device-removed")
def test_the_device_can_be_removed_when_a_container_with_limits_is_gone(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    sandbox = cri.run_pod("limited-to-its-end", annotations=verbs.asks("mode: shared, limits: {hcaObjects: 4}"))
    verbs.start(cri, sandbox, "main")
    cri.delete_pod(sandbox)
    with verbs.pod(cri, "next", verbs.asks("mode: shared")):
        pass  # by the end of it, the kernel has freed the cgroup
    netdev = kernel.netdev_of(rdma_device)
    kernel.rdma("link", "delete", rdma_device)
    kernel.rdma("link", "add", rdma_device, "type", "rxe", "netdev", netdev)
    wait_until(lambda: [it["state"] for it in kernel.rdma_links()] == ["ACTIVE"], "an active port", seconds=30)


def status(state: Path = STATE) -> dict[str, Any]:
    """What the daemon tells `nri-rdma status`, without the three seconds that the command takes to start here."""
    return ask_status(state / "control.sock")


def status_rows(sandbox_id: str) -> list[dict[str, object]]:
    """What it says that containers of a sandbox use."""
    return [row for row in status()["rdma_use"] if row["sandbox"] == sandbox_id]


def rows_of(sandbox_id: str, container: str, pid: int) -> list[dict[str, object]]:
    """The same, from the files of the process's cgroup."""
    limits, used = (
        {device: dict(word.split("=") for word in words) for device, *words in map(str.split, lines(text))}
        for text in (kernel.cgroup_file(pid, "rdma.max"), kernel.cgroup_file(pid, "rdma.current"))
    )
    return [
        {
            "pod": "default/both",
            "sandbox": sandbox_id,
            "container": container,
            "device": device,
            **{key: {"used": int(used[device][key]), "limit": int(limit)} for key, limit in limits[device].items()},
        }
        for device in limits
    ]


def lines(text: str) -> list[str]:
    """Without the space that the kernel puts at the end of each."""
    return [line.strip() for line in text.splitlines()]


def _got(cri: Cri, container: Container, path: str = "/tmp/got") -> str:
    """What the container's program printed into its file."""
    return wait_until(
        lambda: cri.exec(container, ["cat", path]).stdout.strip() or None, "the program's answer", seconds=30
    )
