"""Less patience, for tests that have to see its end."""

import pytest

from nri_rdma.ttrpc import channel, handlerstream
from nri_rdma.ttrpc.aio import queue


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is full is given up after a tenth of a second. The second that it really is, one test waits for:
    test_a_stream_that_nobody_takes_does_not_block_the_connection."""
    for module in (channel, handlerstream, queue):
        monkeypatch.setattr(module, "PATIENCE_S", 0.1)
