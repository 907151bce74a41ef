"""A device may go between the list of devices and the question for its ports."""

import errno

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket, read_netdevs
from nri_rdma.model.nldev import RdmaDeviceState, RdmaPortState


class Changing(RdmaSocket):
    """A kernel with these devices, of which one goes (or breaks) when its ports are asked for. It has no socket."""

    def __init__(self, *names: str, going: str = "", broken: str = "") -> None:
        self._names = list(names)
        self._going, self._broken = going, broken

    @property
    def has_subsystem(self) -> bool:
        return True

    def devices(self) -> tuple[RdmaDeviceState, ...]:
        return tuple(RdmaDeviceState(index=int(name[-1]), name=name, node_guid="") for name in self._names)

    def ports(self, index: int) -> tuple[RdmaPortState, ...]:
        name = next(name for name in self._names if int(name[-1]) == index)
        if name == self._going:
            self._names.remove(name)
        if name in {self._going, self._broken}:
            raise KernelError(f"list ports of RDMA device {index}", errno.EINVAL)
        return (
            RdmaPortState(
                netdev_index=10 + index,
                netdev_name=f"eth{index}",
            ),
        )


def test_a_device_that_went_meanwhile_is_left_out() -> None:
    found = read_netdevs(Changing("rxe0", "rxe1", "rxe2", going="rxe1"))
    assert found is not None
    assert [(it.name, it.ifindexes) for it in found] == [("rxe0", (10,)), ("rxe2", (12,))]


def test_the_same_answer_for_a_device_that_is_still_there_is_an_error() -> None:
    with pytest.raises(KernelError) as caught:
        read_netdevs(Changing("rxe0", "rxe1", broken="rxe1"))
    assert caught.value.errno == errno.EINVAL
