"""The capacity of each RDMA device of this node: how many queue pairs, memory regions and so on it can have.

A worker queries a device after a scan of the node has found it, and then requests another scan, so no pod waits for a
query. The answers are kept in a file for the next daemon. The file is valid until the machine reboots, because the
kernel then numbers the devices anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import msgspec

from nri_rdma.host.verbs_process import CapacityAnswer, VerbsProcess
from nri_rdma.model.capacity import RdmaCapacity
from nri_rdma.model.device import Node, RdmaDevice
from nri_rdma.model.pool import Pool
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

AGAIN_S = 300.0
"""Seconds for which a failed query is remembered. The next scan of the node after them queries the device again."""

_Key: TypeAlias = tuple[str, str, int | None]


class Capacities:
    """Queries RDMA devices for their capacity and remembers the answers. Only devices of pools with shares (parts of a
    device for several pods) are queried, because a device's capacity is divided among its shares. Safe for use by
    several threads."""

    def __init__(
        self,
        process: VerbsProcess,
        pools: Iterable[Pool],
        workers: Workers,
        on_answer: Callable[[], None],
        memory: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`process` queries the devices. `on_answer` requests another scan of the node. `memory` is the file that keeps
        the answers for the next daemon."""
        self._process = process
        self._pools = tuple(pool for pool in pools if pool.shares)
        self._workers = workers
        self._on_answer = on_answer
        self._clock = clock
        self._lock = threading.Lock()
        self._is_asking = False
        self._memory = memory
        kept = _read(memory) if self._pools else {}
        self._answers = {key: (CapacityAnswer(capacity=capacity), 0.0) for key, capacity in kept.items()}
        """The answer of each device, with the clock time in seconds until which a failed query is not repeated."""
        self.settled: Future[None] = Future()
        """Done once a scan of the node has found no device that still has to be queried."""

    @property
    def pids(self) -> frozenset[int]:
        """The ids of the processes that open devices only to query them. The node's scan does not count such a process
        as a user of the device."""
        return self._process.pids

    def close(self) -> None:
        """Kill the process that queries devices, if it runs. Call this before the workers are closed."""
        self._process.close()

    def added_to(self, node: Node) -> Node:
        """Return a copy of the node with the capacities that are known so far. Reads memory only."""
        if not self._pools:
            return node
        with self._lock:
            told = {it.id: self._answers[_key(it)][0] for it in node.devices if _key(it) in self._answers}
        return replace(
            node,
            capacities={key: it.capacity for key, it in told.items() if it.capacity is not None},
            capacity_problems={key: it.problem for key, it in told.items() if it.capacity is None},
        )

    def node_was_read(self, node: Node) -> None:
        """Have a worker query the devices whose capacity is not known yet. Called after each scan of the node."""
        with self._lock:
            if self._is_asking:
                return
            now = self._clock()
            missing = [device for device in self._asked(node) if not self._is_known(device, now)]
            self._is_asking = bool(missing)
        if missing:
            self._workers.submit("capacities", lambda: self._ask(missing))
        elif not self.settled.done():
            self.settled.set_result(None)

    def _asked(self, node: Node) -> Iterable[RdmaDevice]:
        return (device for device in node.devices if any(pool.has(device) for pool in self._pools))

    def _is_known(self, device: RdmaDevice, now: float) -> bool:
        answer, until = self._answers.get(_key(device), (CapacityAnswer(), now))
        return answer.capacity is not None or now < until

    def _ask(self, devices: Sequence[RdmaDevice]) -> None:
        try:
            answers = self._process.ask([device.name for device in devices])
        except Exception:  # no descriptor is left, for example: after the next scan it is tried again
            log.exception("the capacity of devices is not known")
            with self._lock:
                self._is_asking = False
            return
        until = self._clock() + AGAIN_S
        with self._lock:
            self._is_asking = False
            self._answers |= {_key(device): (answers[device.name], until) for device in devices}
            known = {key: it.capacity for key, (it, _) in self._answers.items() if it.capacity is not None}
        _write(self._memory, known)
        self._on_answer()


def _key(device: RdmaDevice) -> _Key:
    """Return the key under which a device's capacity is remembered. It contains the kernel's index, so a device that is
    removed and created again has another key."""
    return device.name, device.node_guid, device.kernel_index


def _read(path: Path) -> Mapping[_Key, RdmaCapacity]:
    """Return the capacities that an earlier daemon stored since boot; an empty mapping if the file is missing or
    unreadable."""
    try:
        return dict(msgspec.json.decode(path.read_bytes(), type=list[tuple[_Key, RdmaCapacity]]))
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("devices are asked again for their capacity", extra={"file": str(path), "error": str(error)})
        return {}


def _write(path: Path, known: Mapping[_Key, RdmaCapacity]) -> None:
    """Store the capacities for the next daemon. An error is only logged: the next daemon then queries the devices
    again."""
    beside = path.with_suffix(".new")
    try:
        beside.write_bytes(msgspec.json.encode(list(known.items())))
        beside.replace(path)
    except OSError as error:
        log.warning("the capacities of devices are not kept", extra={"file": str(path), "error": str(error)})
