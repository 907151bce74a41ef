"""What others gave to a container is attached as its spec asks."""

from dataclasses import replace

import pytest

from nri_rdma.cdi.grants import CdiGrant, Origin
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.decide.granted import Wanted, lacks, place_granted, refuse_unallocated
from nri_rdma.decide.placement import Holding
from nri_rdma.decide.policy import Asker
from nri_rdma.errors import CdiError, ErrorCode, PlacementError
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


LOOKS_ON = DeviceRequest(
    name="eyes", where="CDI device a/b=eyes", mode=Mode.SHARED, cdi_device="a/b=eyes", admin_access=True
)
ALONE = DeviceRequest(name="nic", where="CDI device a/b=nic", mode=Mode.EXCLUSIVE, cdi_device="a/b=nic")


@pytest.mark.parametrize("mode", Mode)
def test_who_looks_on_is_placed_beside_any_owner_and_any_owner_beside_it(mode: Mode) -> None:
    device = nic(0)
    on, eyes = made_node((device,)), Wanted(request=LOOKS_ON, devices=(device,))
    owned = {device.id: frozenset({Holding(owner="ns/owner", mode=mode)})}
    (placed,) = place_granted(on, owned, (eyes,), Asker(), "ns/pod")
    assert placed.devices == (device,)
    watched = {device.id: frozenset(dict(placed.holdings("ns/pod")).values())}
    own = Wanted(request=replace(ALONE, mode=mode), devices=(device,))
    (after,) = place_granted(on, watched, (own,), Asker(), "ns/other")
    assert after.admitted.is_watched
    (alone,) = place_granted(on, {}, (own,), Asker(), "ns/other")
    assert not alone.admitted.is_watched


@pytest.mark.parametrize(
    ("vendor", "held_as", "what", "hint"),
    [
        (DRIVER, "same", ", by the same claim", "ask for mode: shared, or give each pod a claim of its own"),
        (DRIVER, "other", "", "nothing to do: it is free for others when that pod has ended"),
        ("a.example", "same", "", "give a device in one way only"),
        ("a.example", "other", "", "give a device in one way only"),
    ],
)
def test_a_second_pod_of_a_claim_that_one_pod_has_alone_is_told_how_both_can_have_their_own(
    vendor: str, held_as: str, what: str, hint: str
) -> None:
    device = nic(0)
    same, name = replace(ALONE, cdi_device=f"{vendor}/claim=u1-nic"), f"{vendor}/claim=u2-nic"
    first = Wanted(request=same if held_as == "same" else replace(ALONE, cdi_device=name), devices=(device,))
    (placed,) = place_granted(made_node((device,)), {}, (first,), Asker(), "ns/first")
    taken = {device_id: frozenset({holding}) for device_id, holding in placed.holdings("ns/first")}
    with pytest.raises(PlacementError) as caught:
        place_granted(made_node((device,)), taken, (Wanted(request=same, devices=(device,)),), Asker(), "ns/second")
    assert caught.value.what == f"mlx5_0 is held by ns/first (exclusive){what}"
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("looks_on_first", [True, False])
def test_a_pod_may_look_on_at_what_it_has_alone(looks_on_first: bool) -> None:
    device = nic(0)
    both = [Wanted(request=LOOKS_ON, devices=(device,)), Wanted(request=ALONE, devices=(device,))]
    wanted = tuple(both if looks_on_first else both[::-1])
    placed = place_granted(made_node((device,)), {}, wanted, Asker(), "ns/pod")
    assert [it.devices for it in placed] == [(device,), (device,)]


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


def test_a_spec_that_cannot_be_read_is_lacking_until_something_is_attached_for_it() -> None:
    problem = CdiError(ErrorCode.CDI_VALUE, "mode is wrong", file="a.json", hint="mend it")
    grant = CdiGrant(container="main", name="a.example.com/nic=0", origin=Origin.KUBELET, problem=problem)
    attached = DeviceRequest(name="nic", where="w", cdi_device=grant.name)
    assert lacks((grant,), (), Adoption())
    assert not lacks((grant,), (attached,), Adoption())
    assert not lacks((replace(grant, problem=None),), (), Adoption())  # it is none of ours
