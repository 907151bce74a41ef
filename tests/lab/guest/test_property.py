"""The central property on devices that only the lab has: whatever fails when, undo makes the host what it was.

A virtual function of an igb, which is physical: it comes home when its namespace dies, and is known by its parent.
Netdevs of kinds whose drivers many kernels come without: dummy and VLAN. In a namespace that plays the host
(tests/kernel/journey.py), so that the machine's own links and what others test on them are not touched. An RDMA device
in the machine's own.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.journal import decode_record, encode_record
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import do_steps, undo_steps
from nri_rdma.errors import NriRdmaError
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.device import LinkLayer, RdmaDevice
from tests.contract.machines import HOST, POD, LinuxMachine, linux_machine
from tests.fakes.kernel import CrashError, FaultyKernel
from tests.kernel.journey import RICH, RICH_SYSCTLS, SPANS, Attach, configure, make_rich
from tests.lab.guest import kernel
from tests.lab.guest.test_nldev import NAME, exclusive, index, needs_movable_rxe, run
from tests.rig import hostlook, sysctls
from tests.rig.deadline import wait_until
from tests.rig.linkops import rename_rdma
from tests.unit.attach.builders import POD_PATH, make_placed, record_of
from tests.unit.attach.meddlings import MEDDLINGS, Meddling

__all__ = ["exclusive", "index"]


VF = "pf0v1"
OF_A_VF = [act for act in MEDDLINGS if act.__name__ != "_new_mac"]
"""Its address is the physical function's to give."""
STRIDE = 12
"""Every so many operations of an undo: the machine is emulated, and all of them fail on the kinds of tests/kernel."""
STRIDE_OF_VIRTUAL = 3
"""And of the attach of a netdev that differs from those in its driver only."""


@pytest.fixture
def linux(tmp_path: Path) -> Iterator[LinuxMachine]:
    with linux_machine(tmp_path) as machine:
        machine.add_link("eth0", "02:11:00:00:00:50", POD)
        yield machine


@pytest.mark.machine("sriov")
def test_a_virtual_function_comes_home_whatever_fails(linux: LinuxMachine) -> None:
    with given_away(VF, linux):
        _make_vf_rich(linux)
        _whatever_fails(linux, OF_A_VF)


@pytest.mark.machine("sriov")
def test_a_virtual_function_whose_namespace_died_comes_home_whole(linux: LinuxMachine) -> None:
    with given_away(VF, linux):
        _make_vf_rich(linux)
        attach = Attach(linux, "rail0")
        attach.do(attach.kernel)
        attach.meddle([act for act in OF_A_VF if act.__name__ != "_rename"])
        linux.remove_pod()
        attach.namespace.close()
        wait_until(lambda: "rdma0" in _machines_links(), "the kernel to bring it to the machine", 20)
        run(f"ip link set rdma0 netns {linux.path(HOST)}")
        assert undo_steps(attach.kernel, None, steps_of(attach.record.plan), SPANS) == ()
        assert hostlook.difference(attach.before, hostlook.take_settled(linux.path(HOST))) == []


@pytest.mark.machine("sriov")
@pytest.mark.parametrize(("kind", "driver"), [("dummy", "dummy numdummies=0"), ("vlan", "8021q")])
def test_a_virtual_netdev_comes_home_whatever_fails(linux: LinuxMachine, kind: str, driver: str) -> None:
    run(f"modprobe {driver}")
    make_rich(linux, kind)
    _whatever_fails(linux, MEDDLINGS, STRIDE_OF_VIRTUAL)


def _whatever_fails(linux: LinuxMachine, meddlings: Sequence[Meddling], stride: int = 1) -> None:
    """Every operation of an attach fails once, or every so many and the last; some of the undo's."""
    attach = Attach(linux, "rail0")
    whole, before = FaultyKernel(attach.kernel), attach.before
    attach.do(whole)
    attach.meddle(meddlings)
    back = FaultyKernel(attach.kernel)
    assert attach.undo(back) == ()
    attach.assert_soon_home()
    for number in range(whole.operations, 0, -stride):
        attach.namespace.close()
        attach = Attach(linux, "rail0", before=before)
        crash = number == whole.operations
        faulty = FaultyKernel(attach.kernel, fail_at=number, after=not crash, crash=crash)
        with pytest.raises(CrashError if crash else NriRdmaError):
            attach.do(faulty)
        if crash:
            attach.restart()
        attach.assert_soon_home()
    for number in range(1, back.operations + 1, STRIDE):
        attach.namespace.close()
        attach = Attach(linux, "rail0", before=before)
        attach.do(attach.kernel)
        attach.meddle(meddlings)
        try:
            after, crash = bool(number & 4), bool(number & 8)
            assert attach.undo(FaultyKernel(attach.kernel, fail_at=number, after=after, crash=crash))
        except CrashError:
            attach.restart()
        attach.assert_soon_home()
    assert hostlook.difference(before, hostlook.take_settled(linux.path(HOST))) == []
    attach.namespace.close()


def _make_vf_rich(linux: LinuxMachine) -> None:
    configure(linux, RICH)
    assert sysctls.put(linux.path(HOST), RICH_SYSCTLS) == set()


@contextmanager
def given_away(name: str, linux: LinuxMachine) -> Iterator[None]:
    """A link of the machine, as rail0 of the namespace that plays the host; the RDMA device on it is made again."""
    (device,) = (it["ifname"] for it in kernel.rdma_links() if it.get("netdev") == name)
    kernel.rdma("link", "delete", device)
    run(f"ip link set {name} down")
    run(f"ip link set {name} name rail0 netns {linux.path(HOST)}")
    try:
        yield
    finally:
        linux.ip(HOST, "link set rail0 down")
        (shown,) = json.loads(linux.ip(HOST, "-j link show rail0"))
        for other in shown.get("altnames", ()):
            linux.ip(HOST, f"link property del dev rail0 altname {other}")
        linux.ip(HOST, f"link set rail0 mtu 1500 txqueuelen 1000 group default name {name} netns 1")
        run(f"ip link set {name} up")
        kernel.rdma("link", "add", device, "type", "rxe", "netdev", name)


def _machines_links() -> set[str]:
    shown = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True)
    return {link["ifname"] for link in json.loads(shown.stdout)}


@needs_movable_rxe
def test_an_rdma_device_comes_home_whatever_fails(exclusive: None, index: int) -> None:
    run(f"ip netns add {Path(POD_PATH).name}")
    try:
        _whatever_fails_with_rdma()
    finally:
        run(f"ip netns delete {Path(POD_PATH).name}")


def _whatever_fails_with_rdma() -> None:
    before = kernel.rdma_links()
    linux = LinuxKernel()
    namespace = linux.open_namespace(POD_PATH)
    record = record_of(linux, namespace, make_placed((_without_netdev(),)))
    steps = steps_of(decode_record(encode_record(record), where="memory").plan)
    whole, back = FaultyKernel(linux), FaultyKernel(linux)
    do_steps(whole, namespace, steps, SPANS)
    assert NAME not in {link["ifname"] for link in kernel.rdma_links()}
    assert undo_steps(back, namespace, steps, SPANS) == ()
    for operations, is_attach in ((whole.operations, True), (back.operations, False)):
        for number in range(1, operations + 1):
            for after in (False, True):
                faulty = FaultyKernel(linux, fail_at=number, after=after)
                if is_attach:
                    with pytest.raises(NriRdmaError):
                        do_steps(faulty, namespace, steps, SPANS)
                else:
                    do_steps(linux, namespace, steps, SPANS)
                    rename_rdma(linux, namespace, record.plan.rdma_moves[0].index, "mine")
                    assert undo_steps(faulty, namespace, steps, SPANS)
                for _ in range(2):
                    assert undo_steps(linux, namespace, steps, SPANS) == ()
                    wait_until(lambda: kernel.rdma_links() == before, f"{before}", 20)
    namespace.close()
    linux.host.close()
    assert linux.held().namespaces == 0


def _without_netdev() -> RdmaDevice:
    """Taken for an InfiniBand device, which may go without a netdev: the soft one's has to stay."""
    (device,) = (it for it in scan(Path("/sys"), Path("/dev")).devices if it.name == NAME)
    ports = tuple(replace(port, link_layer=LinkLayer.INFINIBAND) for port in device.ports)
    return replace(device, netdevs=(), ports=ports)
