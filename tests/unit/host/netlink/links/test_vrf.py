"""VRFs are made by messages of pyroute2; that the kernel takes them is for the contract suite."""

import subprocess
import sys

import pytest

from nri_rdma.attach.port import KernelError, explained
from nri_rdma.host.netlink.links.vrf import ALIAS, make_requests, table_of
from nri_rdma.wire.netlink import CREATE, EXCL, HEADER, encode_request, read_attributes
from tests.rig.descriptors import open_descriptors

_IFNAME, _LINKINFO, _IFALIAS, _INFO_KIND = 3, 18, 20, 1  # IFLA_*, include/uapi/linux/if_link.h


def test_a_vrf_is_made_with_its_number_and_table_and_then_marked_by_its_name() -> None:
    made, marked = make_requests("red", 4711, 9)
    told = dict(read_attributes(made.body[16:]))
    assert (made.kind, marked.kind) == (16, 16)  # RTM_NEWLINK
    assert (made.flags & (CREATE | EXCL), marked.flags & (CREATE | EXCL)) == (CREATE | EXCL, 0)
    assert (made.body[4:16], marked.body[4:8]) == (bytes([9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]), bytes(4))
    assert (told[_IFNAME], dict(read_attributes(told[_LINKINFO]))[_INFO_KIND]) == (b"red\0", b"vrf\0")
    assert table_of(encode_request(made.kind, 0, 1, made.body)) == 4711
    assert dict(read_attributes(marked.body[16:])) == {_IFNAME: b"red\0", _IFALIAS: ALIAS.encode() + b"\0"}
    assert {made.operation, marked.operation} == {"make VRF red"}


def test_a_link_that_is_not_told_to_have_a_table_has_table_0() -> None:
    assert table_of(encode_request(16, 0, 1, bytes(HEADER.size))) == 0


def test_without_pyroute2_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)  # as Python does where it is not installed
    with pytest.raises(KernelError, match="pyroute2 cannot be imported") as caught:
        make_requests("red", 7, 9)
    assert caught.value.operation == "make VRF red"
    assert "nri-rdma doctor" in explained(caught.value, device="mlx5_0", where="a pod").hint


def test_no_descriptor_stays_open() -> None:
    make_requests("red", 7, 9)
    before = open_descriptors()
    make_requests("red", 7, 9)
    assert open_descriptors() <= before


def test_a_daemon_loads_pyroute2_with_the_first_vrf_only() -> None:
    code = "import nri_rdma.daemon.daemon, sys; print([it for it in sys.modules if it.startswith('pyroute2')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
