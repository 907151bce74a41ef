"""Pods that end while the daemon is away."""

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import host_link
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]
_AGAIN_S, _LONG_S = 20.0, 120.0
"""How long a number is waited for, and with --long."""


class Numbers:
    """Namespaces that have the numbers below a wanted one: the kernel gives the lowest that is free.

    They are of UTS, whose number is free at once when they end; all kinds have their numbers from one list."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._held: list[Path] = []
        self._pods = 0

    def pod_with(self, cri: Cri, number: int) -> Sandbox:
        """A pod that asks for nothing, in a namespace with that number; skips the test when there is none in time."""
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            if self._hold_until(number, end):
                self._release(self._held.pop())
                pod = cri.run_pod(f"later-{uuid.uuid4().hex[:8]}")
                self._pods += 1
                if netns_of(cri, pod).stat().st_ino == number:
                    return pod
                cri.delete_pod(pod)
        pytest.skip(
            f"others on this host have the number of the namespace that is gone: not had in {self._seconds:.0f} s with "
            f"{self._pods} pods; --long tries for {_LONG_S:.0f} s"
        )

    def close(self) -> None:
        """Ends what is held."""
        while self._held:
            self._release(self._held.pop())

    def _hold_until(self, number: int, end: float) -> bool:
        """Takes numbers until the last one taken is the wanted one."""
        while time.monotonic() < end:
            path = self._folder / f"held-{uuid.uuid4().hex}"
            path.touch()
            subprocess.run(["unshare", f"--uts={path}", "true"], check=True)
            self._held.append(path)
            if (got := path.stat().st_ino) == number:
                return True
            if got > number:  # not yet free: the kernel ends namespaces in its own time
                self._release(self._held.pop())
        return False

    @staticmethod
    def _release(path: Path) -> None:
        subprocess.run(["umount", str(path)], check=True)
        path.unlink()


@pytest.fixture
def numbers(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Numbers]:
    """None is held afterwards."""
    made = Numbers(tmp_path, _LONG_S if pytestconfig.getoption("--long") else _AGAIN_S)
    yield made
    made.close()


def test_what_a_pod_held_that_was_removed_while_the_daemon_was_away_is_forgotten_at_the_next_start(
    runtime: Runtime, eight: Fabric, cri: Cri
) -> None:
    """A virtual netdev dies with its namespace, a fact of the kernel; physical ones are the lab's to test."""
    with Daemon(runtime, eight) as daemon:
        pod = cri.run_pod("gone", annotations={"rdma.noderesource.dev": "[{match: {device: mlx5_4}}]"})
        wait_until(lambda: host_link("rail4") is None, "its netdev to be in the pod")
        daemon.kill()
        cri.delete_pod(pod)
        daemon.start()
        wait_until(lambda: daemon.status()["sandboxes"] == [], "what is gone to be forgotten")
        status = daemon.status()
        assert status["namespaces_held"] == 0
        assert host_link("rail4") is None
        assert next(device for device in status["devices"] if device["name"] == "mlx5_4")["holders"] == []
        other = cri.run_pod("other", annotations={"rdma.noderesource.dev": "7"})
        cri.delete_pod(other)
        daemon.wait_given_back()


def test_a_pod_whose_container_started_while_the_daemon_was_away_is_reported_and_gets_no_other(
    runtime: Runtime, eight: Fabric, cri: Cri
) -> None:
    with Daemon(runtime, eight) as daemon:
        daemon.kill()
        pod = cri.run_pod("early", annotations={"rdma.noderesource.dev": "1"})
        cri.run_container(pod, "first")
        daemon.start()
        with pytest.raises(CriError, match="nri-rdma: NOT-ATTACHED: "):
            cri.create_container(pod, "second")
        wait_until(lambda: daemon.status()["unserved"], "the report")
        assert [item["pod"] for item in daemon.status()["unserved"]] == ["default/early"]
        cri.delete_pod(pod)


def test_a_pod_that_started_while_the_daemon_was_away_gets_its_device_when_it_has_no_container_yet(
    host_equal: None, runtime: Runtime, eight: Fabric, cri: Cri
) -> None:
    with Daemon(runtime, eight) as daemon:
        daemon.kill()
        pod = cri.run_pod("idle", annotations={"rdma.noderesource.dev": "1"})
        daemon.start()
        container = cri.run_container(pod, "main")
        assert "uverbs0" in cri.exec(container, ["ls", "/dev/infiniband"]).stdout.split()
        assert daemon.status()["unserved"] == []
        cri.delete_pod(pod)


def test_a_container_made_in_an_attached_pod_while_the_daemon_was_away_is_reported_and_only_that(
    runtime: Runtime, eight: Fabric, cri: Cri
) -> None:
    with Daemon(runtime, eight) as daemon:
        pod = cri.run_pod("half", annotations={"rdma.noderesource.dev": "1"})
        cri.run_container(pod, "with")
        daemon.kill()
        cri.run_container(pod, "without")
        daemon.start()
        wait_until(lambda: daemon.status()["unserved"], "the report")
        (report,) = daemon.status()["unserved"]
        assert report == {"pod": "default/half", "why": "container without was made while nri-rdma was away"}
        cri.delete_pod(pod)
        assert daemon.status()["unserved"] == []


def test_a_shared_device_of_a_host_network_pod_is_free_when_the_pod_is_gone_though_nobody_tells(
    runtime: Runtime, eight: Fabric, cri: Cri
) -> None:
    """It has no namespace of its own to watch, and containerd tells no end of pods older than its restart."""
    with Daemon(runtime, eight) as daemon:
        request = {"rdma.noderesource.dev": "[{mode: shared, match: {device: mlx5_1}}]"}
        pod = cri.run_pod("host", annotations=request, host_network=True)
        runtime.restart()
        daemon.wait_synchronized(times=2)
        assert [it["pod"] for it in daemon.status()["sandboxes"]] == ["default/host"]
        runtime.cri.delete_pod(pod)
        wait_until(lambda: daemon.status()["sandboxes"] == [], "the device to be free")


def test_a_pod_whose_namespace_has_the_number_of_one_that_is_gone_is_left_alone(
    runtime: Runtime, eight: Fabric, cri: Cri, numbers: Numbers
) -> None:
    """Numbers of namespaces repeat. What is in the later one looks like what was in the earlier one."""
    with Daemon(runtime, eight) as daemon:
        pod = cri.run_pod("earlier", annotations={"rdma.noderesource.dev": "[{match: {device: mlx5_4}}]"})
        wait_until(lambda: host_link("rail4") is None, "its netdev to be in the pod")
        inode = netns_of(cri, pod).stat().st_ino
        (rail,) = links_in(netns_of(cri, pod), "rdma0")
        daemon.kill()
        cri.delete_pod(pod)
        later = numbers.pod_with(cri, inode)
        netns = netns_of(cri, later)
        bait = ["ip", "link", "add", "rdma0", "index", str(rail["ifindex"]), "address", str(rail["address"])]
        inside(netns, *bait, "type", "veth", "peer", "name", "beside")
        before = links_in(netns)
        daemon.start()
        wait_until(lambda: daemon.status()["sandboxes"] == [], "what is gone to be forgotten")
        assert links_in(netns) == before
        cri.delete_pod(later)


def netns_of(cri: Cri, pod: Sandbox) -> Path:
    netns = cri.pod_status(pod).netns
    assert netns is not None
    return netns


def links_in(netns: Path, name: str = "") -> list[dict[str, Any]]:
    """The links of a namespace, or the one of that name: what a return would change."""
    shown = inside(netns, "ip", "-j", "link", "show", *(["dev", name] if name else []))
    kept = ("ifname", "ifindex", "address", "mtu", "flags")
    return [{key: link.get(key) for key in kept} for link in json.loads(shown)]


def inside(netns: Path, *command: str) -> str:
    """What a program prints in a network namespace."""
    whole = ["nsenter", f"--net={netns}", *command]
    return subprocess.run(whole, capture_output=True, text=True, check=True).stdout
