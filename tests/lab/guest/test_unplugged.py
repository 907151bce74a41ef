"""A NIC that is removed from the machine while a pod has it: nothing of the pod is left, and the NIC can come again."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.machines import HOST, linux_machine
from tests.kernel.journey import Attach
from tests.lab.guest.test_nldev import run
from tests.lab.guest.test_property import given_away
from tests.rig.deadline import wait_until

pytestmark = pytest.mark.machine("small")

PCI = Path("/sys/bus/pci")


def test_a_nic_that_is_unplugged_is_lost_and_can_be_attached_when_it_is_back(tmp_path: Path) -> None:
    with linux_machine(tmp_path) as machine, given_away("eth0", machine):
        attach = Attach(machine, "rail0")
        with closing(attach.namespace):  # as in test_ethtool.py
            (move,) = attach.record.plan.moves
            function = PCI / "devices" / move.link.parent.removeprefix("pci/")
            attach.do(attach.kernel)
            (function / "remove").write_text("1")
            try:
                assert not function.exists()
                assert attach.undo(attach.kernel) == ()
                assert attach.lost == [("rail0", f"pci/{function.name} was removed from the machine")]
            finally:
                _plug_in(function)
                (name,) = (it.name for it in (function / "net").iterdir())
                run(f"ip link set {name} name rail0 netns {machine.path(HOST)}")
        again = Attach(machine, "rail0")
        with closing(again.namespace):
            again.do(again.kernel)
            again.assert_soon_home()


def _plug_in(function: Path) -> None:
    (PCI / "rescan").write_text("1")
    wait_until(lambda: list((function / "net").glob("*")), "the driver of the NIC", 20)
