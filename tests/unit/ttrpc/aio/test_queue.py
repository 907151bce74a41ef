"""Messages between a connection that reads them and the task that takes them."""

from __future__ import annotations

import asyncio

import pytest

from nri_rdma.ttrpc.aio.queue import Queue
from nri_rdma.ttrpc.inbox import FULL
from tests.unit.ttrpc.aio.joined import run


def test_messages_before_an_end_or_a_failure_are_taken_first() -> None:
    async def test() -> None:
        ended, failed = (Queue(lambda: None, lambda: None) for _ in range(2))
        for queue in (ended, failed):
            assert queue.put(b"x")
        ended.end()
        failed.fail(EOFError("first"))
        failed.fail(EOFError("second"))
        assert await ended.take() == b"x" == await failed.take()
        assert await ended.take() is None
        with pytest.raises(EOFError, match="first"):
            await failed.take()

    run(test())


def test_a_message_that_was_refused_can_be_put_once_there_is_room() -> None:
    async def test() -> None:
        events: list[str] = []
        queue = Queue(lambda: events.append("room"), lambda: events.append("overflow"))
        assert queue.put(bytes(FULL))
        assert not queue.put(b"next")
        assert await queue.take() == bytes(FULL)
        assert queue.put(b"next")
        assert (events, await queue.take()) == (["room"], b"next")

    run(test())


@pytest.mark.usefixtures("impatient")
def test_a_queue_that_nobody_takes_overflows() -> None:
    async def test() -> None:
        overflown = asyncio.Event()
        queue = Queue(lambda: None, overflown.set)
        queue.put(bytes(FULL))
        queue.put(b"next")
        await overflown.wait()

    run(test())
