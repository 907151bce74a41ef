"""What ethtool sets of a NIC on drivers for hardware, which QEMU emulates: private flags, rings, channels, coalescing.

The program `ethtool` reports the settings before, in the pod and after. A namespace plays the host
(tests/kernel/journey.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from nri_rdma.model.network import EthtoolConfig
from nri_rdma.model.request import DeviceRequest
from tests.contract.machines import HOST, POD, LinuxMachine, linux_machine
from tests.kernel.journey import Attach
from tests.lab.guest.conftest import MACHINE
from tests.lab.guest.test_property import given_away

pytestmark = pytest.mark.machine("sriov", "small")

OPTIONS = ("--show-priv-flags", "-g", "-l", "-c", "-k")


NOT_SUPPORTED = "Operation not supported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A NIC of a machine: what its host and a pod set by ethtool, and how the machine is at boot; `{}` is the netdev.

    `flags` are the private flags that a pod may ask for.
    """

    netdev: str
    usual: tuple[str, ...]
    host: tuple[str, ...]
    pod: tuple[str, ...]
    flags: tuple[tuple[str, bool], ...]


NICS = {
    "sriov": Nic(  # igb; two channels are all that it has while it has VFs
        netdev="pf0",
        usual=("-G {} rx 256 tx 256", "-C {} rx-usecs 3", "-K {} tso on"),
        host=("-G {} rx 512 tx 1024", "-C {} rx-usecs 50", "-K {} tso off"),
        pod=("-G {} rx 128 tx 128", "-C {} rx-usecs 100", "-L {} combined 1", "-K {} tso on"),
        flags=(("legacy-rx", True),),
    ),
    "small": Nic(  # e1000e, which has no channels to set
        netdev="eth0",
        usual=("-G {} rx 256 tx 256", "-C {} rx-usecs 3", "-K {} tso on"),
        host=("-G {} rx 512 tx 1024", "-C {} rx-usecs 50", "-K {} tso off"),
        pod=("-G {} rx 128 tx 128", "-C {} rx-usecs 100", "-K {} tso on"),
        flags=(),
    ),
}


@pytest.fixture
def nic() -> Nic:
    """The NIC of this machine."""
    return NICS[MACHINE]


@pytest.fixture
def linux(tmp_path: Path, nic: Nic) -> Iterator[LinuxMachine]:
    """A host that has the NIC as rail0, up, and a pod."""
    with ExitStack() as stack:
        machine = stack.enter_context(linux_machine(tmp_path))
        machine.add_link("eth0", "02:11:00:00:00:50", POD)
        stack.enter_context(given_away(nic.netdev, machine))
        machine.ip(HOST, "link set rail0 up")
        set_by_ethtool(machine, HOST, "rail0", nic.host)
        yield machine
        set_by_ethtool(machine, HOST, "rail0", nic.usual)


def set_by_ethtool(linux: LinuxMachine, place: str, name: str, commands: Sequence[str]) -> None:
    for command in commands:
        linux.run(place, "ethtool", *command.format(name).split())


def shown(linux: LinuxMachine, name: str, place: str = HOST) -> dict[str, list[str]]:
    """Return the lines that ethtool prints of a link by the option, without the first, which names the link."""
    return {option: _printed(linux, name, place, option).splitlines()[1:] for option in OPTIONS}


def _printed(linux: LinuxMachine, name: str, place: str, option: str) -> str:
    try:
        return linux.run(place, "ethtool", option, name)
    except RuntimeError as error:
        if NOT_SUPPORTED not in str(error):
            raise
        return ""


def changed(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the lines that are new, by the option."""
    found = {option: [" ".join(it.split()) for it in after[option] if it not in before[option]] for option in OPTIONS}
    return {option: lines for option, lines in found.items() if lines}


def test_what_a_pod_sets_by_ethtool_is_on_the_host_as_it_was(linux: LinuxMachine, nic: Nic) -> None:
    before = shown(linux, "rail0")
    asked = EthtoolConfig(private_flags=nic.flags)
    attach = Attach(linux, "rail0", network=DeviceRequest(name="0", where="here", ethtool=asked))
    with closing(attach.namespace):  # the machine's rdma netns cannot be set while another namespace is held
        _meet(attach, linux, nic, before)


def _meet(attach: Attach, linux: LinuxMachine, nic: Nic, before: Mapping[str, list[str]]) -> None:
    """Go into the pod, set what it sets there, and come home."""
    attach.do(attach.kernel)
    arrived = changed(before, shown(linux, "rdma0", POD))
    assert arrived == ({"--show-priv-flags": [f"{name}: on" for name, _ in nic.flags]} if nic.flags else {})
    set_by_ethtool(linux, POD, "rdma0", nic.pod)
    in_pod = changed(before, shown(linux, "rdma0", POD))
    print(in_pod)
    assert {"-g", "-c", "-k"} <= in_pod.keys()
    assert ("-l" in in_pod) == any(command.startswith("-L") for command in nic.pod)
    attach.assert_soon_home()
    assert changed(before, shown(linux, "rail0")) == {}
    assert shown(linux, "rail0") == before
