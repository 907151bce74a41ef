"""Requests of the whole grammar on the real kernel: whatever fails when, the host is as before, and nothing of ours
stays in the pod's namespace.

The requests have every key between them that this kernel and a veth can have; the fake kernel's are many more
(tests/unit/attach/test_transaction.py). Equal is what `ip -d -j`, `tc -j`, `bridge -j fdb`, ethtool and /proc/sys show.
Each second operation fails with one netdev and each fifth with two, others in the next request; with NRI_RDMA_EVERY=1
every one.
"""

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from nri_rdma.errors import NriRdmaError
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.fakes.kernel import CrashError, FaultyKernel
from tests.kernel.journey import Attach, add_veth, configure, make_rich
from tests.rig import hostlook
from tests.unit.attach.grammar import Abilities, covering, keys_of, keys_of_schema, read

pytestmark = [pytest.mark.root]
EVERY = bool(os.environ.get("NRI_RDMA_EVERY"))


def _has_vrf() -> bool:
    made = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "red", "type", "vrf", "table", "7"], capture_output=True, check=False
    )
    return made.returncode == 0


CAN = Abilities(features=("tx-tcp-segmentation", "tso"), vrf=_has_vrf())
LACKING = {"ethtool.privateFlags", *(() if CAN.vrf else ("interface.vrf", "interface.vrf.name", "interface.vrf.table"))}
"""Keys that a veth cannot have, or this kernel."""
_STEPS = {1: 2, 2: 5}
COVERING = {devices: covering(devices, CAN) for devices in (1, 2)}


@pytest.fixture
def host(linux: LinuxMachine) -> LinuxMachine:
    """A host with a link that has everything and a second one, and a pod with a rule and a route of its own."""
    linux.add_link("eth0", "02:11:00:00:00:50", POD)
    for command in ("link set eth0 up", "address add 192.0.2.2/24 dev eth0", "rule add pref 99 fwmark 7 lookup 100"):
        linux.ip(POD, command)
    make_rich(linux, "veth")
    add_veth(linux, "rail1")
    configure(linux, "link set rail1 address 02:11:00:00:00:02\nlink set rail1 up\naddress add 10.8.0.1/24 dev rail1")
    return linux


@pytest.fixture(scope="module", autouse=True)
def _tally(request: pytest.FixtureRequest) -> Iterator[None]:
    _ATTACHES.clear()
    yield
    keys = {key for devices in COVERING for asked in COVERING[devices] for key in keys_of(asked)}
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(
            f"\n{len(_ATTACHES)} attaches that failed, of {sum(map(len, COVERING.values()))} requests, {len(keys)} keys"
        )


_ATTACHES: list[int] = []


def test_the_requests_have_every_key() -> None:
    for requests in COVERING.values():
        keys = {key for asked in requests for key in keys_of(asked)}
        assert keys_of_schema() - keys == LACKING


@pytest.mark.parametrize(
    ("devices", "number"), [(devices, number) for devices, found in COVERING.items() for number in range(len(found))]
)
def test_an_attach_that_ends_anywhere_leaves_host_and_pod_as_they_were(
    host: LinuxMachine, devices: int, number: int
) -> None:
    network = read(COVERING[devices][number])
    names = ("rail0", "rail1")[:devices]
    bare = _of_pod(host)
    attach = Attach(host, *names, mtu=None, network=network)
    whole = FaultyKernel(attach.kernel)
    attach.do(whole)
    attach.assert_home()
    before = attach.before
    step = 1 if EVERY else _STEPS[devices]
    for failing in range(1 + number % step, whole.operations + 1, step):
        after, crash = bool(failing & 1), bool(failing & 2)
        attach.namespace.close()
        attach = Attach(host, *names, before=before, mtu=None, network=network)
        with pytest.raises(CrashError if crash else NriRdmaError):
            attach.do(FaultyKernel(attach.kernel, fail_at=failing, after=after, crash=crash))
        if crash:
            attach.restart()
        attach.assert_soon_home()
        assert _of_pod(host) == bare, failing
        _ATTACHES.append(failing)
    assert hostlook.difference(before, hostlook.take_settled(host.path(HOST))) == []


def _of_pod(linux: LinuxMachine) -> object:
    """What is in the pod's namespace when no netdev is: its rules and all its routes but the learned ones, and its
    links."""
    links = {it["ifname"] for it in json.loads(linux.ip(POD, "-j link show"))}
    return linux.rules(), linux.rejects(), links
