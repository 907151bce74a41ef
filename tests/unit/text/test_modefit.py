"""What others may have too is neither configured for one pod nor hidden from the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.errors import ErrorCode
from nri_rdma.model.request import DeviceRequest, InterfaceConfig, Isolation, Mode
from nri_rdma.text.modefit import misfits

_PLAIN = DeviceRequest(name="0", where="HERE")
_NAMED = replace(_PLAIN, interface=InterfaceConfig(name="rdma0"))
_HARD = replace(_PLAIN, isolation=Isolation.HARD)


@pytest.mark.parametrize(
    ("request_", "mode", "places"),
    [
        (_PLAIN, Mode.SHARED, []),
        (_NAMED, Mode.EXCLUSIVE, []),
        (_NAMED, Mode.SHARED, ["HERE.interface"]),
        (_HARD, Mode.EXCLUSIVE, []),
        (_HARD, Mode.SHARED, ["HERE.isolation"]),
        (replace(_NAMED, isolation=Isolation.HARD), Mode.SHARED, ["HERE.interface", "HERE.isolation"]),
    ],
)
def test_a_device_is_configured_and_hidden_only_where_it_is_the_pods_alone(
    request_: DeviceRequest, mode: Mode, places: list[str]
) -> None:
    found = list(misfits(request_, mode))
    assert [it.where for it in found] == places
    assert {it.code for it in found} <= {ErrorCode.ANNOTATION_VALUE}
