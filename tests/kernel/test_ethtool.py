"""Features and channels of netdevs on this kernel, beside what `ethtool` shows."""

import json
import logging
from dataclasses import replace

import pytest

from nri_rdma.attach.plan import Plan
from nri_rdma.model.link import features_of
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.kernel.journey import Attach, add_veth
from tests.rig import hostlook
from tests.rig.linkops import capture

pytestmark = pytest.mark.root

ETHTOOL_NAMES = {
    "rx-checksum": "rx-checksumming",
    "rx-gro": "generic-receive-offload",
    "rx-lro": "large-receive-offload",
    "rx-vlan-hw-parse": "rx-vlan-offload",
    "tx-generic-segmentation": "generic-segmentation-offload",
    "tx-vlan-hw-insert": "tx-vlan-offload",
}
"""What `ethtool` calls features that were there before the kernel named them."""


@pytest.fixture
def rail(linux: LinuxMachine) -> LinuxMachine:
    add_veth(linux, "rail0")
    return linux


def _set(linux: LinuxMachine, place: str, name: str, *pairs: str) -> None:
    linux.run(place, "ethtool", "-K", name, *pairs)


def _features(linux: LinuxMachine, place: str, name: str) -> dict[str, dict[str, bool]]:
    """What `ethtool -k` shows: active, fixed and requested, by feature."""
    (shown,) = json.loads(linux.run(place, "ethtool", "--json", "-k", name))
    return {feature: state for feature, state in shown.items() if isinstance(state, dict)}


def test_every_feature_that_can_be_changed_is_told_as_it_is_wanted(rail: LinuxMachine) -> None:
    _set(rail, HOST, "rail0", "tx-checksum-ip-generic", "off", "tx-nocache-copy", "on")
    ifindex = next(number for number, link in rail.see().items() if link.name == "rail0")
    shown = _features(rail, HOST, "rail0")
    changeable = {name: state["requested"] for name, state in shown.items() if state["fixed"] is False}
    told = features_of(capture(rail.kernel, rail.kernel.host, ifindex).features)
    assert len(told) > 10
    assert {ETHTOOL_NAMES.get(name, name): on for name, on in told.items()} == changeable


def test_what_the_host_had_set_is_there_again_whatever_the_pod_set(rail: LinuxMachine) -> None:
    _set(rail, HOST, "rail0", "tx-tcp-segmentation", "off", "tx-nocache-copy", "on")
    before = _features(rail, HOST, "rail0")
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    assert _features(rail, POD, "rdma0") == before
    _set(rail, POD, "rdma0", "tx", "off", "gro", "off", "gso", "off", "tx-nocache-copy", "off")
    assert _features(rail, POD, "rdma0") != before
    attach.assert_home()
    assert _features(rail, HOST, "rail0") == before


@pytest.mark.parametrize(("before", "pods"), [("1", "2"), ("2", "1")])
def test_channels_that_the_pod_changed_are_what_they_were(rail: LinuxMachine, before: str, pods: str) -> None:
    rail.run(HOST, "ethtool", "-L", "rail0", "rx", before)
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    rail.run(POD, "ethtool", "-L", "rdma0", "rx", pods, "tx", "2")
    attach.assert_home()


def test_what_the_driver_does_not_take_back_is_told_and_not_tried_again(
    rail: LinuxMachine, caplog: pytest.LogCaptureFixture
) -> None:
    """More channels than the driver has: as on a host whose driver has been replaced meanwhile."""
    attach = Attach(rail, "rail0")
    (move,) = attach.record.plan.moves
    wanted = replace(move.link, tuning="channels rx 4711\nchannels tx 1")
    attach.record = replace(attach.record, plan=Plan(moves=(replace(move, link=wanted),)))
    attach.do(attach.kernel)
    with caplog.at_level(logging.WARNING):
        assert attach.undo(attach.kernel) == ()
    (line,) = (it for it in caplog.records if it.getMessage() == "the driver's settings are not what the host had")
    assert vars(line)["what"] == ("channels rx 1 (was 4711)",)
    assert "EINVAL" in vars(line)["refused"][0]
    assert hostlook.difference(attach.before, hostlook.take_settled(rail.path(HOST))) == []
