from pathlib import Path

import pytest

from nri_rdma.host.sysfs.gids import read_gids
from nri_rdma.model.gid import GidType

GAP = 32
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:0200:00ff:fe00:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a01:0002"


@pytest.fixture
def port(tmp_path: Path) -> Path:
    """An Ethernet port without GIDs."""
    folder = tmp_path / "class/infiniband/mlx5_0/ports/1"
    for name in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (folder / name).mkdir(parents=True)
    (folder / "link_layer").write_text("Ethernet\n")
    return folder


def put(port: Path, index: int, value: str, kind: str = "", netdev: str = "") -> None:
    (port / f"gids/{index}").write_text(f"{value}\n")
    for name, text in (("types", kind), ("ndevs", netdev)):
        if text:
            (port / f"gid_attrs/{name}/{index}").write_text(f"{text}\n")


def read(tmp_path: Path) -> list[tuple[int, str, GidType, str]]:
    found = read_gids(str(tmp_path), "mlx5_0", 1, GAP)
    return [(it.index, str(it.address), it.type, it.netdev) for it in found or ()]


def test_entries_in_use_are_read_with_type_and_netdev_in_the_order_of_their_numbers(tmp_path: Path, port: Path) -> None:
    for index in range(12):
        put(port, index, ZERO)
    put(port, 0, LINK_LOCAL, "RoCE v1", "ens1")
    put(port, 10, MAPPED, "RoCE v2", "ens1.5")
    put(port, 2, MAPPED, "RoCE v2", "ens1")
    assert read(tmp_path) == [
        (0, "fe80::200:ff:fe00:1", GidType.ROCE_V1, "ens1"),
        (2, "10.1.0.2", GidType.ROCE_V2, "ens1"),
        (10, "10.1.0.2", GidType.ROCE_V2, "ens1.5"),
    ]


def test_an_entry_that_is_removed_while_it_is_read_is_left_out(tmp_path: Path, port: Path) -> None:
    put(port, 0, MAPPED)
    put(port, 1, MAPPED, "RoCE v2")
    assert read(tmp_path) == [(1, "10.1.0.2", GidType.ROCE_V2, "")]


@pytest.mark.parametrize(
    ("link_layer", "kind"), [("Ethernet", GidType.ROCE_V1), ("InfiniBand", GidType.IB)], ids=["Ethernet", "InfiniBand"]
)
def test_the_type_of_older_kernels_is_told_by_the_link_layer(
    tmp_path: Path, port: Path, link_layer: str, kind: GidType
) -> None:
    (port / "link_layer").write_text(link_layer)
    put(port, 0, LINK_LOCAL, "IB/RoCE v1")
    assert read(tmp_path) == [(0, "fe80::200:ff:fe00:1", kind, "")]


def test_of_infiniband_only_the_first_is_read(tmp_path: Path, port: Path) -> None:
    (port / "link_layer").write_text("InfiniBand")
    put(port, 0, LINK_LOCAL, "IB")
    put(port, 1, LINK_LOCAL, "IB")
    assert read(tmp_path) == [(0, "fe80::200:ff:fe00:1", GidType.IB, "")]


def test_a_long_gap_is_the_end_of_a_table(tmp_path: Path, port: Path) -> None:
    for index in range(2 * GAP + 2):
        put(port, index, ZERO)
    put(port, GAP - 1, MAPPED, "RoCE v2")
    put(port, 2 * GAP + 1, MAPPED, "RoCE v2")
    assert [row[0] for row in read(tmp_path)] == [GAP - 1]


def test_a_port_without_a_table_is_not_one_without_gids(tmp_path: Path, port: Path) -> None:
    assert read_gids(str(tmp_path), "mlx5_0", 1, GAP) is None
    put(port, 0, ZERO)
    assert read_gids(str(tmp_path), "mlx5_0", 1, GAP) == ()
    assert read_gids(str(tmp_path), "mlx5_9", 1, GAP) is None
