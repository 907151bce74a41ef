"""One end of a pair of RDMA devices. Latency and bandwidth between the two ends are measured by RDMA writes over queue
pairs of type RC."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from typing import Any  # Any: JSON, and pyverbs has no types

from nri_rdma.host.verbs import library, numbers, port, queues
from nri_rdma.host.verbs.memory import wait_for
from nri_rdma.host.verbs.steps import StepError, failing

PING_BYTES = 8
_ROOM_BYTES = 4096
"""Bytes after the message buffer: pings are sent from and arrive in this memory."""
_OUTBOX = 64
_MARKS = 251
_SIGNALED_EACH = 8
"""The length of a series of writes. Only the last write of each series reports its completion."""
_AT_A_TIME = 8
_SPINS = 2048
"""The number of times that the memory is read between two looks at the clock, while an end waits for a ping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """The address of the peer's queue pair and memory. `lid`, `mtu` and `gid_type` are those of the peer's port,
    `memory` is the first address of its registered memory."""

    queue_pair: int
    gid: IPv6Address
    gid_type: str
    lid: int
    mtu: int
    key: int
    """The remote key of the peer's memory."""
    memory: int


class End:
    """An open RDMA device with a queue pair, one of the two ends of a measurement. Every method raises StepError for a
    step that fails."""

    def __init__(self, task: Mapping[str, Any], message_bytes: int) -> None:
        """Open the device that a self-check task names, for messages of `message_bytes` bytes."""
        self._message_bytes = message_bytes
        with failing("open"):
            self._context = library.part("device").Context(name=task["device"])
        try:
            self._make(task)
        except BaseException:
            self.close()
            raise

    def _make(self, task: Mapping[str, Any]) -> None:
        self._port = port.look_at(self._context, task, {})
        if self._port.transport == "iwarp":
            raise StepError("connect", "iWARP connects through rdma_cm alone: measure it with `ib_write_lat -R`")
        with failing("register"):
            domain = library.part("pd").PD(self._context)
            length = self._message_bytes + _ROOM_BYTES
            self._region = library.part("mr").MR(domain, length, numbers.LOCAL_AND_REMOTE_WRITE)
        with failing("qp"):
            self._queue = library.part("cq").CQ(self._context, 2 * queues.DEPTH)
            self._pair, is_reliable = queues.pair_of(domain, self._queue)
        if not is_reliable:
            raise StepError("qp", "the device has no RC queue pairs, which the measurement needs")
        base = int(self._region.buf)
        self._room = base + self._message_bytes
        self._inbox = ctypes.c_ubyte.from_address(self._room + PING_BYTES - 1)
        self._outbox = ctypes.c_ubyte.from_address(self._room + _OUTBOX + PING_BYTES - 1)

    def close(self) -> None:
        """Close the device."""
        with failing("open"):
            self._context.close()

    @property
    def address(self) -> PeerAddress:
        """The address of this end's queue pair and memory, which the peer needs to connect to this end."""
        gid = self._port.gid
        assert gid is not None  # iWARP is refused
        return PeerAddress(
            queue_pair=self._pair.qp_num,
            gid=gid.value,
            gid_type=str(gid.type),
            lid=self._port.lid,
            mtu=self._port.mtu,
            key=self._region.rkey,
            memory=int(self._region.buf),
        )

    def connect(self, peer: PeerAddress) -> None:
        """Connect this end's queue pair to the peer's queue pair. Both ends must do this before data moves."""
        if peer.gid_type != self.address.gid_type:
            what = f"the two ends use different types of GID: {self.address.gid_type} here, {peer.gid_type} there"
            raise StepError("gid", what)
        self._peer = peer
        with failing("connect"):
            way = replace(self._port, mtu=min(self._port.mtu, peer.mtu))
            queues.connect(self._pair, way, peer.queue_pair, queues.words_of(peer.gid), peer.lid)

    def ping(self, count: int, within_s: float) -> list[int]:
        """Send `count` pings to a peer that runs `pong`, and return the round-trip times in nanoseconds. All pings
        together may take `within_s` seconds."""
        with failing("transfer"):
            return self._exchange(count, within_s, is_first=True)

    def pong(self, count: int, within_s: float) -> None:
        """Answer `count` pings of a peer that runs `ping`. All pings together may take `within_s` seconds."""
        with failing("transfer"):
            self._exchange(count, within_s, is_first=False)

    def flood(self, seconds: float, within_s: float) -> tuple[int, float]:
        """Write messages into the peer's memory for `seconds` seconds. Return the number of bytes written and the
        seconds that this took. `within_s` limits the wait for a completion."""
        with failing("transfer"):
            write = self._write(int(self._region.buf), self._peer.memory, self._message_bytes, is_signaled=True)
            started = time.monotonic()
            posted = done = 0
            while posted < _AT_A_TIME or time.monotonic() - started < seconds:
                write()
                posted += 1
                if posted - done == _AT_A_TIME:
                    wait_for(self._queue, 1, within_s)
                    done += 1
            wait_for(self._queue, posted - done, within_s)
            return posted * self._message_bytes, time.monotonic() - started

    def _exchange(self, count: int, within_s: float, *, is_first: bool) -> list[int]:
        source, target = self._room + _OUTBOX, self._peer.memory + self._message_bytes
        quiet = self._write(source, target, PING_BYTES, is_signaled=False)
        signaled = self._write(source, target, PING_BYTES, is_signaled=True)
        until, times, clock = time.monotonic() + within_s, [], time.perf_counter_ns
        for number in range(count):
            mark = number % _MARKS + 1
            is_told = number % _SIGNALED_EACH == _SIGNALED_EACH - 1
            started = clock()
            if not is_first:
                self._wait(mark, until, within_s)
            self._outbox.value = mark
            (signaled if is_told else quiet)()
            if is_first:
                self._wait(mark, until, within_s)
            times.append(clock() - started)
            if is_told:
                wait_for(self._queue, 1, within_s)
        return times

    def _wait(self, mark: int, until: float, within_s: float) -> None:
        inbox = self._inbox
        while True:
            for _ in range(_SPINS):
                if inbox.value == mark:
                    return
            if time.monotonic() > until:
                raise StepError("transfer", f"the other end has not answered within {within_s:g} s")

    def _write(self, source: int, target: int, length: int, *, is_signaled: bool) -> Callable[[], None]:
        """Return a function that writes `length` bytes from the local address `source` to the address `target` of the
        peer's memory. `is_signaled`: the device reports the completion."""
        wr = library.part("wr")
        element = wr.SGE(source, length, self._region.lkey)
        flags = numbers.SIGNALED if is_signaled else 0
        request = wr.SendWR(opcode=numbers.RDMA_WRITE, num_sge=1, sg=[element], send_flags=flags)
        request.set_wr_rdma(self._peer.key, target)
        post = self._pair.post_send
        return lambda: post(request)
