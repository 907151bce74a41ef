"""RDMA devices that change while the daemon runs: it hears of them from the kernel, not from the next pod."""

import subprocess
from typing import Any

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import STATE
from tests.lab.guest.process import Server
from tests.rig.control import ask_status
from tests.rig.cri import Cri
from tests.rig.deadline import wait_until

SOON = 5  # under emulation; the events themselves take milliseconds
POD = "rxe1-renamed"
LIMITED = f"mode: exclusive, match: {{device: {POD}.0}}, limits: {{hcaObjects: 7}}"


def known() -> dict[str, Any]:
    """The devices that the daemon tells of, by name."""
    return {device["name"]: device for device in ask_status(STATE / "control.sock")["devices"]}


def test_a_device_that_comes_is_renamed_and_goes_is_known_at_once(daemon: Server, rdma_device: str) -> None:
    for command in ("link add late type veth peer name late-peer", "link set late up", "link set late-peer up"):
        subprocess.run(["ip", *command.split()], check=True)
    try:
        kernel.rdma("link", "add", "rxe_late", "type", "rxe", "netdev", "late")
        wait_until(lambda: known().keys() == {rdma_device, "rxe_late"}, "the new device to be known", seconds=SOON)
        assert [netdev["name"] for netdev in known()["rxe_late"]["netdevs"]] == ["late"]
        kernel.rdma("dev", "set", "rxe_late", "name", "rxe_later")
        wait_until(lambda: known().keys() == {rdma_device, "rxe_later"}, "its new name to be known", seconds=SOON)
        kernel.rdma("link", "delete", "rxe_later")
        wait_until(lambda: known().keys() == {rdma_device}, "the device to be forgotten", seconds=SOON)
    finally:
        subprocess.run(["ip", "link", "delete", "late"], check=True)


@pytest.mark.outcome("exclusive-alone")
def test_a_container_is_limited_by_the_name_that_the_pod_gave_its_device(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    with (
        kernel.labs_rxe(rdma_device),
        kernel.rdma_netns("exclusive"),
        verbs.pod(cri, POD, verbs.asks(LIMITED)) as sandbox,
    ):
        first = verbs.start(cri, sandbox, "first")
        inside = ["nsenter", "-t", str(cri.container_status(first).pid), "-n"]
        subprocess.run([*inside, "rdma", "dev", "set", f"{POD}.0", "name", "mine"], check=True)
        second = verbs.start(cri, sandbox, "second")
        limits = kernel.cgroup_file(cri.container_status(second).pid, "rdma.max")
        assert "mine hca_handle=max hca_object=7" in [line.strip() for line in limits.splitlines()]
