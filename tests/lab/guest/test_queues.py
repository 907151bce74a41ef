"""Queueing disciplines that many kernels come without: the host has its own again, as `tc` shows them.

In a namespace that plays the host (tests/kernel/journey.py), as in test_property.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.machines import HOST, LinuxMachine, linux_machine
from tests.kernel.journey import Attach, add_veth
from tests.lab.guest.test_nldev import run

pytestmark = pytest.mark.machine("sriov")


@pytest.fixture
def linux(tmp_path: Path) -> Iterator[LinuxMachine]:
    with linux_machine(tmp_path) as machine:
        yield machine


@pytest.mark.parametrize(
    "qdisc",
    [
        "fq",
        "fq limit 77 flow_limit 33 quantum 3000 initial_quantum 9000 maxrate 5mbit nopacing",
        "prio",
        "prio bands 4 priomap 3 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1",
        "sfq limit 64 perturb 7 quantum 3000 divisor 512",
    ],
)
def test_a_queueing_discipline_comes_back_with_its_numbers(linux: LinuxMachine, qdisc: str) -> None:
    kind, *options = qdisc.split()
    run(f"modprobe sch_{kind}")
    add_veth(linux, "rail0")
    linux.ip(HOST, "link set rail0 up")
    linux.run(HOST, "tc", "qdisc", "add", "dev", "rail0", "root", "handle", "1:", kind, *options)
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    attach.assert_home()
