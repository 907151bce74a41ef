"""The central property on the real kernel: whatever fails when, undo makes the host what it was; twice is once.

Over kinds of links that have everything (journey.py), as `ip -j -d` and /proc/sys show them. The generated plans are
the fake kernel's (tests/unit/attach/test_transaction.py). NRI_RDMA_EVERY=1 has every operation fail in each kind
of link and in each way; without it each fails in one kind at least.
"""

import os
from collections.abc import Iterator

import pytest

from nri_rdma.errors import NriRdmaError
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.fakes.kernel import CrashError, FaultyKernel
from tests.kernel.journey import KINDS, Attach, add_veth, configure, make_rich
from tests.rig import hostlook
from tests.unit.attach.meddlings import MEDDLINGS

pytestmark = [pytest.mark.root]
EVERY = bool(os.environ.get("NRI_RDMA_EVERY"))
_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def host(linux: LinuxMachine, kind: str) -> LinuxMachine:
    """A host with a link that has everything, a second one, and a pod that has a link of the first one's number."""
    linux.add_link("eth0", "02:11:00:00:00:50", POD)
    make_rich(linux, kind)
    add_veth(linux, "rail1")
    configure(linux, "link set rail1 address 02:11:00:00:00:02\nlink set rail1 up\naddress add 10.8.0.1/24 dev rail1")
    return linux


def _ends(operations: int, first: int) -> Iterator[tuple[int, bool, bool]]:
    """Every operation, as the one at which all ends: before or after it took effect, by an error or by a kill. `first`
    shifts which of the four it is."""
    for number in range(1, operations + 1):
        way = (number + first) % 4
        yield number, bool(way & 1), bool(way & 2)


def _chosen(operations: int, kind: str) -> list[tuple[int, bool, bool]]:
    """Every second one, in the next kind the others."""
    if EVERY:
        return [end for first in range(4) for end in _ends(operations, first)]
    return list(_ends(operations, _KIND_NUMBERS[kind]))[_KIND_NUMBERS[kind] % 2 :: 2]


def test_an_attach_that_ends_anywhere_leaves_the_host_as_it_was(host: LinuxMachine, kind: str) -> None:
    attach = Attach(host, "rail0", "rail1")
    whole = FaultyKernel(attach.kernel)
    attach.do(whole)
    attach.assert_home()
    before = attach.before
    for number, after, crash in _chosen(whole.operations, kind):
        attach.namespace.close()
        attach = Attach(host, "rail0", "rail1", before=before)
        with pytest.raises(CrashError if crash else NriRdmaError):
            attach.do(FaultyKernel(attach.kernel, fail_at=number, after=after, crash=crash))
        if crash:
            attach.restart()
        attach.assert_soon_home()
    assert hostlook.difference(before, hostlook.take_settled(host.path(HOST))) == []


def test_an_undo_that_ends_anywhere_is_finished_by_the_next_one(host: LinuxMachine, kind: str) -> None:
    def attached(before: hostlook.Look | None = None) -> Attach:
        attach = Attach(host, "rail0", before=before)
        attach.do(attach.kernel)
        attach.meddle(MEDDLINGS)
        return attach

    attach = attached()
    whole = FaultyKernel(attach.kernel)
    assert attach.undo(whole) == ()
    attach.assert_home()
    before = attach.before
    for number, after, crash in _chosen(whole.operations, kind):
        attach.namespace.close()
        attach = attached(before)
        try:
            errors = attach.undo(FaultyKernel(attach.kernel, fail_at=number, after=after, crash=crash))
        except CrashError:
            attach.restart()
        else:
            assert errors
        attach.assert_soon_home()
    assert hostlook.difference(before, hostlook.take_settled(host.path(HOST))) == []
