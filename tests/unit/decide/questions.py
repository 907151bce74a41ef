"""Questions about a node of one device."""

from __future__ import annotations

from nri_rdma.decide.decision import Decision, Question
from nri_rdma.decide.policy import Asker, offer
from nri_rdma.model.device import Node
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest
from tests.unit.model.hardware import nic, node
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

ONE = DeviceRequest(name="0", where="HERE[0]", count=1, mode=Mode.EXCLUSIVE)
POLICY = EXCLUSIVE_FIRST


def question(*requests: DeviceRequest, on: Node | None = None, owner: str = "ns/pod", **facts: object) -> Question:
    on = on or node((nic(0),))
    return Question(
        owner=owner,
        asker=Asker(),
        request=PodRequest(requests=requests or (ONE,)),
        node=on,
        policy=POLICY,
        offer=offer(POLICY, on),
        **facts,  # type: ignore[arg-type]  # fields of Question, by name
    )


def names(decision: Decision) -> list[str]:
    return [device.name for item in decision.placed for device in item.devices]
