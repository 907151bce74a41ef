"""A list that changes while it is read is read again or refused, never used with something missing."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace
from nri_rdma.host.netlink.routes.routes import captured_routes, read_routes
from tests.contract.machines import HOST, LinuxMachine
from tests.kernel.journey import Attach

pytestmark = pytest.mark.root
ROUTES = 20_000
ROUNDS = 12


def _destination(family: int, number: int) -> str:
    return f"50.{number >> 8}.{number & 255}.0/24" if family == 4 else f"fd50:{number:x}::/64"


def _batch(linux: LinuxMachine, commands: Iterator[str]) -> None:
    inside = ["nsenter", f"--net={linux.path(HOST)}", "ip", "-force", "-batch", "-"]
    subprocess.run(inside, input="\n".join(commands), text=True, capture_output=True, check=False)


@contextmanager
def _changing(linux: LinuxMachine, family: int) -> Iterator[set[str]]:
    """Yield the destinations that exist the whole time; every second one of the others comes and goes meanwhile."""
    linux.ip(HOST, "link set up0 up")
    _batch(linux, (f"route add {_destination(family, it)} dev up0" for it in range(ROUTES)))
    ended, is_changing = threading.Event(), threading.Event()

    def change() -> None:
        while not ended.is_set():
            for verb in ("delete", "add"):
                _batch(linux, (f"route {verb} {_destination(family, it)} dev up0" for it in range(0, 6000, 2)))
                is_changing.set()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert is_changing.wait(20)
        yield {str(ip_network(_destination(family, it))) for it in range(1, ROUTES, 2)}
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("family", [4, 6])
def test_no_list_lacks_a_route_that_was_there_the_whole_time(linux: LinuxMachine, family: int) -> None:
    up = linux.add_link("up0", "02:11:00:00:00:02")
    host = linux.kernel.host
    assert isinstance(host, HeldNamespace)
    refused = 0
    with _changing(linux, family) as lasting:
        for _ in range(ROUNDS):
            try:
                routes = host.run(lambda: read_routes((up,), ()))
            except KernelError as error:
                assert "EAGAIN" in str(error)
                refused += 1
            else:
                assert not lasting - {route.destination for route in routes}
    assert refused == 0 or family == 6
    assert len(host.run(lambda: captured_routes(read_routes((up,), ()), up))) >= ROUTES / 2  # at rest


def test_a_link_comes_home_and_the_node_is_read_where_routes_never_rest(linux: LinuxMachine) -> None:
    linux.add_link("up0", "02:11:00:00:00:02")
    linux.add_link("rail0", "02:11:00:00:00:01")
    linux.ip(HOST, "link set rail0 up")
    linux.ip(HOST, "address add fd00::1/64 dev rail0")
    linux.ip(HOST, "route add fd07::/64 via fd00::9 dev rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    before = linux.ip(HOST, "-j link show")
    with _changing(linux, 6):
        assert attach.undo(attach.kernel) == ()
        assert {link.name for link in attach.kernel.host_use(("rail0",)).links} >= {"lo", "rail0", "up0"}
        routes = linux.ip(HOST, "-6 route show dev rail0")
    assert "fd07::/64 via fd00::9" in routes
    assert "rail0" not in before
