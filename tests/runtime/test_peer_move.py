"""What runc's tests show of a netdev that a container's configuration names, by annotation on real runtimes.

A pod's network namespace is there before its containers are, so all of runc's tests with a namespace made beforehand
are of this kind. docs/peers.md has the table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import host_link
from tests.rig.fabric import Fabric
from tests.rig.host_config import on_host
from tests.rig.podworker import run_insistently
from tests.rig.runtime import Runtime
from tests.runtime.test_network import ALL_RIGHTS, POD, Network

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

NETDEV = "rail4"
"""It has nothing configured on the host."""
NEVER_RAISED = r"noop|noqueue|33:33:00:00:00:01"
"""What a netdev shows that is down and was up before, unlike one that came into its namespace and was never up."""


@pytest.fixture
def daemon(runtime: Runtime, node: Fabric) -> Iterator[Daemon]:
    """A daemon whose rule grants every right."""
    with Daemon(runtime, node, extra=ALL_RIGHTS) as running:
        yield running


pytestmark += [pytest.mark.usefixtures("daemon")]


def shown_by_its_program(cri: Cri, pod: Sandbox, name: str, tmp_path: Path) -> str:
    """What `ip address show` says that a container of the pod runs as its only program."""
    container = cri.create_container(
        pod, "main", ["sh", "-c", f"ip address show dev {name} > /out/shown"], mounts={str(tmp_path): "/out"}
    )
    cri.start(container)
    wait_until(lambda: cri.container_status(container).state == "exited", "the program to end")
    assert cri.container_status(container).exit_code == 0
    cri.remove_container(container)
    return (tmp_path / "shown").read_text()


def in_namespace(cri: Cri, pod: Sandbox, name: str) -> list[dict[str, Any]]:
    """The link as the pod's namespace has it when its container is gone."""
    return Network(cri, pod).ip("address", "show", "dev", name)


def asked(name: str, *more: str) -> dict[str, str]:
    words = ", ".join([f"name: {name}", *more])
    return {POD: f"- {{match: {{netdev: {NETDEV}}}, interface: {{{words}}}}}"}


@pytest.mark.parametrize("name", [NETDEV, "ctr0"])
def test_the_programs_of_a_pod_have_the_netdev_and_it_is_there_without_them_until_the_pod_ends(
    host_equal: None, cri: Cri, tmp_path: Path, name: str
) -> None:
    pod = cri.run_pod("move", annotations=asked(name))
    assert f": {name}" in shown_by_its_program(cri, pod, name, tmp_path)
    assert in_namespace(cri, pod, name)
    assert host_link(NETDEV) is None
    cri.delete_pod(pod)
    assert host_link(NETDEV) is not None


def test_a_container_that_is_killed_leaves_the_netdev_to_its_pod(host_equal: None, cri: Cri) -> None:
    pod = cri.run_pod("killed", annotations=asked("ctr0"))
    container = cri.run_container(pod, "main")
    cri.remove_container(container)
    assert in_namespace(cri, pod, "ctr0")
    cri.delete_pod(pod)
    assert host_link(NETDEV) is not None


@pytest.mark.parametrize("state", ["up", "down"])
def test_a_global_address_of_the_host_is_in_the_pod(host_equal: None, cri: Cri, tmp_path: Path, state: str) -> None:
    down = (f"link set {NETDEV} down",) if state == "down" else ()
    address = f"address add 169.254.169.77/32 dev {NETDEV}"
    with on_host(*down, address, undo=(f"link set {NETDEV} up",), ignoring=NEVER_RAISED if down else "$."):
        pod = cri.run_pod("global", annotations=asked(NETDEV))
        assert "169.254.169.77/32" in shown_by_its_program(cri, pod, NETDEV, tmp_path)
        assert "169.254.169.77" in str(in_namespace(cri, pod, NETDEV))
        cri.delete_pod(pod)


def test_an_address_that_is_the_hosts_own_is_not_in_the_pod(host_equal: None, cri: Cri, tmp_path: Path) -> None:
    with on_host(
        f"address add 127.0.0.33 dev {NETDEV}",
        f"address add 10.77.0.1/24 dev {NETDEV} scope host",
        f"address add 10.78.0.1/24 dev {NETDEV} scope global",
    ):
        pod = cri.run_pod("local", annotations=asked(NETDEV))
        shown = shown_by_its_program(cri, pod, NETDEV, tmp_path)
        assert [it for it in ("127.0.0.33", "10.77.0.1", "10.78.0.1") if it in shown] == ["10.78.0.1"]
        cri.delete_pod(pod)


@pytest.mark.parametrize("name", [NETDEV, "ctr0"])
def test_mtu_mac_and_address_of_the_host_are_in_the_pod_under_either_name(
    host_equal: None, node: Fabric, cri: Cri, tmp_path: Path, name: str
) -> None:
    netdev = next(it for it in node.node.netdevs if it.name == NETDEV)
    with on_host(
        f"link set {NETDEV} mtu 1789",
        f"link set {NETDEV} address 00:11:22:33:44:55",
        f"address add 169.254.169.77/32 dev {NETDEV}",
        undo=(f"link set {NETDEV} mtu {netdev.mtu}", f"link set {NETDEV} address {netdev.mac}"),
    ):
        pod = run_insistently(cri, "all", asked(name), "INVENTORY")  # until the daemon has read the new MAC
        shown = shown_by_its_program(cri, pod, name, tmp_path)
        assert [it for it in ("mtu 1789", "ether 00:11:22:33:44:55", "169.254.169.77/32") if it not in shown] == []
        (link,) = in_namespace(cri, pod, name)
        assert (link["mtu"], link["address"]) == (1789, "00:11:22:33:44:55")
        cri.delete_pod(pod)


def test_a_pod_on_the_hosts_network_is_refused(host_equal: None, cri: Cri) -> None:
    with pytest.raises(CriError, match="nri-rdma: HOST-NETWORK: "):
        cri.run_pod("host", annotations=asked("ctr0"), host_network=True)
    assert host_link(NETDEV) is not None
