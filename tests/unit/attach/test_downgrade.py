"""A daemon of before reads what this one writes: records have the fields that it knows, and no others.

records_of_824dbd82.json is what the code of that commit wrote. It was made with this file copied into a worktree of it,
by `python -m tests.unit.attach.test_downgrade`. Never write it anew: a record that differs from it cannot be read after
a downgrade, and the netdevs of its pod stay where they are.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.attach.journal import decode_record, encode_record
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.decide.placement import Placed
from nri_rdma.decide.policy import Admitted
from nri_rdma.decide.share_requests import device_request, share_requests
from nri_rdma.doors.oci.questions import Wish, annotation_of
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import DeviceRequest, Mode
from nri_rdma.text.annotations import PREFIX, parse_pod_request
from tests.fakes.kernel import FakeKernel, World
from tests.unit.attach.builders import POD_PATH, make_device, record_of
from tests.unit.rigs.attachments import add_rail

FILE = Path(__file__).with_name("records_of_824dbd82.json")
POOL = Pool(name="shared", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="example.com/nic", shares=4)


def _annotated(text: str) -> DeviceRequest:
    pod = parse_pod_request({f"{PREFIX}/pod": text})
    assert pod is not None
    (request,) = pod.requests
    return request


def _shared() -> DeviceRequest:
    resources = (DeviceIds(resource=POOL.resource, ids=("shared-0",)),)
    allocation = PodAllocation(containers=(ContainerAllocation(name="main", resources=resources),))
    (request,) = share_requests({POOL.name: POOL}, allocation)
    return request


def _requests() -> Iterator[tuple[str, DeviceRequest]]:
    """The plainest request of each door."""
    yield "annotation", _annotated("1")
    yield "annotation with a condition", _annotated('{"match": {"device": "mlx5_0"}}')
    yield "OCI hook", _annotated(annotation_of((Wish(device="mlx5_0", mode="exclusive", netdev="net1"),), {}))
    yield "share", _shared()
    yield "device of the kubelet", device_request(POOL, "mlx5_0", frozenset({"main"}))
    yield "CDI device", replace(_annotated("1"), cdi_device="example.com/nic=mlx5_0")


def _records() -> Iterator[tuple[str, SandboxRecord]]:
    """What is written for them, of a device that moves and of one that does not."""
    for door, request in _requests():
        for mode in Mode:
            yield f"{door}, {mode}", _record_of(request, mode)


def _record_of(request: DeviceRequest, mode: Mode) -> SandboxRecord:
    world = World()
    world.add_link(world.add_namespace(POD_PATH), "eth0").raise_up()
    add_rail(world, "rail0")
    kernel = FakeKernel(world)
    device = make_device("mlx5_0", kernel.links(kernel.host))
    placed = Placed(admitted=Admitted(request=request, mode=mode), devices=(device,), reasons=("first",))
    return record_of(kernel, kernel.open_namespace(POD_PATH), placed)


def _written() -> dict[str, Any]:
    return {title: json.loads(encode_record(record))["record"] for title, record in _records()}


def _shape(value: Any) -> Any:
    """A value with the names of all its fields, and no more."""
    match value:
        case dict():
            return {key: _shape(it) for key, it in value.items()}
        case list():
            return [_shape(it) for it in value if isinstance(it, dict | list)]
    return None


@pytest.mark.parametrize("title", [title for title, _ in _records()])
def test_a_record_has_the_fields_that_the_daemon_of_before_knows(title: str) -> None:
    assert _shape(_written()[title]) == _shape(json.loads(FILE.read_text())[title]), (
        "have nri_rdma/attach/journal.py leave out the default of a new field: _RARE, _OF_THE_CHOICE; in Match: a tuple"
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"match": {"pfName": "rail0", "protocol": "roce", "pkey": 1, "deviceID": "101e", "exclude": {"netdev": "a"}}}',
        '{"match": {"device": ["mlx5_0", "mlx5_1"], "numaNode": [0, 1], "linkLayer": ["Ethernet", "InfiniBand"]}}',
        '{"count": "free"}',
        '{"perGPU": 1}',
    ],
)
def test_what_only_the_choice_of_devices_needs_is_not_in_it(text: str) -> None:
    request = replace(_annotated(text), cpus=(0, 1))
    plain = json.loads(FILE.read_text())["annotation, shared"]
    (attached,) = plain["attached"]
    record = _record_of(request, Mode.SHARED)
    (written,) = json.loads(encode_record(record))["record"]["attached"]
    known = attached["admitted"]["request"]
    assert written["admitted"]["request"].keys() == known.keys()
    assert written["admitted"]["request"]["match"].items() <= known["match"].items()
    (read,) = decode_record(encode_record(record), where="memory").attached
    assert read.admitted.request == replace(_annotated('{"count": 1}'), count=request.count)


if __name__ == "__main__":
    FILE.write_text(json.dumps(_written(), indent=1, sort_keys=True) + "\n")
