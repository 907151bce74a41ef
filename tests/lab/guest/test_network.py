"""A netdev's configuration where the machine's own kernel may have none of it: VRFs, and features of a real driver.

On a veth, and on a virtual function of an igb, in namespaces that play host and pod (tests/kernel/journey.py): what is
asked for is there, and whatever fails when, the host is as before and nothing stays in the pod.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nri_rdma.errors import NriRdmaError
from nri_rdma.model.network import EthtoolConfig
from nri_rdma.model.request import DeviceRequest
from tests.contract.machines import HOST, POD, LinuxMachine, linux_machine
from tests.fakes.kernel import CrashError, FaultyKernel
from tests.kernel.journey import Attach, make_rich
from tests.lab.guest.test_nldev import run
from tests.lab.guest.test_property import VF, _make_vf_rich, given_away
from tests.rig import hostlook
from tests.unit.attach.networks import networks

pytestmark = pytest.mark.machine("sriov")

STRIDE = 4
"""Every so many operations fail: the machine is emulated."""


@pytest.fixture(params=["veth", "igbvf"])
def linux(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LinuxMachine]:
    """A host with a link rail0 of either kind, and a pod."""
    run("modprobe vrf")
    with ExitStack() as stack:
        machine = stack.enter_context(linux_machine(tmp_path))
        machine.add_link("eth0", "02:11:00:00:00:50", POD)
        if request.param == "veth":
            make_rich(machine, "veth")
        else:
            stack.enter_context(given_away(VF, machine))
            _make_vf_rich(machine)
        yield machine


@pytest.fixture(params=["parted", "in a VRF"])
def network(request: pytest.FixtureRequest) -> DeviceRequest:
    """What a request says of one netdev."""
    found = networks(1)[1 if request.param == "parted" else 2]
    assert found is not None
    return found


def _pod_has(linux: LinuxMachine) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    links = json.loads(linux.ip(POD, "-j link show"))
    return linux.rules(), linux.rejects(), frozenset(link["ifname"] for link in links)


def test_what_is_asked_for_is_there_and_gone_again_whatever_fails(linux: LinuxMachine, network: DeviceRequest) -> None:
    bare = _pod_has(linux)
    attach = Attach(linux, "rail0", network=network)
    whole, before = FaultyKernel(attach.kernel), attach.before
    attach.do(whole)
    (shown,) = json.loads(linux.ip(POD, "-j -d link show rdma0"))
    assert shown["gso_max_size"] == 60000
    vrf = network.interface.vrf
    table = "main" if vrf is None else str(vrf.table)
    routes = json.loads(linux.ip(POD, f"-j route show table {table}"))
    assert {"10.9.0.0/24", "10.20.0.0/16"} <= {route["dst"] for route in routes}
    if vrf is not None:
        assert shown["master"] == vrf.name
        (link,) = json.loads(linux.ip(POD, f"-j -d link show {vrf.name}"))
        assert (link["linkinfo"]["info_kind"], link["linkinfo"]["info_data"]["table"]) == ("vrf", vrf.table)
    attach.assert_soon_home()
    assert _pod_has(linux) == bare
    for number in range(whole.operations, 0, -STRIDE):
        attach.namespace.close()
        attach = Attach(linux, "rail0", before=before, network=network)
        crash = number % 8 == 0
        with pytest.raises(CrashError if crash else NriRdmaError):
            attach.do(FaultyKernel(attach.kernel, fail_at=number, after=not crash, crash=crash))
        if crash:
            attach.restart()
        attach.assert_soon_home()
        assert _pod_has(linux) == bare, number
    assert hostlook.difference(before, hostlook.take_settled(linux.path(HOST))) == []


def test_a_feature_of_the_driver_is_set_by_the_word_of_ethtool(linux: LinuxMachine) -> None:
    words = EthtoolConfig(features=(("tcp-segmentation-offload", False), ("generic-receive-offload", False)))
    attach = Attach(linux, "rail0", network=DeviceRequest(name="0", where="here", ethtool=words))
    attach.do(attach.kernel)
    for feature in ("tcp-segmentation-offload", "generic-receive-offload"):
        assert linux.feature("rdma0", feature, POD) == "off"
    attach.assert_soon_home()
