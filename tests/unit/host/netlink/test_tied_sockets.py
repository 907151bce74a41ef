"""Sockets that use an address or a link: by messages of sock_diag and by /proc, made by hand; and by this kernel."""

import errno
import json
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink import tied_sockets
from nri_rdma.host.netlink.sockets.dumps import Ask, asking
from nri_rdma.host.netlink.tied_sockets import address_of, parse_proc_sockets, read_sockets
from nri_rdma.model.usage import HostSocket
from tests.contract.machines import HOST, LinuxMachine
from tests.kernel.rails import add_rails, reasons
from tests.unit.host.netlink.made_messages import message

SOCK_DIAG_BY_FAMILY, TCPDIAG_GETSOCK = 20, 18  # include/uapi/linux/sock_diag.h, inet_diag.h
V4, V6 = 2, 10  # AF_INET, AF_INET6
TCP, UDP = 6, 17
FOUR, SIX = ip_address("10.0.0.1"), ip_address("fd00::1")
MAPPED = ip_address("::ffff:10.0.0.1")


def told(family: int, own: bytes, port: int, ifindex: int = 0) -> bytes:
    """struct inet_diag_msg: family, state, timer, retrans, then ports, addresses, link and cookie; 20 more bytes."""
    ends = struct.pack("!HH", port, 5555) + own.ljust(16, b"\0") + bytes(16) + struct.pack("=I", ifindex) + bytes(8)
    return message(SOCK_DIAG_BY_FAMILY, struct.pack("=BBBB", family, 10, 0, 0) + ends + bytes(20))


class Kernel:
    """Answers with these sockets by protocol and family; TCP of both families when the old form is known."""

    def __init__(self, found: dict[tuple[int, int], list[bytes]], errors: dict[int, int] | None = None) -> None:
        self._found, self._errors = found, errors or {}
        self.asked: list[tuple[int, bytes]] = []

    def ask(self, kind: int, body: bytes) -> list[bytes]:
        self.asked.append((kind, body))
        if kind in self._errors:
            raise KernelError("ask for sockets", self._errors[kind])
        if kind == TCPDIAG_GETSOCK:
            return [*self._found.get((TCP, V4), []), *self._found.get((TCP, V6), [])]
        return self._found.get((body[1], body[0]), [])


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Has a socket of ours and one of others, of each kind."""
    others = ip_address("10.0.0.2").packed
    made = Kernel(
        {
            (TCP, V4): [told(V4, FOUR.packed, 80), told(V4, others, 81)],
            (TCP, V6): [told(V6, SIX.packed, 82), told(V6, MAPPED.packed, 83), told(V6, bytes(16), 84)],
            (UDP, V4): [told(V4, bytes(4), 319, ifindex=5), told(V4, bytes(4), 320)],
            (UDP, V6): [told(V6, SIX.packed, 53)],
        }
    )
    monkeypatch.setattr(tied_sockets, "asking", lambda _protocol: nullcontext(made.ask))
    return made


OF_TCP = {("tcp", FOUR, 80, 0), ("tcp", SIX, 82, 0), ("tcp", FOUR, 83, 0)}
OF_UDP = {("udp", None, 319, 5), ("udp", SIX, 53, 0)}


def found() -> list[tuple[str, object, int, int]]:
    return [(it.protocol, it.address, it.port, it.ifindex) for it in read_sockets({FOUR, SIX})]


def test_sockets_on_the_addresses_and_those_bound_to_a_link_are_read(kernel: Kernel) -> None:
    assert sorted(found(), key=str) == sorted(OF_TCP | OF_UDP, key=str)


def test_both_families_of_tcp_are_asked_for_at_once_and_without_time_wait(kernel: Kernel) -> None:
    found()
    states = 0xFFFFFFFF & ~(1 << 6)
    by_family = [struct.pack("=BBBBI", family, UDP, 0, 0, states) + bytes(48) for family in (V4, V6)]
    both = struct.pack("=BBBB", 0, 0, 0, 0) + bytes(48) + struct.pack("=II", states, 0)  # struct inet_diag_req
    assert kernel.asked == [(TCPDIAG_GETSOCK, both), *((SOCK_DIAG_BY_FAMILY, body) for body in by_family)]


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT, errno.EPROTONOSUPPORT])
def test_where_the_old_form_is_not_known_each_family_is_asked_for(kernel: Kernel, code: int) -> None:
    kernel._errors[TCPDIAG_GETSOCK] = code
    assert sorted(found(), key=str) == sorted(OF_TCP | OF_UDP, key=str)


@pytest.mark.parametrize("kind", [TCPDIAG_GETSOCK, SOCK_DIAG_BY_FAMILY])
def test_another_refusal_is_an_error(kernel: Kernel, kind: int) -> None:
    kernel._errors[kind] = errno.EPERM
    with pytest.raises(KernelError) as caught:
        found()
    assert caught.value.errno == errno.EPERM


def test_this_processes_own_socket_is_read() -> None:
    loopback = ip_address("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ours = HostSocket(protocol="tcp", address=loopback, port=port, ifindex=0)
        assert ours in read_sockets({loopback})
        assert ours not in read_sockets({FOUR})


@pytest.mark.parametrize(
    ("packed", "text"),
    [(FOUR.packed, "10.0.0.1"), (SIX.packed, "fd00::1"), (MAPPED.packed, "10.0.0.1")],
)
def test_an_address_on_the_wire_is_read(packed: bytes, text: str) -> None:
    assert str(address_of(packed)) == text


@pytest.mark.parametrize("packed", [bytes(4), bytes(16), ip_address("::ffff:0.0.0.0").packed])
def test_every_address_is_none(packed: bytes) -> None:
    assert address_of(packed) is None


PROC_TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100000A:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 25861 1 0000 100 0 0 10 0
   1: 0100000A:0050 0900000A:D431 06 00000000:00000000 03:00001759 00000000     0        0 0 3 0000
   2: 0200000A:0051 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 25862 1 0000 100 0 0 10 0
"""
"""As proc(5) shows them on a machine whose lowest byte comes first: listening, in TIME-WAIT, on another address."""


def test_a_table_of_proc_is_read() -> None:
    assert list(parse_proc_sockets(PROC_TCP, "tcp", {FOUR.packed})) == [
        HostSocket(protocol="tcp", address=FOUR, port=0x1144, ifindex=0)
    ]
    line = "   0: 000000FD000000000000000001000000:0035 0:0 07 00000000:00000000"
    assert list(parse_proc_sockets(f"head\n{line}\n", "udp", {ip_address("fd::1").packed})) == []
    assert [it.port for it in parse_proc_sockets(f"head\n{line}\n", "udp", {SIX.packed})]


@given(st.integers(0, 2**128 - 1), st.integers(0, 0xFFFF))
def test_any_ipv6_address_of_proc_is_found_again(number: int, port: int) -> None:
    packed = number.to_bytes(16, "big")
    words = "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
    text = f"head\n   0: {words}:{port:04X} {'0' * 32}:0000 0A\n"
    (it,) = parse_proc_sockets(text, "tcp", {packed})
    assert (it.port, it.address) == (port, address_of(packed))


# As this kernel tells it


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
    return add_rails(linux)


@pytest.mark.root
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


@pytest.mark.root
def test_a_connection_from_an_address_is_seen_and_the_listener_on_all_addresses_is_none(host: LinuxMachine) -> None:
    with held(host, ("AF_INET", "SOCK_STREAM", "0.0.0.0", 80, "", "listen")):
        assert reasons(host) == ()
        with held(host, ("AF_INET", "SOCK_STREAM", "10.0.0.1", 80, "", "connect")):
            (reason,) = reasons(host)
            assert reason.startswith("rail0 has the address 10.0.0.1 of 2 host sockets (tcp port 80, tcp port ")


@pytest.mark.root
def test_a_connected_datagram_socket_uses_the_address_that_it_sends_from(host: LinuxMachine) -> None:
    with held(host, ("AF_INET", "SOCK_DGRAM", "10.0.0.9", 4791, "", "connect")):
        (reason,) = reasons(host)
        assert reason.startswith("rail0 has the address 10.0.0.1 of 1 host socket (udp port ")


@pytest.mark.root
def test_a_socket_that_is_bound_to_a_link_is_seen_whatever_its_address(host: LinuxMachine) -> None:
    with held(host, ("AF_INET", "SOCK_DGRAM", "0.0.0.0", 319, "rail1", "bind")):
        assert reasons(host, "rail1") == ("rail1 has, bound to it, 1 host socket (udp port 319)",)
        assert reasons(host) == ()


@pytest.mark.root
def test_a_dhcp_clients_socket_is_no_use(host: LinuxMachine) -> None:
    with held(host, ("AF_INET", "SOCK_DGRAM", "10.0.0.1", 68, "rail0", "bind")):
        assert reasons(host) == ()


@pytest.mark.root
def test_a_connection_that_is_over_is_no_use(host: LinuxMachine) -> None:
    """Who closes first has the connection in TIME-WAIT for a minute."""
    with held(host, ("AF_INET", "SOCK_STREAM", "10.0.0.1", 80, "", "end")):
        inside = ["nsenter", f"--net={host.path(HOST)}", "cat", "/proc/net/tcp"]
        shown = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
        assert [line.split()[3] for line in shown] == ["06"]
        assert reasons(host) == ()


@pytest.mark.root
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
        monkeypatch.setattr(tied_sockets, "asking", lambda _protocol: nullcontext(_no_module))
        assert Counter(host.kernel.host_use().sockets) == Counter(told)


@pytest.mark.root
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
        monkeypatch.setattr(tied_sockets, "asking", by_family_only)
        assert Counter(host.kernel.host_use().sockets) == Counter(told)


def _no_module(*_: object) -> list[bytes]:
    raise KernelError("ask for sockets", errno.ENOENT)
