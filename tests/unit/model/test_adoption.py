"""Which handling the devices of a vendor have, and whether a container can be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption

_HANDLINGS = st.builds(VendorAdoption, adopt=st.sampled_from(Adopt), memlock=st.none() | st.integers(0, 3))
_VENDORS = st.sampled_from(["", "a.example", "b.example", "c.example"])


def test_by_default_devices_of_others_are_observed_and_no_container_is_refused() -> None:
    adoption = Adoption()
    assert adoption.of("a.example") == VendorAdoption(adopt=Adopt.OBSERVE, memlock=None, limits=None)
    assert not adoption.enforces


@given(_HANDLINGS, st.dictionaries(_VENDORS, _HANDLINGS), _VENDORS)
def test_a_vendor_that_is_named_has_its_own_handling_and_all_else_that_of_others(
    others: VendorAdoption, vendors: dict[str, VendorAdoption], vendor: str
) -> None:
    expected = {vendor: others} | vendors
    assert Adoption(others=others, vendors=vendors).of(vendor) == expected[vendor]


def test_a_vendors_name_is_compared_as_a_whole() -> None:
    adoption = Adoption(vendors={"a.example": VendorAdoption(adopt=Adopt.ENFORCE)})
    assert [adoption.of(name).adopt for name in ("a.example", "b.a.example", "a.exampl", "A.example", "")] == [
        Adopt.ENFORCE,
        *[Adopt.OBSERVE] * 4,
    ]


@pytest.mark.parametrize("adopt", Adopt)
def test_a_container_can_be_refused_only_where_somebody_enforces(adopt: Adopt) -> None:
    one = VendorAdoption(adopt=adopt)
    complete = VendorAdoption(adopt=Adopt.COMPLETE)
    expected = adopt is Adopt.ENFORCE
    assert Adoption(others=one).enforces is expected
    assert Adoption(vendors={"a.example": complete, "b.example": one}).enforces is expected
    assert Adoption(others=one, vendors={"a.example": complete}).enforces is expected
