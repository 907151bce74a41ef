"""The methods of an asyncio server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nri_rdma.ttrpc import Call, Code, RpcError
from nri_rdma.ttrpc.aio.calls import AsyncInterceptor, AsyncMethods
from tests.unit.ttrpc.aio.joined import SERVICE, echo

CALL = Call(SERVICE, "Echo", b"x", (), None)


def adds(letter: bytes) -> AsyncInterceptor:
    """Return an interceptor that adds a letter to the answer."""

    async def intercept(call: Call, proceed: Callable[[Call], Awaitable[bytes | None]]) -> bytes | None:
        return (await proceed(call) or b"") + letter

    return intercept


@pytest.mark.parametrize(
    ("service", "method", "text"), [(SERVICE, "Put", "method Put"), ("t.T", "Echo", "service t.T")]
)
def test_a_missing_method_and_a_missing_service_are_told_apart(service: str, method: str, text: str) -> None:
    methods = AsyncMethods({(SERVICE, "Echo"): echo}, [])
    assert methods.find(SERVICE, "Echo") is echo
    with pytest.raises(RpcError) as caught:
        methods.find(service, method)
    assert (caught.value.code, caught.value.message) == (Code.UNIMPLEMENTED, text)


def test_a_handler_runs_inside_the_interceptors() -> None:
    async def answer() -> bytes | None:
        return await AsyncMethods({}, [adds(b"a"), adds(b"b")]).run(CALL, echo)

    assert asyncio.run(answer()) == b"xba"
