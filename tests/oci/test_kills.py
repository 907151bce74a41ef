"""The daemon is killed while a container asks: the container gets all or does not start, and the host is as before."""

from collections.abc import Iterator

import pytest

from tests.oci.conftest import start
from tests.oci.host import Host, Podman
from tests.oci.test_podman import DEVICE, SLEEP, generate, in_container
from tests.rig import hoststate
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import host_link
from tests.rig.fabric import Fabric
from tests.rig.faults import Faults

pytestmark = pytest.mark.root

_STEPS = ("plan", "write-journal", "move-netdev mlx5_5", "configure-netdev mlx5_5", "resolve-numbers")
PLACES = [f"{when} {step}" for step in _STEPS for when in ("before", "after")]


@pytest.fixture
def faults(host: Host) -> Faults:
    return Faults(host.work / "faults")


@pytest.fixture
def daemon(host: Host, podman: Podman, node: Fabric, faults: Faults) -> Iterator[Daemon]:
    """A daemon that faults can be planted in."""
    generate(host, node)
    running = Daemon(host, node, extra=EXCLUSIVE_FIRST, faults=faults)
    start(running)
    try:
        yield running
        podman.remove_all()
    finally:
        running.stop()
        node.bring_back()


@pytest.mark.parametrize("place", PLACES)
def test_a_daemon_that_is_killed_while_a_container_asks(
    daemon: Daemon, podman: Podman, node: Fabric, faults: Faults, place: str
) -> None:
    before = hoststate.take()
    faults.plant(f"{place}=kill")
    starting = podman.host.start("podman", *podman.run("-d", "--name", "asks", *DEVICE, command=SLEEP))
    assert daemon.wait_ended() == -9, "the place was passed"
    start(daemon)
    told = starting.communicate(timeout=60)
    if starting.returncode == 0:
        assert in_container(podman, "asks"), told
        podman.remove_all()
        wait_until(lambda: not hoststate.difference(before, hoststate.take()), "the host to be as before")
    else:  # the next daemon came too late for it
        assert starting.returncode == 126, told
        wait_until(lambda: not daemon.status()["sandboxes"], "nothing of it to be left")
        node.bring_back()  # as the kernel does with hardware whose namespace ends while there is no daemon
        assert host_link("rail5") is not None
