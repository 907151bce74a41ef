"""A record tells what a sandbox holds and how, what hides it, and whom it serves."""

from dataclasses import replace

import pytest

from nri_rdma.attach.plan import Plan, RdmaMove
from nri_rdma.attach.record import Phase, SandboxRecord, attach_key
from nri_rdma.decide.inject import AttachedDevice, AttachedRequest
from nri_rdma.decide.policy import Admitted
from nri_rdma.model.device import DeviceId
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import DeviceRequest, Isolation, Mode, Scope
from tests.unit.attach.builders import make_device, make_pod

GPU = PciAddress(0, 0x3E, 0, 0)


def _given(index: int, mode: Mode, **fields: object) -> AttachedRequest:
    """A request that was given the device with this number."""
    request = replace(DeviceRequest(name=str(index), where="here"), **fields)  # type: ignore[arg-type]  # fields of the dataclass
    device = replace(make_device(f"mlx5_{index}", []), kernel_index=index)
    return AttachedRequest(
        admitted=Admitted(request=request, mode=mode), devices=(AttachedDevice(device=device, netdev_names=()),)
    )


def _record(*attached: AttachedRequest, moved: tuple[int, ...] = ()) -> SandboxRecord:
    moves = tuple(RdmaMove(device=f"mlx5_{index}", index=index, node_guid="", parent="") for index in moved)
    return SandboxRecord(
        pod=make_pod(),
        state=Phase.ATTACHED,
        namespace=None,
        plan=Plan(rdma_moves=moves),
        attached=attached,
        rdma_cm=None,
    )


def test_what_a_sandbox_holds_names_the_pod_the_mode_and_the_gpus_that_a_device_is_for() -> None:
    record = _record(_given(0, Mode.EXCLUSIVE, gpus=(GPU,)), _given(1, Mode.SHARED))
    held = [(device, it.owner, it.mode, it.gpus) for device, it in record.holdings]
    assert held == [
        (DeviceId("mlx5_0"), "ml/train", Mode.EXCLUSIVE, frozenset({GPU})),
        (DeviceId("mlx5_1"), "ml/train", Mode.SHARED, frozenset()),
    ]
    assert record.device_names == "mlx5_0, mlx5_1"


@pytest.mark.parametrize(
    ("alone", "moved", "isolation"),
    [
        ((), (), None),
        ((0,), (), Isolation.SOFT),
        ((0, 1), (0,), Isolation.SOFT),
        ((0, 1), (0, 1), Isolation.HARD),
    ],
)
def test_isolation_is_hard_only_where_every_device_of_the_pod_alone_has_moved(
    alone: tuple[int, ...], moved: tuple[int, ...], isolation: Isolation | None
) -> None:
    given = [_given(index, Mode.EXCLUSIVE) for index in alone]
    assert _record(*given, _given(7, Mode.SHARED), moved=moved).isolation is isolation


def test_another_container_of_a_cdi_device_is_served_by_that_devices_request_only() -> None:
    only = Scope(only=frozenset({"first"}))
    record = _record(
        _given(0, Mode.SHARED, cdi_device="a.com/nic=0", scope=only),
        _given(1, Mode.SHARED, cdi_device="a.com/nic=1", scope=only),
    ).covering("a.com/nic=1", "second", is_covered=True)
    served = [
        {name for name in ("first", "second", "third") if it.admitted.request.scope.covers(name)}
        for it in record.attached
    ]
    assert served == [{"first"}, {"first", "second"}]


def test_a_container_that_was_not_given_a_cdi_device_is_taken_out_of_that_devices_request_only() -> None:
    both = Scope(only=frozenset({"first", "second"}))
    record = _record(
        _given(0, Mode.SHARED, cdi_device="a.com/nic=0", scope=both),
        _given(1, Mode.SHARED, cdi_device="a.com/nic=1", scope=both),
    ).covering("a.com/nic=1", "second", is_covered=False)
    served = [
        {name for name in ("first", "second") if it.admitted.request.scope.covers(name)} for it in record.attached
    ]
    assert served == [{"first", "second"}, {"first"}]


def test_each_attach_of_a_sandbox_has_a_name_of_its_own() -> None:
    record = _record()
    assert (record.key, replace(record, part="trainer").key) == ("sandbox-1", "sandbox-1+trainer")
    assert attach_key("sandbox-1", "") == "sandbox-1"
