"""The status of a call."""

from __future__ import annotations

from nri_rdma.ttrpc import Code, RpcError
from nri_rdma.ttrpc.error import status_of


def test_numbers_that_are_no_code_stay_numbers() -> None:
    assert RpcError(99, "x").code == 99
    assert str(RpcError(99, "x")) == "code 99: x"
    assert isinstance(RpcError(5, "x").code, Code)


def test_the_status_of_a_status_is_itself() -> None:
    status = RpcError(Code.ABORTED, "no more")
    assert status_of(status) is status


def test_an_exception_without_a_text_is_named() -> None:
    found = status_of(KeyError())
    assert (found.code, found.message) == (Code.UNKNOWN, "KeyError")
