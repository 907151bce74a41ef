"""What `nri-rdma inventory` tells of a machine."""

import json
from pathlib import Path

import pytest

from nri_rdma.doors.control.node_document import node_from
from nri_rdma.model.device import LinkLayer
from tests.rig.node import load
from tests.rig.systree import build_proc, build_tree
from tests.unit.commands.cli.program import nri_rdma


def test_devices_are_shown_with_place_netdev_and_nodes(eight: Path, tmp_path: Path) -> None:
    build_proc(load("eight"), tmp_path)
    done = nri_rdma("inventory", "--sysfs-root", eight, "--proc-root", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "mlx5_2  0000:62:00.0  pci0000:60  0     Ethernet  400G   ACTIVE  no" in lines
    assert "mlx5_2  rail2   b8:3f:d2:00:10:02  9000  up    umad2 231:2, uverbs2 231:194" in lines
    assert f"0000:61:00.0  pci0000:60  0     10de    {load('eight').gpus[2].uuid}" in lines
    assert max(map(len, lines)) <= 80


def test_a_gpu_without_a_uuid_is_shown_with_its_nodes(eight: Path, tmp_path: Path) -> None:
    done = nri_rdma("inventory", "--sysfs-root", eight, "--proc-root", tmp_path)
    assert "0000:61:00.0  pci0000:60  0     10de    card3, renderD130" in done.stdout.splitlines()


def test_a_machine_without_rdma_says_so(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    done = nri_rdma("inventory", "--sysfs-root", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("This machine has no RDMA device")


@pytest.mark.parametrize("name", ["eight", "ib2", "lab-sriov"])
def test_the_document_holds_the_whole_node(name: str, tmp_path: Path) -> None:
    description = load(name)
    build_tree(description, tmp_path / "sys")
    document = json.loads(nri_rdma("inventory", "--sysfs-root", tmp_path / "sys", "-o", "json").stdout)
    node = node_from(document)
    assert [device.name for device in node.devices] == [device.name for device in description.rdma]
    assert [netdev.mac for device in node.devices for netdev in device.netdevs] == [
        netdev.mac for netdev in description.netdevs
    ]
    assert {device.link_layer for device in node.devices} <= set(LinkLayer)


def test_ipoib_addresses_do_not_burst_a_narrow_terminal(tmp_path: Path) -> None:
    build_tree(load("ib2"), tmp_path / "sys")
    done = nri_rdma("inventory", "--sysfs-root", tmp_path / "sys")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "..0c:42:a1:03:00:65:a0:00" in done.stdout


def test_a_name_cannot_command_the_terminal(own_eight: Path) -> None:
    (own_eight / "class/infiniband/mlx5_0/ports/1/state").write_text("4: \x1b[2JACTIVE\n")
    done = nri_rdma("inventory", "--sysfs-root", own_eight)
    assert "\x1b" not in done.stdout
    assert "\\x1b[2JACTIVE" in done.stdout


def test_a_terminal_without_unicode_is_no_error(own_eight: Path) -> None:
    (own_eight / "class/infiniband/mlx5_0/ports/1/state").write_text("4: ÄKTIV\n")
    done = nri_rdma("inventory", "--sysfs-root", own_eight, encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\xc4KTIV" in done.stdout
