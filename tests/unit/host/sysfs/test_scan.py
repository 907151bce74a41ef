"""The scan of a tree against the description that the tree was made from, and of trees that are odd or broken."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.errors import InventoryError
from nri_rdma.host.sysfs.scan import other_ports, read_char_devices, scan
from nri_rdma.model.device import CharKind, LinkLayer, RdmaDevice, RdmaNetns, Scan, VirtualFunction
from tests.rig import node as description
from tests.rig.systree import build_proc, build_tree

Scanned = Callable[[description.Node], Scan]
NODES = ("eight", "sixteen", "small", "ib2", "vf8", "lab-eight", "lab-sriov", "lab-small")
GPU_CLASSES = ("0x0302", "0x0380", "0x1200")
NETNS = {"shared": RdmaNetns.SHARED, "exclusive": RdmaNetns.EXCLUSIVE, "": RdmaNetns.NONE}


@pytest.fixture(params=NODES)
def node(request: pytest.FixtureRequest) -> description.Node:
    return description.load(request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The tree of the node "two", to be broken."""
    build_tree(description.load("two"), tmp_path / "sys")
    return tmp_path / "sys"


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Scanned:
    """The scan of a node's tree. Each is made once, and nobody changes it."""
    found: dict[str, Scan] = {}

    def of(node: description.Node) -> Scan:
        if node.name not in found:
            found[node.name] = _scan(node, tmp_path_factory.mktemp(node.name))
        return found[node.name]

    return of


def _scan(node: description.Node, tmp_path: Path) -> Scan:
    build_tree(node, tmp_path / "sys")
    build_proc(node, tmp_path / "proc")
    return scan(tmp_path / "sys", tmp_path / "dev", tmp_path / "proc")


def _functions(node: description.Node) -> dict[str, description.Function]:
    return {function.address: function for function in node.functions}


def _root_of(node: description.Node, address: str) -> str:
    while address in _functions(node):
        address = _functions(node)[address].under
    return address


def test_a_device_that_goes_while_it_is_read_is_left_out(tree: Path) -> None:
    """Its entry is listed, and leads nowhere by then."""
    shutil.rmtree(_first(tree).resolve())
    found = scan(tree, tree)
    assert [device.name for device in found.devices] == ["mlx5_1"]
    assert set(found.netdev_names) == {device.id for device in found.devices}


def test_every_rdma_device_is_found_as_it_is_described(node: description.Node, scanned: Scanned) -> None:
    found = {device.name: device for device in scanned(node).devices}
    assert list(found) == [device.name for device in node.rdma]
    for index, expected in enumerate(node.rdma):
        device = found[expected.name]
        assert (device.index, device.node_guid) == (index, expected.node_guid)
        assert device.node_type == expected.node_type.split(": ")[1]
        assert [(port.number, port.link_layer, port.state) for port in device.ports] == [
            (port.number, port.link_layer, port.state.split(": ")[1]) for port in expected.ports
        ]
        assert [port.speed_gbps for port in device.ports] == [
            int(float(port.rate.split()[0])) for port in expected.ports
        ]


def test_character_devices_have_their_numbers_and_the_modes_of_udev(node: description.Node, scanned: Scanned) -> None:
    found = scanned(node)
    for device, expected in zip(found.devices, node.rdma, strict=True):
        assert {(char.path, f"{char.major}:{char.minor}", char.mode) for char in device.char_devices} == {
            (f"/dev/infiniband/{char.name}", char.dev, char.mode) for char in expected.char_devices
        }
        assert all(char.path.removeprefix("/dev/infiniband/").startswith(char.kind) for char in device.char_devices)
    assert (found.rdma_cm is None) == (node.rdma_cm is None)
    if found.rdma_cm is not None and node.rdma_cm is not None:
        assert (found.rdma_cm.kind, f"{found.rdma_cm.major}:{found.rdma_cm.minor}") == (
            CharKind.RDMA_CM,
            node.rdma_cm.dev,
        )


def test_places_are_the_described_ones_also_of_devices_that_only_their_netdev_places(
    node: description.Node, scanned: Scanned
) -> None:
    found = scanned(node)
    for device, expected in zip(found.devices, node.rdma, strict=True):
        netdev = node.netdev_of(expected)
        address = expected.function or (netdev.function if netdev else "")
        assert device.id == (expected.function or expected.name)
        assert str(device.pci or "") == expected.function
        if address:
            function = _functions(node)[address]
            assert (device.pci_root, device.pci_path[-1]) == (_root_of(node, address), address)
            assert device.numa_node == (function.numa_node if function.numa_node >= 0 else None)
        if expected.function:
            function = _functions(node)[expected.function]
            assert (device.driver, f"0x{device.vendor}") == (function.driver, function.vendor)
            assert (f"0x{device.device_id}", device.vf_count) == (function.device, function.sriov_numvfs)
            assert (device.subsystem, device.max_vf_count) == ("0001", function.sriov_totalvfs)


def test_virtual_functions_know_their_physical_one_and_their_number(tmp_path: Path) -> None:
    found = {device.name: device for device in _scan(description.load("vf8"), tmp_path).devices}
    physical = found.pop("mlx5_0")
    assert (found.pop("bnxt_re0").virtual, physical.virtual, physical.vf_count) == (None, None, 8)
    assert physical.pci is not None
    assert [device.virtual for device in found.values()] == [
        VirtualFunction(pf=physical.pci, number=number, pf_netdevs=("ens1f0",)) for number in range(8)
    ]


def test_an_infiniband_port_has_the_partitions_of_its_table(tmp_path: Path) -> None:
    adapters = description.load("ib2")
    port = replace(adapters.rdma[0].ports[0], pkeys=("0xffff", "0x0000", "0x8001"))
    first = replace(adapters.rdma[0], ports=(port,))
    found = _scan(replace(adapters, rdma=(first, *adapters.rdma[1:])), tmp_path).devices
    assert [device.ports[0].pkeys for device in found] == [(0xFFFF, 0x8001), (0xFFFF,)]


def test_a_port_whose_state_has_changed_is_noticed_and_a_device_that_is_gone_is_none(tmp_path: Path) -> None:
    """An HCA without an IPoIB netdev stays ACTIVE for us when its cable is pulled: the kernel gives no news of it."""
    devices = _scan(description.load("ib2"), tmp_path).devices
    folder = tmp_path / "sys/class/infiniband" / devices[0].name
    assert not other_ports(tmp_path / "sys", devices)
    (folder / "ports/1/state").write_text("1: DOWN\n")
    assert other_ports(tmp_path / "sys", devices)
    assert not other_ports(tmp_path / "sys", devices[1:])
    (folder / "ports/1/state").unlink()
    assert not other_ports(tmp_path / "sys", devices)


def test_an_ethernet_port_is_in_no_partition(tree: Path, tmp_path: Path) -> None:
    assert {port.pkeys for device in scan(tree, tmp_path).devices for port in device.ports} == {()}


def test_netdevs_are_the_described_ones(node: description.Node, scanned: Scanned) -> None:
    found = scanned(node)
    for device, expected in zip(found.devices, node.rdma, strict=True):
        netdev = node.netdev_of(expected)
        assert found.netdev_names[device.id] == ((netdev.name,) if netdev else ())


def test_gpus_and_the_namespace_mode_are_the_described_ones(node: description.Node, scanned: Scanned) -> None:
    found = scanned(node)
    expected = [function for function in node.functions if function.pci_class.startswith(GPU_CLASSES)]
    assert [(str(gpu.pci), gpu.pci_root, gpu.numa_node) for gpu in found.gpus] == [
        (function.address, _root_of(node, function.address), function.numa_node) for function in expected
    ]
    assert found.rdma_netns is NETNS[node.rdma_netns_mode]
    assert [(it.number, it.cpus) for it in found.numa_nodes] == [
        (number, ((number * node.cpus_per_socket, (number + 1) * node.cpus_per_socket - 1),))
        for number in range(node.sockets)
    ]


def test_gpus_have_the_names_and_numbers_that_their_drivers_tell(node: description.Node, scanned: Scanned) -> None:
    told = {gpu.function: gpu for gpu in node.gpus}
    for gpu in scanned(node).gpus:
        expected = told.get(str(gpu.pci), description.Gpu(function=""))
        nvidia = [(f"nvidia{expected.minor}", f"195:{expected.minor}")] if expected.minor >= 0 else []
        nodes = [*nvidia, *((char.name, char.dev) for char in (*expected.drm, *expected.accel))]
        assert gpu.uuid == expected.uuid
        assert list(zip(gpu.node_names, (f"{major}:{minor}" for major, minor in gpu.nodes), strict=True)) == nodes


def test_node_modes_are_those_of_the_nodes_there_are(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    file = tmp_path / "dev/infiniband/uverbs0"
    file.touch()
    file.chmod(0o640)
    device = scan(tree, tmp_path / "dev").devices[0]
    assert [char.mode for char in device.char_devices if char.path.endswith("uverbs0")] == [0o640]


def test_a_folder_that_is_no_sysfs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InventoryError):
        scan(tmp_path, tmp_path)


# Odd and broken trees: one bad attribute costs itself, never the node.


def _verbs(device: RdmaDevice) -> str:
    """The path of a device's uverbs."""
    (path,) = [char.path for char in device.char_devices if char.kind is CharKind.UVERBS]
    return path


def _first(tree: Path) -> Path:
    return min((tree / "class/infiniband").iterdir(), key=lambda path: path.name)


def _unreadable(path: Path) -> None:
    """Reading it is an error, for root too."""
    path.unlink()
    path.mkdir()


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\0garbage\n")


def _absent(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [_unreadable, _garbage, _absent])
@pytest.mark.parametrize(
    "attribute",
    [
        "node_guid",
        "node_type",
        "ports/1/state",
        "ports/1/rate",
        "ports/1/link_layer",
        "ports/1/gid_attrs/ndevs/0",
        "device/numa_node",
        "device/vendor",
    ],
)
def test_a_spoilt_attribute_costs_only_itself(tree: Path, attribute: str, spoil: Callable[[Path], None]) -> None:
    sound = scan(tree, tree)
    spoil(_first(tree) / attribute)
    found = scan(tree, tree)
    assert [device.name for device in found.devices] == [device.name for device in sound.devices]
    assert found.devices[1:] == sound.devices[1:]
    assert found.devices[0].char_devices == sound.devices[0].char_devices


@pytest.mark.parametrize("spoil", [_unreadable, _garbage, _absent])
def test_a_character_device_without_numbers_is_none(tree: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tree / "class/infiniband_verbs/uverbs0/dev")
    assert [char.path for char in scan(tree, tree).devices[0].char_devices if "uverbs" in char.path] == []


def test_a_link_layer_that_is_unknown_is_not_infiniband(tree: Path) -> None:
    (_first(tree) / "ports/1/link_layer").write_text("Unknown\n")
    assert scan(tree, tree).devices[0].link_layer is LinkLayer.ETHERNET


def test_a_machine_of_one_node_has_no_numa_node(tree: Path) -> None:
    (_first(tree) / "device/numa_node").write_text("-1\n")
    assert scan(tree, tree).devices[0].numa_node is None


def test_without_rdma_there_are_no_devices(tmp_path: Path) -> None:
    found = _scan(replace(description.load("eight"), rdma=(), rdma_cm=None, rdma_netns_mode=""), tmp_path)
    assert (found.devices, found.rdma_cm, found.rdma_netns) == ((), None, RdmaNetns.NONE)
    assert len(found.gpus) == 8


def _netdev(function: Path, name: str, **attributes: object) -> None:
    folder = function / "net" / name
    folder.mkdir(parents=True)
    for key, value in attributes.items():
        (folder / key).write_text(f"{value}\n")


def _function(tree: Path) -> Path:
    return (_first(tree) / "device").resolve()


def _names(tree: Path) -> tuple[str, ...]:
    found = scan(tree, tree)
    return found.netdev_names[found.devices[0].id]


def test_an_ipoib_device_with_two_ports_has_two_netdevs_in_the_order_of_the_ports(tree: Path) -> None:
    first = _first(tree)
    shutil.copytree(first / "ports/1", first / "ports/2")
    for port in ("1", "2"):
        shutil.rmtree(first / "ports" / port / "gid_attrs")
    shutil.rmtree(_function(tree) / "net")
    _netdev(_function(tree), "ib_a", dev_port=1)
    _netdev(_function(tree), "ib_b", dev_port=0)
    assert [port.number for port in scan(tree, tree).devices[0].ports] == [1, 2]
    assert _names(tree) == ("ib_b", "ib_a")


def test_representors_of_a_switch_are_not_the_functions_own_netdevs(tree: Path) -> None:
    own = _names(tree)
    _netdev(_function(tree), "eth0_0", phys_port_name="pf0vf0")
    _netdev(_function(tree), "eth0_1", phys_port_name="c1pf0sf3")
    assert _names(tree) == own


def test_several_devices_on_one_function_are_told_apart_and_share_no_netdev(tree: Path) -> None:
    first = _first(tree)
    real = first.resolve()
    twin = real.parent / "mlx5_bond"
    shutil.copytree(real, twin, symlinks=True)
    (tree / "class/infiniband/mlx5_bond").symlink_to(twin)
    for gid in (twin / "ports/1/gid_attrs/ndevs").iterdir():
        gid.unlink()
    found = scan(tree, tree)
    by_name: dict[str, RdmaDevice] = {device.name: device for device in found.devices}
    address = _function(tree).name
    assert by_name[first.name].id == f"{address}/{first.name}"
    assert by_name["mlx5_bond"].id == f"{address}/mlx5_bond"
    assert found.netdev_names[by_name["mlx5_bond"].id] == ()
    assert len(found.netdev_names[by_name[first.name].id]) == 1


def test_a_device_keeps_its_identity_when_scalable_functions_come_and_go(tree: Path) -> None:
    """Reservations are by identity: a device that got another one could be given twice."""
    function, found = _function(tree), []
    for number in (4, 5):
        part = function / f"mlx5_core.sf.{number}"
        shutil.copytree(_first(tree).resolve(), part / f"infiniband/mlx5_{number}", symlinks=True)
        (part / f"infiniband/mlx5_{number}/device").unlink()
        (part / f"infiniband/mlx5_{number}/device").symlink_to(part)
    for names in ((), ("mlx5_4",), ("mlx5_4", "mlx5_5"), ("mlx5_5",)):
        for name in ("mlx5_4", "mlx5_5"):
            link = tree / "class/infiniband" / name
            link.unlink(missing_ok=True)
            if name in names:
                link.symlink_to(function / f"mlx5_core.sf.{name[-1]}/infiniband/{name}")
        found.append({it.name: it.id for it in scan(tree, tree).devices})
    expected = {**found[0], "mlx5_4": f"{function.name}/mlx5_4", "mlx5_5": f"{function.name}/mlx5_5"}
    assert all(told.items() <= expected.items() for told in found)
    assert [len(told) - len(found[0]) for told in found] == [0, 1, 2, 1]


def test_a_vf_is_a_device_of_its_own_beside_its_pf(tree: Path) -> None:
    function = _function(tree)
    vf = function.parent / (function.name[:-1] + "1")
    for name in ("vendor", "numa_node"):
        (vf / name).parent.mkdir(exist_ok=True)
        shutil.copy(function / name, vf / name)
    shutil.copytree(_first(tree).resolve(), vf / "infiniband/mlx5_v", symlinks=True)
    (vf / "infiniband/mlx5_v/device").unlink()
    (vf / "infiniband/mlx5_v/device").symlink_to(vf)
    (vf / "infiniband/mlx5_v/ports/1/gid_attrs/ndevs/0").write_text("vf0\n")
    (tree / "class/infiniband/mlx5_v").symlink_to(vf / "infiniband/mlx5_v")
    found = {device.name: device for device in scan(tree, tree).devices}
    pf = found[_first(tree).name]
    assert (found["mlx5_v"].id, found["mlx5_v"].pci_root) == (vf.name, pf.pci_root)
    assert pf.id == function.name


def test_a_scalable_function_has_node_and_driver_of_its_pci_function(tree: Path) -> None:
    """Its own bus device is an auxiliary one: no NUMA node, no vendor, and a driver of that bus."""
    function = _function(tree)
    (function / "sriov_numvfs").write_text("4\n")
    part = function / "mlx5_core.sf.2"
    shutil.copytree(_first(tree).resolve(), part / "infiniband/mlx5_s", symlinks=True)
    (part / "infiniband/mlx5_s/device").unlink()
    (part / "infiniband/mlx5_s/device").symlink_to(part)
    driver = tree / "bus/auxiliary/drivers/mlx5_core.sf"
    driver.mkdir(parents=True)
    (part / "driver").symlink_to(driver)
    (tree / "class/infiniband/mlx5_s").symlink_to(part / "infiniband/mlx5_s")
    found = {device.name: device for device in scan(tree, tree).devices}
    own, whole = found["mlx5_s"], found[_first(tree).name]
    assert (own.pci, own.pci_root, own.pci_path, own.numa_node) == (
        whole.pci,
        whole.pci_root,
        whole.pci_path,
        whole.numa_node,
    )
    assert (own.driver, own.vendor, own.device_id) == ("mlx5_core", "15b3", "1021")
    assert (own.vf_count, whole.vf_count) == (0, 4)
    assert whole.numa_node is not None


def _virtual_netdev(tree: Path, name: str, *lower: str) -> None:
    folder = tree / "devices/virtual/net" / name
    folder.mkdir(parents=True)
    (tree / "class/net" / name).symlink_to(folder)
    for below in lower:
        (folder / f"lower_{below}").symlink_to((tree / "class/net" / below).resolve())


def _soft_device(tree: Path, name: str, netdev: str) -> RdmaDevice:
    """A soft RDMA device on that netdev, as the scan finds it."""
    folder = tree / "devices/virtual/infiniband" / name
    shutil.copytree(_first(tree).resolve(), folder, symlinks=True)
    (folder / "device").unlink()
    (folder / "ports/1/gid_attrs/ndevs/0").write_text(f"{netdev}\n")
    (tree / "class/infiniband" / name).symlink_to(folder)
    return next(device for device in scan(tree, tree).devices if device.name == name)


def test_a_soft_device_on_a_stack_of_netdevs_is_where_the_lowest_is(tree: Path) -> None:
    """A VLAN on a bond: the first by number of what that is made of and has a bus device."""
    _virtual_netdev(tree, "dummy0")
    _virtual_netdev(tree, "bond0", "dummy0", "port0", "port1")
    _virtual_netdev(tree, "bond0.7", "bond0")
    (lowest, _) = scan(tree, tree).devices
    soft = _soft_device(tree, "rxe0", "bond0.7")
    assert (soft.pci_root, soft.pci_path, soft.numa_node) == (lowest.pci_root, lowest.pci_path, lowest.numa_node)
    assert (soft.pci, soft.driver, soft.is_soft) == (None, "", True)


def test_a_soft_device_on_nothing_but_virtual_netdevs_is_nowhere(tree: Path) -> None:
    _virtual_netdev(tree, "dummy0")
    _virtual_netdev(tree, "vlan7", "dummy0")
    (tree / "devices/virtual/net/dummy0/lower_vlan7").symlink_to(tree / "devices/virtual/net/vlan7")  # no kernel's
    soft = _soft_device(tree, "rxe0", "vlan7")
    assert (soft.pci_root, soft.pci_path, soft.numa_node) == ("", (), None)


def test_devices_are_in_the_order_of_their_numbers(tree: Path) -> None:
    real = _first(tree).resolve()
    for name in ("mlx5_10", "mlx5_9"):
        (tree / f"class/infiniband/{name}").symlink_to(real)
    names = [device.name for device in scan(tree, tree).devices]
    assert names.index("mlx5_9") < names.index("mlx5_10")


def test_character_devices_read_alone_are_those_of_a_scan(tree: Path) -> None:
    found = scan(tree, tree)
    now = read_char_devices(tree, tree, found.devices)
    assert now.by_device == {device.id: device.char_devices for device in found.devices}
    assert (now.rdma_cm, now.has_nodes) == (found.rdma_cm, True)
    (tree / "class/infiniband_verbs/uverbs0/dev").write_text("231:77\n")
    (first, *_) = read_char_devices(tree, tree, found.devices[:1]).by_device.values()
    assert 77 in {char.minor for char in first}


def test_character_devices_that_changed_their_names_are_found_by_their_device(tree: Path) -> None:
    one, other, *_ = scan(tree, tree).devices
    verbs = tree / "class/infiniband_verbs"
    first, second, third = (verbs / Path(it).name for it in (_verbs(one), _verbs(other), "uverbs70"))
    first.rename(third)
    second.rename(first)
    third.rename(second)
    now = read_char_devices(tree, tree, (one, other)).by_device
    assert [_verbs(replace(it, char_devices=now[it.id])) for it in (one, other)] == [_verbs(other), _verbs(one)]
    first.rename(third)
    now = read_char_devices(tree, tree, (other,)).by_device
    assert _verbs(replace(other, char_devices=now[other.id])) == "/dev/infiniband/uverbs70"


def test_a_device_that_had_no_character_devices_is_looked_for_in_all(tree: Path) -> None:
    found = scan(tree, tree)
    (first, *_) = found.devices
    now = read_char_devices(tree, tree, (replace(first, char_devices=()),))
    assert now.by_device == {first.id: first.char_devices}


def test_a_device_that_is_gone_or_whose_name_another_has_now_has_no_character_devices(tree: Path) -> None:
    one, other, *_ = scan(tree, tree).devices
    link = _first(tree)
    link.unlink()
    assert list(read_char_devices(tree, tree, (one, other)).by_device) == [other.id]
    link.symlink_to((tree / "class/infiniband" / other.name).resolve())
    assert list(read_char_devices(tree, tree, (one, other)).by_device) == [other.id]


def test_a_node_without_rdma_has_no_device_nodes(tree: Path) -> None:
    for name in ("infiniband_verbs", "infiniband_mad", "misc"):
        shutil.rmtree(tree / "class" / name, ignore_errors=True)
    now = read_char_devices(tree, tree, ())
    assert (now.by_device, now.rdma_cm, now.has_nodes) == ({}, None, False)
