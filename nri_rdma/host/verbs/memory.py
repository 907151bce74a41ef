"""Registered memory of which one half is sent into the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any  # Any: pyverbs has no types

from nri_rdma.host.verbs import library, numbers
from nri_rdma.host.verbs.steps import StepError

LEAST_BYTES = 4096
TRANSFER_S = 5.0
"""How long the data may take: a device that answers moves a mebibyte in a millisecond, an emulated one in a second."""


class Halves:
    """A memory region; what is in the first half is to arrive in the second."""

    def __init__(self, domain: Any, length: int) -> None:
        """Register memory of that many bytes in a protection domain."""
        self.length = max(length, LEAST_BYTES)
        self._half = self.length // 2
        self.region = library.part("mr").MR(domain, self.length, numbers.LOCAL_AND_REMOTE_WRITE)

    def move(self, task: Mapping[str, Any], most: int, send: Callable[[int], None], *, header: int = 0) -> int:
        """Move the bytes of a task, at most `most` a message, by `send`, which is told a message's length.

        Return how many bytes arrived. StepError: others arrived. `header` bytes come before those that were sent.
        """
        size, moved = min(self._half - header, most, task["transfer_bytes"]), 0
        while moved < task["transfer_bytes"]:
            sent = os.urandom(min(size, task["transfer_bytes"] - moved))
            self.region.write(sent, len(sent), 0)
            send(len(sent))
            if self.region.read(len(sent), self._half + header) != sent:
                raise StepError("transfer", f"other bytes than those that were sent arrived after {moved} bytes")
            moved += len(sent)
        return moved

    def source(self, length: int) -> Any:
        """Return what is to be sent as a scatter-gather element."""
        return library.part("wr").SGE(self.region.buf, length, self.region.lkey)

    def target(self, length: int) -> Any:
        """Return where it is to arrive as a scatter-gather element."""
        return library.part("wr").SGE(self.target_address, length, self.region.lkey)

    @property
    def target_address(self) -> int:
        """Return the address of the second half."""
        return int(self.region.buf) + self._half


def wait_for(queue: Any, count: int, within_s: float = TRANSFER_S) -> None:
    """Wait until that many work requests of a completion queue are done. StepError: one failed, or is late."""
    until = time.monotonic() + within_s
    while count:
        number, completions = queue.poll(count)
        for it in completions:
            if it.status:
                raise StepError("transfer", f"{_status_words(it.status)} (vendor error {it.vendor_err:#x})")
        count -= number
        if count and time.monotonic() > until:
            raise StepError("transfer", f"no completion within {within_s:g} s")


def _status_words(status: int) -> str:
    return f"work completion status {status}, {library.part('cq').cqe_status_to_str(status)}"
