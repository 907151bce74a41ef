"""Where sysctls are written: /proc/sys/net, else a procfs of the process's own, else nowhere."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.host.netlink.links.sysctls import costs_of_return
from nri_rdma.host.netlink.namespaces import proc_sys
from nri_rdma.host.netlink.namespaces.proc_sys import NET, writable_net


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose /proc/sys is read-only."""
    fields = (4096, 4096, 0, 0, 0, 0, 0, 0, os.ST_RDONLY, 255)
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(fields))
    writable_net.cache_clear()
    yield
    writable_net.cache_clear()


def test_where_proc_sys_takes_writes_nothing_is_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_kind: bytes) -> int:
        raise AssertionError

    monkeypatch.setattr(proc_sys, "mount_unseen", never)
    assert writable_net() == NET


@pytest.mark.root
def test_a_procfs_of_its_own_shows_the_same_and_is_in_no_mount_namespace(read_only: None) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    net = writable_net()
    assert net is not None
    assert net != NET
    assert (net / "ipv4/conf/lo/forwarding").read_text() == (NET / "ipv4/conf/lo/forwarding").read_text()
    assert not os.fstatvfs(int(net.parts[4])).f_flag & os.ST_RDONLY
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert writable_net() == net


def test_where_none_may_be_mounted_every_netdev_is_unreturnable(
    read_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_kind: bytes) -> int:
        raise PermissionError

    monkeypatch.setattr(proc_sys, "mount_unseen", refused)
    assert writable_net() is None
    (reason,) = costs_of_return(False, ())
    assert reason.startswith("could not get its sysctls back: /proc/sys is read-only")
