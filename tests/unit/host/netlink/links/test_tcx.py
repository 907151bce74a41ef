"""Programs of TCX follow a link through namespaces, until they are detached."""

import errno

import pytest

from nri_rdma.attach.ops import DetachTcx
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links.tcx import programs_of
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.netlink.namespaces.namespace import inside
from nri_rdma.model.device import EbpfPrograms
from tests.contract.machines import POD, LinuxMachine
from tests.kernel.journey import Attach
from tests.rig import ebpf
from tests.rig.linkops import apply

pytestmark = pytest.mark.root


@pytest.fixture
def rail(linux: LinuxMachine) -> int:
    """A link of the host with a program of each direction, one of them held by an eBPF link."""
    rail = linux.add_link("rail0", "02:11:00:00:00:01")
    try:
        program = ebpf.load()
    except OSError as error:
        pytest.skip(f"no eBPF here: {error}")

    def attach(_route: object) -> int:
        ebpf.attach_tcx(rail, program)
        return ebpf.link_tcx(rail, program)

    try:
        inside(linux.kernel.host, "attach", attach)
    except (OSError, KernelError) as error:
        if error.errno == errno.EINVAL:
            pytest.skip("this kernel has no TCX")
        raise
    return rail


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
    own = ebpf.load()
    inside(attach.namespace, "attach", lambda _route: ebpf.attach_tcx(move.pod_ifindex, own))
    assert _count(linux, POD, move.pod_ifindex) == 3
    attach.assert_home()
    assert _ids(linux, "host", rail) == hosts


def test_the_programs_of_the_hosts_links_have_their_names(linux: LinuxMachine, rail: int) -> None:
    """Nobody has named those of `rail`; the other link has a named one, and no longer when that is detached."""
    kernel, other = linux.kernel, linux.add_link("rail1", "02:11:00:00:00:02")
    assert isinstance(kernel, LinuxKernel)
    assert kernel.programs((rail, other, 999)) == {rail: EbpfPrograms(tcx=("",))}
    named = ebpf.load("handle_ingress")
    inside(kernel.host, "attach", lambda _route: ebpf.attach_tcx(other, named))
    assert kernel.programs((other,)) == {other: EbpfPrograms(tcx=("handle_ingress",))}
    assert kernel.host_use(("rail1",)).programs == {other: EbpfPrograms(tcx=("handle_ingress",))}
    apply(kernel, kernel.host, other, DetachTcx())
    assert kernel.programs((other,)) == {}


def test_filters_of_tc_do_not_come_along(linux: LinuxMachine) -> None:
    kernel, rail = linux.kernel, linux.add_link("rail0", "02:11:00:00:00:01")
    linux.run("host", "tc", "qdisc", "add", "dev", "rail0", "clsact")
    pod = kernel.open_namespace(linux.pod_path)
    kernel.move_link(kernel.host, rail, pod, "rdma0", as_ifindex=rail)
    assert "clsact" not in linux.run(POD, "tc", "qdisc", "show", "dev", "rdma0")
