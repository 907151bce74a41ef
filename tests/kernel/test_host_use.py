"""What goes through a host's links, as this kernel tells it: sockets, addresses and the route to the API server."""

import errno
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from ipaddress import ip_address
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.decide.inventory import in_use_reasons, socket_reasons
from nri_rdma.host.netlink import sockets
from nri_rdma.host.netlink.dumps import Ask, asking
from nri_rdma.host.netlink.kernel import LinuxKernel
from nri_rdma.model.usage import HostUse, Lifelines
from tests.contract.machines import HOST, LinuxMachine
from tests.kernel.inside import in_namespace

pytestmark = pytest.mark.root
SOCK_DIAG_BY_FAMILY = 20  # include/uapi/linux/sock_diag.h
SOCKETS = 10_000
SECONDS = 1.0
"""For a reading beside so many sockets: the time within which the inventory follows a change. A tenth is usual."""
LATE_S = 0.25

HOLDER = """
import json, socket, sys
held = []
for family, kind, address, port, device, then in json.loads(sys.argv[1]):
    sock = socket.socket(getattr(socket, family), getattr(socket, kind))
    if device:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    if then != "connect":
        sock.bind((address, port))
    if then == "listen":
        sock.listen()
    if then == "connect":
        sock.connect((address, port))
    if then == "end":  # a whole connection, closed first by the end that connected
        sock.listen()
        with socket.create_connection((address, port)) as caller:
            accepted, _ = sock.accept()
        accepted.recv(1)
        accepted.close()
        sock.close()
    held.append(sock)
print("held", flush=True)
sys.stdin.read()
"""
"""Opens the sockets of its argument and has them until its standard input ends."""

Wanted = tuple[str, str, str, int, str, str]
"""Family, kind, address, port, device and what is done then: bind, listen, connect or end."""


@contextmanager
def held(machine: LinuxMachine, *wanted: Wanted) -> Iterator[None]:
    command = ["nsenter", f"--net={machine.path(HOST)}", sys.executable, "-c", HOLDER, json.dumps(wanted)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate()


@pytest.fixture
def host(linux: LinuxMachine) -> LinuxMachine:
    """A host with two rails that have addresses, one of them with routes."""
    for number in (0, 1):
        linux.add_link(f"rail{number}", f"02:11:00:00:00:0{number}")
        linux.set(f"rail{number}", up=True)
        linux.add_address(f"rail{number}", f"10.0.{number}.1/24")
        linux.add_address(f"rail{number}", f"fd00:{number}::1/64")
    return linux


def reasons(machine: LinuxMachine, name: str = "rail0") -> tuple[str, ...]:
    use = machine.kernel.host_use()
    link = next(link for link in use.links if link.name == name)
    return (*in_use_reasons(link, use), *socket_reasons(link, use))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (("AF_INET", "SOCK_STREAM", "10.0.0.1", 4420, "", "listen"), "10.0.0.1 of 1 host socket (tcp port 4420)"),
        (("AF_INET6", "SOCK_STREAM", "fd00:0::1", 4420, "", "listen"), "fd00::1 of 1 host socket (tcp port 4420)"),
        (("AF_INET", "SOCK_DGRAM", "10.0.0.1", 53, "", "bind"), "10.0.0.1 of 1 host socket (udp port 53)"),
        (("AF_INET6", "SOCK_STREAM", "::ffff:10.0.0.1", 80, "", "listen"), "10.0.0.1 of 1 host socket (tcp port 80)"),
    ],
    ids=["tcp", "tcp6", "udp", "mapped"],
)
def test_a_socket_on_an_address_of_a_link_is_seen(host: LinuxMachine, wanted: Wanted, reason: str) -> None:
    assert reasons(host) == ()
    with held(host, wanted):
        assert reasons(host) == (f"rail0 has the address {reason}",)
        assert reasons(host, "rail1") == ()
    assert reasons(host) == ()


def test_a_connection_from_an_address_is_seen_and_the_listener_on_all_addresses_is_none(host: LinuxMachine) -> None:
    with held(host, ("AF_INET", "SOCK_STREAM", "0.0.0.0", 80, "", "listen")):
        assert reasons(host) == ()
        with held(host, ("AF_INET", "SOCK_STREAM", "10.0.0.1", 80, "", "connect")):
            (reason,) = reasons(host)
            assert reason.startswith("rail0 has the address 10.0.0.1 of 2 host sockets (tcp port 80, tcp port ")


def test_a_connected_datagram_socket_uses_the_address_that_it_sends_from(host: LinuxMachine) -> None:
    with held(host, ("AF_INET", "SOCK_DGRAM", "10.0.0.9", 4791, "", "connect")):
        (reason,) = reasons(host)
        assert reason.startswith("rail0 has the address 10.0.0.1 of 1 host socket (udp port ")


def test_a_socket_that_is_bound_to_a_link_is_seen_whatever_its_address(host: LinuxMachine) -> None:
    with held(host, ("AF_INET", "SOCK_DGRAM", "0.0.0.0", 319, "rail1", "bind")):
        assert reasons(host, "rail1") == ("rail1 has, bound to it, 1 host socket (udp port 319)",)
        assert reasons(host) == ()


def test_a_dhcp_clients_socket_is_no_use(host: LinuxMachine) -> None:
    with held(host, ("AF_INET", "SOCK_DGRAM", "10.0.0.1", 68, "rail0", "bind")):
        assert reasons(host) == ()


def test_a_connection_that_is_over_is_no_use(host: LinuxMachine) -> None:
    """Who closes first has the connection in TIME-WAIT for a minute."""
    with held(host, ("AF_INET", "SOCK_STREAM", "10.0.0.1", 80, "", "end")):
        inside = ["nsenter", f"--net={host.path(HOST)}", "cat", "/proc/net/tcp"]
        shown = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
        assert [line.split()[3] for line in shown] == ["06"]
        assert reasons(host) == ()


def test_a_kernel_without_sock_diag_is_asked_by_proc(host: LinuxMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (
        ("AF_INET", "SOCK_STREAM", "10.0.0.1", 4420, "", "listen"),
        ("AF_INET6", "SOCK_DGRAM", "fd00:0::1", 53, "", "bind"),
        ("AF_INET6", "SOCK_STREAM", "::ffff:10.0.0.1", 80, "", "listen"),
        ("AF_INET", "SOCK_STREAM", "0.0.0.0", 81, "", "listen"),
    )
    with held(host, *wanted):
        told = host.kernel.host_use().sockets
        assert len(told) == 3
        monkeypatch.setattr(sockets, "asking", lambda _protocol: nullcontext(_no_module))
        assert Counter(host.kernel.host_use().sockets) == Counter(told)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_kernel_that_lists_tcp_by_family_only_tells_the_same(
    host: LinuxMachine, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    @contextmanager
    def by_family_only(protocol: int) -> Iterator[Ask]:
        def refusing(kind: int, body: bytes) -> list[bytes]:
            if kind != SOCK_DIAG_BY_FAMILY:
                raise KernelError("ask for sockets", code)
            return ask(kind, body)

        with asking(protocol) as ask:
            yield refusing

    wanted = (
        ("AF_INET", "SOCK_STREAM", "10.0.0.1", 4420, "", "listen"),
        ("AF_INET6", "SOCK_STREAM", "fd00:0::1", 4421, "", "listen"),
        ("AF_INET6", "SOCK_STREAM", "::ffff:10.0.0.1", 80, "", "listen"),
    )
    with held(host, *wanted):
        told = host.kernel.host_use().sockets
        assert sorted(it.port for it in told) == [80, 4420, 4421]
        monkeypatch.setattr(sockets, "asking", by_family_only)
        assert Counter(host.kernel.host_use().sockets) == Counter(told)


def _no_module(*_: object) -> list[bytes]:
    raise KernelError("ask for sockets", errno.ENOENT)


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
        try:
            begun = time.perf_counter()
            late = _lateness(lambda: reasons(host))
            took = time.perf_counter() - begun
        finally:
            for item in many:
                item.close()
    print(f"a reading beside {SOCKETS} sockets took {took * 1000:.0f} ms, others waited {late * 1000:.0f} ms")
    assert took < SECONDS
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


def _lateness(work: object) -> float:
    """By how many seconds a thread that wants to run every few milliseconds was late, at worst, during `work`."""
    worst, done = [0.0], threading.Event()

    def tick() -> None:
        before = time.perf_counter()
        while not done.wait(0.002):
            now = time.perf_counter()
            worst[0], before = max(worst[0], now - before), now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        work()  # type: ignore[operator] # a callable
    finally:
        done.set()
        thread.join()
    return worst[0]


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
