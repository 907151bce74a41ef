"""Programs of TCX follow a link through namespaces, until they are detached."""

import ctypes
import errno
import os
import struct

import pytest

from nri_rdma.attach.ops import DetachTcx
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.namespace import inside
from nri_rdma.host.netlink.tcx import _CALL, TCX_EGRESS, TCX_INGRESS, programs_of
from tests.contract.machines import POD, LinuxMachine
from tests.kernel.journey import Attach
from tests.rig.linkops import apply

pytestmark = pytest.mark.root

_PROG_LOAD, _PROG_ATTACH, _LINK_CREATE = 5, 8, 28  # enum bpf_cmd
_SCHED_CLS = 3
_PASS = struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
"""r0 = 0; exit"""


def _bpf(command: int, attributes: bytes) -> int:
    """As the kernel's manual has it; -1 and errno."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(_CALL[os.uname().machine], command, buffer, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _load() -> int:
    code, licence = ctypes.create_string_buffer(_PASS, len(_PASS)), ctypes.create_string_buffer(b"GPL")
    own = struct.pack("=IIQQIIQII", _SCHED_CLS, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0, 0)
    return _bpf(_PROG_LOAD, own)


@pytest.fixture
def rail(linux: LinuxMachine) -> int:
    """A link of the host with a program of each direction, one of them held by an eBPF link."""
    rail = linux.add_link("rail0", "02:11:00:00:00:01")
    try:
        program = _load()
    except OSError as error:
        pytest.skip(f"no eBPF here: {error}")

    def attach(_route: object) -> int:
        _attach(rail, program)
        return _bpf(_LINK_CREATE, struct.pack("=IIII", program, rail, TCX_EGRESS, 0) + bytes(16))

    try:
        inside(linux.kernel.host, "attach", attach)
    except (OSError, KernelError) as error:
        if error.errno == errno.EINVAL:
            pytest.skip("this kernel has no TCX")
        raise
    return rail


def _attach(rail: int, program: int) -> int:
    return _bpf(_PROG_ATTACH, struct.pack("=IIII", rail, program, TCX_INGRESS, 0))


def _ids(linux: LinuxMachine, place: str, rail: int) -> tuple[int, ...]:
    namespace = linux.kernel.open_namespace(str(linux.path(place)))
    try:
        return inside(namespace, "look", lambda _route: programs_of(rail))
    finally:
        namespace.close()


def _count(linux: LinuxMachine, place: str, rail: int) -> int:
    return len(_ids(linux, place, rail))


def test_programs_come_along_and_are_gone_after_they_were_detached(linux: LinuxMachine, rail: int) -> None:
    kernel = linux.kernel
    assert _count(linux, "host", rail) == 2
    pod = kernel.open_namespace(linux.pod_path)
    kernel.move_link(kernel.host, rail, pod, "rdma0", as_ifindex=rail)
    assert _count(linux, POD, rail) == 2
    for _ in range(2):
        apply(kernel, pod, rail, DetachTcx())
        assert _count(linux, POD, rail) == 0


def test_a_program_that_a_pod_leaves_on_the_netdev_is_detached_and_the_hosts_stay(
    linux: LinuxMachine, rail: int
) -> None:
    hosts = _ids(linux, "host", rail)
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    (move,) = attach.record.plan.moves
    own = _load()
    inside(attach.namespace, "attach", lambda _route: _attach(move.pod_ifindex, own))
    assert _count(linux, POD, move.pod_ifindex) == 3
    attach.assert_home()
    assert _ids(linux, "host", rail) == hosts


def test_filters_of_tc_do_not_come_along(linux: LinuxMachine) -> None:
    kernel, rail = linux.kernel, linux.add_link("rail0", "02:11:00:00:00:01")
    linux.run("host", "tc", "qdisc", "add", "dev", "rail0", "clsact")
    pod = kernel.open_namespace(linux.pod_path)
    kernel.move_link(kernel.host, rail, pod, "rdma0", as_ifindex=rail)
    assert "clsact" not in linux.run(POD, "tc", "qdisc", "show", "dev", "rdma0")
