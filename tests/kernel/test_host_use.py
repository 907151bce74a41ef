"""What goes through a host's links, as this kernel tells it: addresses and the route to the API server; and what
reading it costs."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from nri_rdma.decide.inventory import in_use_reasons
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.model.usage import HostUse, Lifelines
from tests.contract.machines import HOST, LinuxMachine
from tests.kernel.inside import in_namespace
from tests.kernel.lateness import lateness
from tests.kernel.rails import add_rails, reasons

pytestmark = pytest.mark.root
SOCKETS = 10_000
SECONDS = 1.0
"""For a reading beside so many sockets: the time within which the inventory follows a change. A tenth is usual."""
LATE_S = 0.25


@pytest.fixture
def host(linux: LinuxMachine) -> LinuxMachine:
    return add_rails(linux)


@pytest.mark.parametrize(
    ("api_server", "expected"),
    [
        ("10.9.0.1", ["rail0 carries the route to the API server 10.9.0.1"]),
        ("10.0.0.77", ["rail0 carries the route to the API server 10.0.0.77"]),
        ("fd00:9::1", ["rail0 carries the route to the API server fd00:9::1"]),
        ("10.8.0.1", []),
        ("10.66.0.1", []),
        ("10.0.0.1", ["rail0 carries the route to the API server 10.0.0.1"]),
        ("127.0.0.1", ["lo carries the route to the API server 127.0.0.1"]),
    ],
    ids=["by a gateway", "beside us", "IPv6", "blackhole", "no route", "ours", "loopback"],
)
def test_the_link_of_the_route_to_the_api_server_is_known(
    host: LinuxMachine, api_server: str, expected: list[str]
) -> None:
    host.add_route("rail0", "10.9.0.0/16 via 10.0.0.9")
    host.ip(HOST, "-6 route add fd00:9::/64 via fd00:0::9 dev rail0")
    host.ip(HOST, "route add blackhole 10.8.0.0/16")
    assert _told(host, Lifelines(api_server=ip_address(api_server))) == expected


def test_all_paths_of_the_route_to_the_api_server_are_known(host: LinuxMachine) -> None:
    host.ip(HOST, "route add 10.9.0.0/16 nexthop via 10.0.0.9 dev rail0 nexthop via 10.0.1.9 dev rail1")
    use = _use(host, Lifelines(api_server=ip_address("10.9.0.1")))
    assert {link.name for link in use.links if link.ifindex in use.api_server_links} == {"rail0", "rail1"}


def test_the_link_with_the_nodes_address_is_known(host: LinuxMachine) -> None:
    told = _told(host, Lifelines(node_ips=(ip_address("10.0.0.1"), ip_address("10.0.7.1"))))
    assert told == ["rail0 has the node's address 10.0.0.1"]


def _use(machine: LinuxMachine, lifelines: Lifelines) -> HostUse:
    kernel = LinuxKernel(str(machine.path(HOST)), lifelines)
    try:
        return kernel.host_use()
    finally:
        kernel.host.close()


def _told(machine: LinuxMachine, lifelines: Lifelines) -> list[str]:
    use = _use(machine, lifelines)
    return [reason for link in use.links for reason in in_use_reasons(link, use)]


def test_ten_thousand_sockets_cost_a_reading_little(host: LinuxMachine) -> None:
    def open_many() -> list[socket.socket]:
        made = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOCKETS)]
        for number, item in enumerate(made):
            item.bind(("127.0.0.1", 10_000 + number))
        return made

    with _many_files():
        many = in_namespace(host.kernel.host.fd, open_many)  # type: ignore[attr-defined] # the real kernel's
        took: list[float] = []

        def read() -> None:
            begun = time.perf_counter()
            reasons(host)
            took.append(time.perf_counter() - begun)

        try:
            late = lateness(read, LATE_S)
        finally:
            for item in many:
                item.close()
    print(f"a reading beside {SOCKETS} sockets took {min(took) * 1000:.0f} ms, others waited {late * 1000:.0f} ms")
    assert min(took) < SECONDS
    assert late < LATE_S


@contextmanager
def _many_files() -> Iterator[None]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, SOCKETS + 1000), max(hard, SOCKETS + 1000)))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_links_that_come_and_go_while_they_are_read_fail_no_reading(host: LinuxMachine, tmp_path: Path) -> None:
    """Pods that start and stop make and remove links all the time."""
    done = threading.Event()
    failed: list[BaseException] = []

    def churn() -> None:
        while not done.is_set():
            host.ip(HOST, "link add come0 type veth peer name come1")
            host.ip(HOST, "address add 10.7.0.1/24 dev come0")
            host.ip(HOST, "link set come0 up")
            host.ip(HOST, "link delete come0")

    def read() -> None:
        try:
            end = time.monotonic() + 3
            while time.monotonic() < end:
                use = host.kernel.host_use()
                rails = [link.ifindex for link in use.links if link.name in {"rail0", "rail1"}]
                assert len(rails) == 2
                comers = [link.ifindex for link in use.links if link.name == "come0"]
                assert set(host.kernel.survey((*rails, *comers)).links) >= set(rails)
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    churning, reading = threading.Thread(target=churn), threading.Thread(target=read)
    churning.start()
    reading.start()
    reading.join()
    done.set()
    churning.join()
    assert failed == []
