"""What the RDMA devices of this node can have, asked once per device and remembered.

A worker asks when the node was read and a device is new, and has the node read again: no pod waits for a device.
Answers outlive the daemon, in a file that goes with the boot as the kernel's numbers of devices do.
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
"""How long a failure is remembered; after that, the next reading of the node asks again."""

_Key: TypeAlias = tuple[str, str, int | None]


class Capacities:
    """Capacities by device. Only devices of pools with shares are asked; without such pools nothing is. Safe for use by
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
        """`on_answer` has the node read again; `memory` is the file in which answers are kept."""
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
        """Each with the time at which a failure is forgotten, in seconds of the clock."""
        self.settled: Future[None] = Future()
        """Done when, for the first time, a reading of the node has the answers of all devices that are asked."""

    @property
    def pids(self) -> frozenset[int]:
        """Return the processes that have devices open to ask them, which is no use."""
        return self._process.pids

    def close(self) -> None:
        """End a process that still asks. Before the workers."""
        self._process.close()

    def added_to(self, node: Node) -> Node:
        """Return the node with what its devices have answered. From memory."""
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
        """Have a worker ask the devices that are new on this node."""
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
        answers = self._process.ask([device.name for device in devices])
        until = self._clock() + AGAIN_S
        with self._lock:
            self._is_asking = False
            self._answers |= {_key(device): (answers[device.name], until) for device in devices}
            known = {key: it.capacity for key, (it, _) in self._answers.items() if it.capacity is not None}
        _write(self._memory, known)
        self._on_answer()


def _key(device: RdmaDevice) -> _Key:
    """Return what a device is while it is the same: one that is removed and made again has another index."""
    return device.name, device.node_guid, device.kernel_index


def _read(path: Path) -> Mapping[_Key, RdmaCapacity]:
    """Return what an earlier daemon of this boot was answered; nothing where that cannot be read."""
    try:
        return dict(msgspec.json.decode(path.read_bytes(), type=list[tuple[_Key, RdmaCapacity]]))
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("devices are asked again for their capacity", extra={"file": str(path), "error": str(error)})
        return {}


def _write(path: Path, known: Mapping[_Key, RdmaCapacity]) -> None:
    """Keep the answers for the next daemon, which otherwise asks again."""
    beside = path.with_suffix(".new")
    try:
        beside.write_bytes(msgspec.json.encode(list(known.items())))
        beside.replace(path)
    except OSError as error:
        log.warning("the capacities of devices are not kept", extra={"file": str(path), "error": str(error)})
