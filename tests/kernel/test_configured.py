"""A netdev with every setting that a request has, on the real kernel: whatever fails when, the host is as before, and
nothing of ours stays in the pod's namespace."""

import json

import pytest

from nri_rdma.errors import NriRdmaError
from nri_rdma.model.request import DeviceRequest
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.fakes.kernel import CrashError, FaultyKernel
from tests.kernel.journey import Attach, make_rich
from tests.rig import hostlook
from tests.unit.attach.networks import networks

pytestmark = [pytest.mark.root]
NETWORK = networks(1, vrf=False)[1]


@pytest.fixture
def host(linux: LinuxMachine) -> LinuxMachine:
    """A host with a link that has everything, and a pod with a rule and a route of its own."""
    linux.add_link("eth0", "02:11:00:00:00:50", POD)
    for command in ("link set eth0 up", "address add 192.0.2.2/24 dev eth0", "rule add pref 100 fwmark 7 lookup 100"):
        linux.ip(POD, command)
    make_rich(linux, "veth")
    return linux


def _pod_has(linux: LinuxMachine) -> tuple[frozenset[str], frozenset[str]]:
    return linux.rules(), linux.rejects()


def test_what_is_asked_for_is_there_and_everything_is_gone_again(host: LinuxMachine) -> None:
    assert isinstance(NETWORK, DeviceRequest)
    bare = _pod_has(host)
    attach = Attach(host, "rail0", network=NETWORK)
    attach.do(attach.kernel)
    rail = next(link for link in host.see(POD).values() if link.name == "rdma0")
    assert {"10.20.0.0/16 via 10.9.0.9", "10.9.0.0/24 src 10.9.0.2"} <= rail.routes
    assert "10.9.0.9 02:00:5e:10:00:01" in rail.neighbours
    rules, rejects = _pod_has(host)
    assert rules - bare[0] == {
        *(f"{version} 100: from all lookup 100" for version in (4, 6)),
        "4 100: from 10.9.0.0/16 lookup 100",
        "4 100: from 10.9.0.0/16 fwmark 0x1 lookup 100",
        *(f"{version} 101: from all iif lo lookup 254 suppress_prefixlength 0" for version in (4, 6)),
    }
    assert rejects == {"blackhole 10.60.0.0/16", "unreachable fd60::/32 metric 1024 table 100"}
    (shown,) = json.loads(host.ip(POD, "-j -d link show rdma0"))
    assert (shown["gso_max_size"], shown["gro_max_size"]) == (60000, 61000)
    assert host.feature("rdma0", "tx-tcp-segmentation", POD) == "off"
    assert host.sysctl("rdma0", "ipv4/conf/forwarding", POD) == "1"
    attach.assert_home()
    assert _pod_has(host) == bare


def test_an_attach_that_ends_anywhere_leaves_host_and_pod_as_they_were(host: LinuxMachine) -> None:
    bare = _pod_has(host)
    attach = Attach(host, "rail0", network=NETWORK)
    whole = FaultyKernel(attach.kernel)
    attach.do(whole)
    attach.assert_home()
    assert whole.operations > 20
    before = attach.before
    for number in range(1, whole.operations + 1):
        after, crash = bool(number & 1), bool(number & 2)
        attach.namespace.close()
        attach = Attach(host, "rail0", before=before, network=NETWORK)
        with pytest.raises(CrashError if crash else NriRdmaError):
            attach.do(FaultyKernel(attach.kernel, fail_at=number, after=after, crash=crash))
        if crash:
            attach.restart()
        attach.assert_soon_home()
        assert _pod_has(host) == bare, number
    assert hostlook.difference(before, hostlook.take_settled(host.path(HOST))) == []
