"""What others may have too is neither configured for one pod nor hidden from the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.request import DeviceRequest, InterfaceConfig, Isolation, Mode
from nri_rdma.text.modefit import interface_misfit, isolation_misfit

_PLAIN = DeviceRequest(name="0", where="HERE")
_NAMED = replace(_PLAIN, interface=InterfaceConfig(name="rdma0"))
_HARD = replace(_PLAIN, isolation=Isolation.HARD)


def _told(error: RequestError | None) -> tuple[ErrorCode, str] | None:
    return None if error is None else (error.code, error.where)


@pytest.mark.parametrize(
    ("request_", "mode", "told"),
    [
        (_PLAIN, Mode.SHARED, None),
        (_NAMED, Mode.EXCLUSIVE, None),
        (_NAMED, Mode.SHARED, (ErrorCode.ANNOTATION_VALUE, "HERE.interface")),
    ],
)
def test_a_netdev_is_configured_only_where_it_moves(
    request_: DeviceRequest, mode: Mode, told: tuple[ErrorCode, str] | None
) -> None:
    assert _told(interface_misfit(request_, mode)) == told


@pytest.mark.parametrize(
    ("isolation", "mode", "told"),
    [
        (Isolation.HARD, Mode.EXCLUSIVE, None),
        (Isolation.SOFT, Mode.SHARED, None),
        (Isolation.HARD, Mode.SHARED, (ErrorCode.ANNOTATION_VALUE, "HERE.isolation")),
    ],
)
def test_a_device_is_hidden_only_where_it_is_the_pods_alone(
    isolation: Isolation, mode: Mode, told: tuple[ErrorCode, str] | None
) -> None:
    assert _told(isolation_misfit(replace(_HARD, isolation=isolation), mode)) == told
