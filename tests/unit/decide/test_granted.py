"""What others gave to a container is attached as its spec asks."""

from dataclasses import replace

import pytest

from nri_rdma.decide.granted import Wanted, place_granted, refuse_unallocated
from nri_rdma.decide.policy import Asker
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.request import DeviceRequest, Mode
from tests.unit.model.hardware import TIE, nic, tied
from tests.unit.model.hardware import node as made_node


def test_what_the_host_could_not_have_back_is_refused_of_a_claim_too() -> None:
    device = tied(nic(0))
    request = DeviceRequest(name="nic", where="CDI device a/b=c", mode=Mode.EXCLUSIVE, cdi_device="a/b=c")
    with pytest.raises(PlacementError, match=TIE) as caught:
        place_granted(made_node((device,)), {}, (Wanted(request=request, devices=(device,)),), Asker(), "ns/pod")
    assert caught.value.code is ErrorCode.DEVICE_IN_USE
    shared = Wanted(request=replace(request, mode=Mode.SHARED), devices=(device,))
    (placed,) = place_granted(made_node((device,)), {}, (shared,), Asker(), "ns/pod")
    assert placed.devices == (device,)


@pytest.mark.parametrize(
    ("explained", "changes"),
    [
        (set(), "the administrator changes adopt"),
        ({"gpu.example.com"}, "the administrator changes adopt.vendors.gpu.example.com"),
    ],
)
def test_a_device_that_nobody_allocated_is_refused_with_the_key_that_says_so(explained: set[str], changes: str) -> None:
    device = nic(0)
    enforce = VendorAdoption(adopt=Adopt.ENFORCE)
    adoption = Adoption(others=enforce, vendors={"gpu.example.com": enforce})
    present = {char.path: (char.major, char.minor) for char in device.char_devices}
    vendors = {device.id: frozenset(explained)} if explained else {}
    with pytest.raises(PlacementError) as caught:
        refuse_unallocated(made_node((device,)), present, (), vendors, adoption, "ns/pod")
    assert caught.value.hint.endswith(changes)
    refuse_unallocated(made_node((device,)), present, {device.id}, vendors, adoption, "ns/pod")
