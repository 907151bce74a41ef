"""Requests placed on nodes that tests describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from nri_rdma.decide.placement import Holding, place
from nri_rdma.decide.policy import Admitted, Offer, offer
from nri_rdma.model.device import CharKind, DeviceId, Node
from nri_rdma.model.request import DEFAULT_CHAR_KINDS, Align, AlignTo, DeviceRequest, Match, Mode
from tests.unit.model.hardware import gpu, gpu_address, nic, node
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

STRICT_GPU = Align(to=AlignTo.GPU, strict=True)
STRICT_NUMA = Align(to=AlignTo.NUMA, strict=True)


def asking(
    name: str = "0",
    *,
    match: Match | None = None,
    count: int | None = 1,
    if_free: bool = False,
    gpus: tuple[int, ...] = (),
    align: Align | None = None,
    mode: Mode = Mode.EXCLUSIVE,
    kinds: frozenset[CharKind] = DEFAULT_CHAR_KINDS,
) -> Admitted:
    request = DeviceRequest(
        name=name,
        where=f"HERE[{name}]",
        match=match or Match(),
        count=count,
        if_free=if_free,
        gpus=tuple(map(gpu_address, gpus)),
        align=align,
        char_kinds=kinds,
    )
    return Admitted(request=request, mode=mode)


def everything(on: Node) -> Offer:
    return offer(EXCLUSIVE_FIRST, on)


def named(device: str, name: str = "0") -> Admitted:
    return asking(name, match=Match(device=device))


def held(*numbers: int, mode: Mode = Mode.EXCLUSIVE) -> dict[DeviceId, frozenset[Holding]]:
    return {nic(number).id: frozenset({Holding(owner="ns/other", mode=mode)}) for number in numbers}


def lost(on: Node, *numbers: int) -> Node:
    """The node with these devices' ports down."""
    devices = [
        replace(
            device,
            ports=tuple(replace(port, state="DOWN") for port in device.ports) if number in numbers else device.ports,
        )
        for number, device in enumerate(on.devices)
    ]
    return replace(on, devices=tuple(devices))


def set_down(on: Node, *numbers: int) -> Node:
    """The node with these devices' netdevs set down, and with them their ports."""
    devices = [
        replace(device, netdevs=tuple(replace(netdev, up=False) for netdev in device.netdevs))
        if number in numbers
        else device
        for number, device in enumerate(lost(on, *numbers).devices)
    ]
    return replace(on, devices=tuple(devices))


def chosen(
    on: Node, *requests: Admitted, taken: Mapping[DeviceId, frozenset[Holding]] | None = None
) -> tuple[list[str], ...]:
    return tuple([device.name for device in item.devices] for item in place(on, everything(on), taken or {}, requests))


NODES = st.builds(
    lambda devices, gpus: node(tuple(devices), tuple(gpus)),
    st.integers(0, 6).flatmap(
        lambda count: st.tuples(
            *(
                st.builds(
                    lambda number, root, numa, used: nic(
                        number, root=root * 8 + number, numa=numa, in_use=("bond0",) * used
                    ),
                    st.just(number),
                    st.integers(0, 3),
                    st.none() | st.integers(0, 1),
                    st.integers(0, 1),
                )
                for number in range(count)
            )
        )
    ),
    st.just([gpu(number, root=number * 8, numa=number % 2) for number in range(4)]),
)
