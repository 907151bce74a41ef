"""Registered memory for a test of RDMA: data is sent from its first half and must arrive in its second half."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any  # Any: pyverbs has no types

from nri_rdma.host.verbs import library, numbers
from nri_rdma.host.verbs.steps import StepError

LEAST_BYTES = 4096
TRANSFER_S = 5.0
"""Seconds that a transfer may take. A working device moves a mebibyte in a millisecond, an emulated one in a second."""


class Halves:
    """A region of registered memory in two halves: data sent from the first half must arrive in the second half."""

    def __init__(self, domain: Any, length: int) -> None:
        """Register at least `length` bytes of memory in the protection domain `domain`."""
        self.length = max(length, LEAST_BYTES)
        self._half = self.length // 2
        self.region = library.part("mr").MR(domain, self.length, numbers.LOCAL_AND_REMOTE_WRITE)

    def move(self, task: Mapping[str, Any], most: int, send: Callable[[int], None], *, header: int = 0) -> int:
        """Move the task's `transfer_bytes` in messages of at most `most` bytes, and return how many bytes arrived.
        `send` sends one message of a given length. `header` is the number of bytes that the device puts before received
        data.

        Raises StepError if the received bytes differ from the sent ones.
        """
        size, moved = min(self._half - header, most, task["transfer_bytes"]), 0
        while moved < task["transfer_bytes"]:
            sent = os.urandom(min(size, task["transfer_bytes"] - moved))
            self.region.write(sent, len(sent), 0)
            send(len(sent))
            if self.region.read(len(sent), self._half + header) != sent:
                raise StepError("transfer", f"the received bytes differ from the sent ones after {moved} bytes")
            moved += len(sent)
        return moved

    def source(self, length: int) -> Any:
        """Return the scatter-gather element of the first half, from which data is sent."""
        return library.part("wr").SGE(self.region.buf, length, self.region.lkey)

    def target(self, length: int) -> Any:
        """Return the scatter-gather element of the second half, in which data arrives."""
        return library.part("wr").SGE(self.target_address, length, self.region.lkey)

    @property
    def target_address(self) -> int:
        """The address of the second half."""
        return int(self.region.buf) + self._half


def wait_for(queue: Any, count: int, within_s: float = TRANSFER_S) -> None:
    """Wait until `count` work requests of a completion queue are done. Raises StepError if one fails or takes longer
    than `within_s` seconds."""
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
