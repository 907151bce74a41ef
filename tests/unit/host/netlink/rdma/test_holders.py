"""Who holds what on RDMA devices, as the kernel lists it. This machine has none: what it would say is scripted."""

import errno
import os
from pathlib import Path

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.rdma.holders import read_holders
from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket
from nri_rdma.model.nldev import ObjectKind, RdmaDeviceState, RdmaObject


class Kernel(RdmaSocket):
    """Three RDMA devices, of which one is gone as soon as it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[int] = {2}
        self.pid = os.getpid()

    def devices(self) -> tuple[RdmaDeviceState, ...]:
        return tuple(RdmaDeviceState(index=index, name=f"mlx5_{index}", node_guid="") for index in (1, 2, 3))

    def objects(self, index: int, kind: ObjectKind) -> tuple[RdmaObject, ...]:
        if index in self.gone:
            raise KernelError(f"list the {kind} objects of RDMA device {index}", errno.EINVAL)
        return (RdmaObject(kind=kind, kernel_user="", pid=self.pid),)

    def kernel_objects(self, index: int, kind: ObjectKind) -> tuple[RdmaObject, ...]:
        return (RdmaObject(kind=kind, kernel_user="nvme_rdma", pid=None),) if index == 3 else ()


def test_a_device_that_goes_while_it_is_asked_about_is_left_out() -> None:
    with Kernel() as kernel:
        assert list(read_holders(kernel)) == [1, 3]


def test_processes_are_told_by_name_and_kernel_users_by_what_they_hold() -> None:
    with Kernel() as kernel:
        (context, *of_kernel) = read_holders(kernel)[3]
    assert (context.pid, context.process) == (os.getpid(), Path("/proc/self/comm").read_text().strip())
    assert [(item.kernel_user, item.kind) for item in of_kernel] == [
        ("nvme_rdma", kind) for kind in (ObjectKind.QP, ObjectKind.CM_ID, ObjectKind.MR)
    ]


def test_a_process_that_has_ended_has_no_name() -> None:
    with Kernel() as kernel:
        kernel.pid = 2**22 + 1  # more than Linux gives
        assert read_holders(kernel)[1][0].process == ""
