"""Node descriptions, and the sysfs trees written from them, read back with plain file reads."""

from pathlib import Path

import pytest

from tests.rig.node import Node, load
from tests.rig.systree import build_tree


@pytest.fixture(scope="module", params=["eight", "sixteen", "small", "ib2", "lab-eight", "lab-sriov", "lab-small"])
def node(request: pytest.FixtureRequest) -> Node:
    return load(request.param)


@pytest.fixture(scope="module")
def tree(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The node's tree, which was moved after it had been written; for reading only."""
    work = tmp_path_factory.mktemp(node.name)
    build_tree(node, work / "before")
    return (work / "before").rename(work / "after")


def _read(path: Path) -> str:
    return path.read_text().strip()


def test_every_device_is_found_through_its_class(node: Node, tree: Path) -> None:
    classes = tree / "class"
    for device in node.rdma:
        place = classes / "infiniband" / device.name
        assert _read(place / "node_guid") == device.node_guid
        assert _read(place / "node_type") == device.node_type
        for port in device.ports:
            assert _read(place / f"ports/{port.number}/link_layer") == port.link_layer
            assert _read(place / f"ports/{port.number}/state") == port.state
            for gid in port.gids:
                assert _read(place / f"ports/{port.number}/gids/{gid.index}") == gid.gid
        if device.uverbs:
            verbs = classes / "infiniband_verbs" / device.uverbs.name
            assert _read(verbs / "dev") == device.uverbs.dev
            assert _read(verbs / "ibdev") == device.name
        for char in (*device.umad, *device.issm):
            assert _read(classes / "infiniband_mad" / char.name / "dev") == char.dev
            assert _read(classes / "infiniband_mad" / char.name / "port") == str(char.port)
    for netdev in node.netdevs:
        assert _read(classes / "net" / netdev.name / "address") == netdev.mac
        assert _read(classes / "net" / netdev.name / "type") == str(netdev.link_type)
    assert node.rdma_cm is not None
    assert _read(classes / "misc/rdma_cm/dev") == node.rdma_cm.dev


def test_a_device_with_a_function_is_below_it(node: Node, tree: Path) -> None:
    for device in node.rdma:
        place = tree / "class/infiniband" / device.name
        if device.function:
            assert (place / "device").resolve() == (tree / "bus/pci/devices" / device.function).resolve()
            netdev = node.netdev_of(device)
            assert netdev is not None
            assert (place / "device/net" / netdev.name).is_dir()
        else:
            assert not (place / "device").exists()
            assert place.resolve() == tree.resolve() / "devices/virtual/infiniband" / device.name


def test_links_are_relative_so_that_a_tree_can_be_moved(tree: Path) -> None:
    links = [path for path in tree.rglob("*") if path.is_symlink()]
    assert links
    assert all(path.exists() and not path.readlink().is_absolute() for path in links)


def test_the_kernels_namespace_mode_is_there_when_stated(node: Node, tree: Path) -> None:
    file = tree / "module/ib_core/parameters/netns_mode"
    shown = {"Y": "shared", "N": "exclusive"}[_read(file)] if file.exists() else ""
    assert shown == node.rdma_netns_mode


def test_the_eight_node_has_one_gpu_and_one_adapter_behind_each_root(eight: Path) -> None:
    roots: dict[str, list[str]] = {}
    sockets: dict[str, list[str]] = {}
    for link in (eight / "bus/pci/devices").iterdir():
        kind = _read(link / "class")
        if kind in {"0x030200", "0x020000"}:
            root = link.resolve().relative_to(eight.resolve() / "devices").parts[0]
            roots.setdefault(root, []).append(kind)
            sockets.setdefault(_read(link / "numa_node"), []).append(root)
    assert len(roots) == 8
    assert all(sorted(kinds) == ["0x020000", "0x030200"] for kinds in roots.values())
    assert {number: len(set(names)) for number, names in sockets.items()} == {"0": 4, "1": 4}


def test_a_virtual_function_and_its_physical_one_lead_to_each_other(tmp_path: Path) -> None:
    build_tree(load("lab-sriov"), tmp_path)
    functions = tmp_path / "bus/pci/devices"
    physical, virtual = functions / "0000:41:00.0", [functions / f"0000:41:10.{number}" for number in (0, 2)]
    assert [(physical / f"virtfn{number}").resolve() for number in (0, 1)] == [path.resolve() for path in virtual]
    assert {(path / "physfn").resolve() for path in virtual} == {physical.resolve()}
    assert _read(physical / "sriov_numvfs") == "2"


def test_a_simulated_netdev_has_a_device_that_is_not_on_pci(tmp_path: Path) -> None:
    build_tree(load("lab-sriov"), tmp_path)
    assert (tmp_path / "class/net/sim0/device").resolve() == tmp_path.resolve() / "devices/netdevsim1"


def test_only_netdevs_of_the_hosts_namespace_are_shown(tmp_path: Path) -> None:
    build_tree(load("small"), tmp_path, {"soft1": 9})
    assert _read(tmp_path / "class/net/soft1/ifindex") == "9"
    assert not (tmp_path / "class/net/soft0").exists()


def test_names_numbers_and_addresses_are_unique(node: Node) -> None:
    for values in (
        [device.dev for device in node.char_devices],
        [device.name for device in node.char_devices],
        [function.address for function in node.functions],
        [device.node_guid for device in node.rdma],
        [netdev.mac for netdev in node.netdevs],
        [name for netdev in node.netdevs for name in (netdev.name, *netdev.altnames)],
    ):
        assert len(values) == len(set(values))


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(TypeError, match="colour"):
        Node.parse('name = "x"\nsummary = ""\nsockets = 1\ncpus_per_socket = 1\ncolour = "red"\n')
