"""Pods that end while the daemon is away."""

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import host_link
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]


def test_what_a_pod_held_that_was_removed_while_the_daemon_was_away_is_forgotten_at_the_next_start(
    runtime: Runtime, eight: Fabric, cri: Cri
) -> None:
    """A virtual netdev dies with its namespace, a fact of the kernel; physical ones are the lab's to test."""
    with Daemon(runtime, eight) as daemon:
        pod = cri.run_pod("gone", annotations={"rdma.noderesource.dev": "[{match: {device: mlx5_4}}]"})
        daemon.kill()
        cri.delete_pod(pod)
        daemon.start()
        status = daemon.status()
        assert status["sandboxes"] == []
        assert status["namespaces_held"] == 0
        assert host_link("rail4") is None
        assert next(device for device in status["devices"] if device["name"] == "mlx5_4")["holders"] == []
        other = cri.run_pod("other", annotations={"rdma.noderesource.dev": "7"})
        cri.delete_pod(other)
        assert daemon.status()["sandboxes"] == []


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
