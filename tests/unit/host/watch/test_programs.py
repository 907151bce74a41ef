"""eBPF programs that came to netdevs or went are noticed, and what keeps us from seeing them is said once."""

import errno
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.watch.programs import ProgramNews
from nri_rdma.model.device import EbpfPrograms, RdmaDevice
from tests.unit.rigs.attachments import make_world, placed_on

NONE, GUARD, SHAPER = EbpfPrograms(), EbpfPrograms(tcx=("guard",)), EbpfPrograms(tcx=("shaper",))


class Links:
    """The programs on links; an error while they cannot be seen."""

    def __init__(self) -> None:
        self.programs: dict[int, EbpfPrograms] = {}
        self.error: KernelError | None = None

    def read(self, ifindexes: Collection[int]) -> Mapping[int, EbpfPrograms]:
        if self.error is not None:
            raise self.error
        return {ifindex: it for ifindex, it in self.programs.items() if ifindex in ifindexes}


def device(programs: EbpfPrograms = NONE) -> RdmaDevice:
    """One with a netdev that had these programs when the node was read."""
    (placed,) = placed_on(make_world(), "rail0")
    (one,) = placed.devices
    (netdev,) = one.netdevs
    return replace(one, netdevs=(replace(netdev, programs=programs),))


@pytest.mark.parametrize(
    ("before", "now", "is_new"),
    [
        (NONE, NONE, False),
        (NONE, GUARD, True),
        (GUARD, GUARD, False),
        (GUARD, SHAPER, True),
        (GUARD, NONE, True),
    ],
)
def test_other_programs_than_at_the_last_reading_are_news(
    before: EbpfPrograms, now: EbpfPrograms, is_new: bool
) -> None:
    one, links = device(before), Links()
    ifindex = one.netdevs[0].ifindex
    links.programs = {ifindex: now} if now.are_there else {}
    links.programs[ifindex + 1] = GUARD  # a link that is not asked about
    assert ProgramNews(links.read).are_there([one], [ifindex]) is is_new


def test_that_they_cannot_be_seen_is_logged_once_until_they_can(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    links = Links()
    news = ProgramNews(links.read)
    first, other = KernelError("list queues", errno.EOPNOTSUPP), KernelError("list queues", errno.EAGAIN)
    for links.error in (first, first, other, None, other):
        assert not news.are_there([device()], [7])
    assert [record.__dict__["error"] for record in caplog.records] == [str(first), str(other), str(other)]
