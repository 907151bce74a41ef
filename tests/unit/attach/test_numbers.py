"""Character devices are read at the end of an attach; what was asked for and is not there fails it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from nri_rdma.attach.numbers import Resolve, Resolved, with_char_devices, with_names, with_netdev_names
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import AttachError
from nri_rdma.model.device import CharDevice, CharKind, RdmaDevice
from nri_rdma.model.request import Mode
from tests.fakes.kernel import FakeKernel
from tests.unit.attach.builders import POD_PATH, make_device, make_placed, record_of
from tests.unit.rigs.attachments import make_world

RDMA_CM = CharDevice(kind=CharKind.RDMA_CM, path="/dev/rdma_cm", major=10, minor=122, mode=0o666, uid=0, gid=0)


def _record(mode: Mode = Mode.SHARED, *kinds: CharKind) -> SandboxRecord:
    """One that two devices were given to; `kinds` are the character devices that its pod asked for."""
    placed = make_placed((make_device("mlx5_0", []), make_device("mlx5_1", [])), mode=mode)
    request = replace(placed.admitted.request, char_kinds=frozenset(kinds or (CharKind.UVERBS,)))
    return _recorded(replace(placed, admitted=replace(placed.admitted, request=request)))


def _recorded(placed: Placed) -> SandboxRecord:
    kernel = FakeKernel(make_world())
    return record_of(kernel, kernel.open_namespace(POD_PATH), placed)


def _devices(record: SandboxRecord) -> list[RdmaDevice]:
    return [item.device for request in record.attached for item in request.devices]


def _changed(change: Callable[[RdmaDevice], RdmaDevice]) -> Resolve:
    """The host has the same devices, but for this change."""
    return lambda known: replace(known, devices=tuple(map(change, known.devices)))


def test_a_containers_numbers_are_those_of_the_end_of_the_attach() -> None:
    def renumbered(device: RdmaDevice) -> RdmaDevice:
        (node,) = device.char_devices
        return replace(device, char_devices=(replace(node, minor=200 if device.name == "mlx5_0" else 201),))

    found = with_char_devices(_record(), _changed(renumbered))
    assert [(it.name, it.char_devices[0].minor) for it in _devices(found)] == [("mlx5_0", 200), ("mlx5_1", 201)]


def test_all_devices_are_read_in_one_call() -> None:
    asked: list[Resolved] = []

    def resolve(known: Resolved) -> Resolved:
        asked.append(known)
        return known

    with_char_devices(_record(), resolve)
    assert [[it.name for it in known.devices] for known in asked] == [["mlx5_0", "mlx5_1"]]


@pytest.mark.parametrize(
    ("kind", "module"), [(CharKind.UVERBS, "ib_uverbs"), (CharKind.UMAD, "ib_umad"), (CharKind.ISSM, "ib_umad")]
)
def test_a_missing_node_is_refused_with_its_device_and_the_kernel_module_to_load(kind: CharKind, module: str) -> None:
    def bare(device: RdmaDevice) -> RdmaDevice:
        return device if device.name == "mlx5_0" and kind is CharKind.UVERBS else replace(device, char_devices=())

    with pytest.raises(AttachError) as caught:
        with_char_devices(_record(Mode.SHARED, kind), _changed(bare))
    assert caught.value.device == ("mlx5_1" if kind is CharKind.UVERBS else "mlx5_0")
    assert f"modprobe {module}`" in caught.value.hint


@pytest.mark.parametrize(
    ("rdma_cm", "has_nodes", "is_refused"), [(RDMA_CM, True, False), (None, False, False), (None, True, True)]
)
def test_rdma_cm_is_missed_only_on_a_node_that_has_device_nodes(
    rdma_cm: CharDevice | None, has_nodes: bool, is_refused: bool
) -> None:
    def resolve(known: Resolved) -> Resolved:
        return replace(known, rdma_cm=rdma_cm, has_nodes=has_nodes)

    record = _record(Mode.SHARED, CharKind.RDMA_CM)
    if not is_refused:
        assert with_char_devices(record, resolve).rdma_cm == rdma_cm
        return
    with pytest.raises(AttachError, match="no rdma_cm") as caught:
        with_char_devices(record, resolve)
    assert "modprobe rdma_ucm" in caught.value.hint


def test_a_device_is_renamed_by_the_kernels_number_and_one_that_is_not_told_keeps_its_name() -> None:
    one, other, soft = (make_device(name, []) for name in ("mlx5_0", "mlx5_1", "rxe0"))
    placed = make_placed(
        (replace(one, kernel_index=3), replace(other, kernel_index=4), replace(soft, kernel_index=None)),
        mode=Mode.SHARED,
    )
    assert [it.name for it in _devices(with_names(_recorded(placed), {3: "train0"}))] == ["train0", "mlx5_1", "rxe0"]


@pytest.mark.parametrize(("mode", "names"), [(Mode.EXCLUSIVE, ("net0",)), (Mode.SHARED, ())])
def test_netdevs_that_were_in_the_pod_before_are_told_of_devices_that_are_the_pods_alone(
    mode: Mode, names: tuple[str, ...]
) -> None:
    record = _record(mode)
    (attached,) = record.attached
    lacking = tuple(replace(item, device=replace(item.device, netdevs=())) for item in attached.devices)
    assert all(item.device.lacks_netdev for item in lacking)
    record = replace(record, attached=(replace(attached, devices=lacking),))
    found = with_netdev_names(record, lambda _device: ("net0",))
    assert {item.netdev_names for item in found.attached[0].devices} == {names}
