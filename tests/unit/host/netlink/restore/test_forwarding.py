"""Which of the addresses that a link listens to somebody has added."""

import errno
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.restore import forwarding
from nri_rdma.host.netlink.restore.forwarding import is_multicast, read_forwarding
from tests.unit.host.netlink.made_messages import Scripted, attribute, neighbour

GETNEIGH, AF_BRIDGE, SELF, LLADDR = 30, 7, 0x02, 2


def entry(mac: str, *, ifindex: int = 5, flags: int = SELF, state: int = 0x80) -> bytes:
    return neighbour(AF_BRIDGE, ifindex, attribute(LLADDR, bytes.fromhex(mac)), state=state, flags=flags)


@pytest.fixture
def multicasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the kernel lists the multicast addresses with their users."""
    path = tmp_path / "dev_mcast"
    path.write_text("5    rail0           1     0     33330000abcd\n5    rail0           1     1     011b19000000\n\n")
    monkeypatch.setattr(forwarding, "_MULTICASTS", path)
    return path


def macs(*entries: bytes) -> list[str]:
    return [it.text for it in read_forwarding(Scripted({GETNEIGH: [*entries]}), (5,))[5]]


def test_what_somebody_added_is_told_and_what_ip_brings_is_not(multicasts: Path) -> None:
    assert macs(entry("021122334455"), entry("011b19000000"), entry("33330000abcd"), entry("333300000001")) == [
        "forwarding 02:11:22:33:44:55",
        "forwarding 01:1b:19:00:00:00",
    ]


def test_the_kernels_list_is_read_only_where_it_is_needed(multicasts: Path) -> None:
    multicasts.unlink()
    assert macs(entry("021122334455"), entry("333300000001"), entry("01005e000001"), entry("3333ff001122")) == [
        "forwarding 02:11:22:33:44:55"
    ]
    with pytest.raises(KernelError) as caught:
        macs(entry("011b19000000"))
    assert caught.value.errno == errno.ENOENT


def test_entries_of_a_bridge_of_others_and_those_learned_are_left_out(multicasts: Path) -> None:
    assert (
        macs(entry("020000000001", flags=0x04), entry("020000000002", ifindex=6), entry("020000000003", state=2)) == []
    )


class Silent(Scripted):
    """A kernel that refuses lists."""

    def __init__(self, code: int) -> None:
        super().__init__({})
        self._code = code

    def dump(self, kind: int, body: bytes, operation: str, keep: object = None) -> list[bytes]:
        raise KernelError(operation, self._code)


def test_a_link_without_such_a_list_has_none(multicasts: Path) -> None:
    assert read_forwarding(Silent(errno.EOPNOTSUPP), (5,)) == {5: ()}
    with pytest.raises(KernelError):
        read_forwarding(Silent(errno.EPERM), (5,))


def test_a_groups_address_is_known_by_its_first_bit() -> None:
    assert is_multicast(bytes.fromhex("011b19000000"))
    assert not is_multicast(bytes.fromhex("021122334455"))
    assert not is_multicast(b"")
