"""The node as a command sees it: the host's netdevs, and those that only a tree describes."""

import json
from dataclasses import replace
from pathlib import Path

from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.commands.cli.program import assert_one_error, nri_rdma


def test_netdevs_that_only_the_tree_has_are_said_to_be_so(eight: Path) -> None:
    told = " ".join(nri_rdma("inventory", "--sysfs-root", eight).stdout.split())
    assert "This host does not have rail0, rail1," in told
    assert f"shown as {eight} describes them. A daemon here would not find them." in told


def test_a_netdev_of_the_host_with_the_same_name_and_address_and_another_number_is_another_one(tmp_path: Path) -> None:
    """A rig may make the described netdevs on the host of the tests meanwhile. Every host has this one, as number 1."""
    node = load("eight")
    first, *others = node.netdevs
    lo = replace(first, name="lo", mac="00:00:00:00:00:00")
    build_tree(replace(node, netdevs=(lo, *others)), tmp_path / "sys")
    document = json.loads(nri_rdma("inventory", "--sysfs-root", tmp_path / "sys", "-o", "json").stdout)
    (shown,) = document["devices"][0]["netdevs"]
    assert (shown["name"], shown["ifindex"], shown["addresses"]) == ("lo", 100, [])


def test_a_netdev_that_nobody_has_is_said_to_be_elsewhere(tmp_path: Path) -> None:
    build_tree(load("small"), tmp_path / "sys")
    for name in ("address", "ifindex"):
        (tmp_path / "sys/class/net/soft0" / name).unlink()
    done = nri_rdma("inventory", "--sysfs-root", tmp_path / "sys")
    assert "Not on the host, so in another network namespace: soft0." in done.stdout
    assert "rxe0    none" in done.stdout


def test_a_folder_that_is_no_sysfs_is_refused(tmp_path: Path) -> None:
    assert_one_error(nri_rdma("inventory", "--sysfs-root", tmp_path), "INVENTORY", 1)
