"""What a device can have at once."""

from __future__ import annotations

from nri_rdma.model.capacity import RdmaCapacity


def test_the_scarcest_kind_is_the_one_with_the_smallest_number() -> None:
    assert RdmaCapacity(qp=1048560, cq=1048576, mr=524287, pd=1048576, ah=32767, srq=917503).scarcest == ("ah", 32767)


def test_a_kind_that_the_device_does_not_have_is_not_scarce() -> None:
    assert RdmaCapacity(qp=256, cq=512, mr=4096, pd=256, ah=0, srq=0).scarcest == ("qp", 256)
    assert RdmaCapacity().scarcest == ("", 0)
