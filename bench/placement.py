"""How long it takes to choose the devices of a pod on a node of 16 GPUs and 16 adapters, pairs of both below one root.

The floor is what a choice by the nearest pair would need at least: all 256 distances, sorted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.figures import Row, paired_row
from nri_rdma.decide.placement import place
from nri_rdma.decide.policy import Admitted, default_policy, offer
from nri_rdma.decide.topology import distance
from nri_rdma.model.request import DeviceRequest, Mode
from tests.unit.model.hardware import gpu, nic, node

SIZE, BLOCK = 16, 20
LIMIT_MS = 1.0
MS_PER_NS = 1e-6
SHAPES = {"16 GPUs ask for 16": (16, 16), "8 GPUs ask for 16": (8, 16), "1 GPU asks for 1": (1, 1), "no GPU, 8": (0, 8)}
"""GPUs of the pod, and devices that it asks for."""


def rows(rounds: int) -> list[Row]:
    """One for each shape."""
    on = node(
        tuple(nic(number, root=number // 2, numa=number // 8) for number in range(SIZE)),
        tuple(gpu(number, root=number // 2, numa=number // 8) for number in range(SIZE)),
    )
    offered = offer(default_policy(allow_exclusive=True), on)

    def nearest_pairs() -> None:
        sorted(distance(device, its) for device in on.devices for its in on.gpus)

    def choice(gpus: int, count: int) -> Callable[[], None]:
        addresses = tuple(item.pci for item in on.gpus[:gpus])
        asked = Admitted(request=DeviceRequest(name="0", where="", count=count, gpus=addresses), mode=Mode.EXCLUSIVE)

        def choose() -> None:
            if len(place(on, offered, {}, (asked,))[0].devices) != count:
                raise RuntimeError(f"{count} devices were not placed")

        return choose

    return [
        paired_row(
            f"placement on 16 x 16, {name}",
            *_paired(nearest_pairs, choice(*shape), rounds),
            unit="ms",
            scale=MS_PER_NS,
            limit=LIMIT_MS,
        )
        for name, shape in SHAPES.items()
    ]


def _paired(
    floor: Callable[[], None], ours: Callable[[], None], rounds: int
) -> tuple[list[list[int]], list[list[int]]]:
    blocks = [(_block(floor), _block(ours)) for _ in range(rounds)]
    return [its for its, _ in blocks], [mine for _, mine in blocks]


def _block(work: Callable[[], None]) -> list[int]:
    """Nanoseconds of each, back to back."""
    times = []
    for _ in range(BLOCK):
        begin = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - begin)
    return times
