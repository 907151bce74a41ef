"""A claim in protobuf has other entries afterwards, and all other bytes as before. Protobuf is written by hand here."""

from __future__ import annotations

import json

import pytest

from nri_rdma.doors.dra.claim_bytes import version_of, with_devices
from nri_rdma.errors import ApiServerError
from tests.rig.kubelet import fields, message, text, whole

OURS = "rdma.noderesource.dev"
PARAMETERS = b'{ "mode" : "shared",\n "x": "<&>" }'
METADATA = text(1, "rails") + text(5, "u1") + text(6, "41") + message(99, b"of a later release")
SPEC = message(1, message(3, PARAMETERS))
ALLOCATION = message(1, message(2, message(4, PARAMETERS)))
RESERVED = text(3, "pods") + text(5, "uid-1")
THEIRS = text(1, "gpu.example.com") + text(2, "p") + text(3, "g0") + message(77, b"unknown to us")
OLD = text(1, OURS) + text(2, "node-a") + text(3, "d0") + message(4, text(1, "Ready") + text(2, "False"))
DEVICE, DEVICES, ALLOCATED, RESERVED_FOR = 3, 4, 1, 2


def in_envelope(claim: bytes) -> bytes:
    """The claim as the API server answers."""
    return b"k8s\x00" + message(1, text(1, "resource.k8s.io/v1") + text(2, "ResourceClaim")) + message(2, claim)


def claim_in(data: bytes) -> dict[int, list[bytes]]:
    """The fields of a claim's message."""
    assert data.startswith(b"k8s\x00")
    outer = dict(fields(data[4:]))
    assert dict(fields(outer[1])) == {1: b"resource.k8s.io/v1", 2: b"ResourceClaim"}
    return grouped(outer[2])


def grouped(data: bytes) -> dict[int, list[bytes]]:
    """The values of each field."""
    found: dict[int, list[bytes]] = {}
    for number, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


STATUS = message(1, ALLOCATION) + message(2, RESERVED) + message(4, OLD) + message(4, THEIRS)
CLAIM = in_envelope(message(1, METADATA) + message(2, SPEC) + message(3, STATUS))
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Attached",
    "message": "it is attached",
    "lastTransitionTime": "2030-01-01T10:00:00Z",
}
ENTRY = {
    "driver": OURS,
    "pool": "node-a",
    "device": "d0",
    "shareID": "5e2f",
    "conditions": [READY | {"observedGeneration": 3}],
    "data": {"mode": "shared"},
    "networkData": {"interfaceName": "rail0", "ips": ["192.0.2.7/24", "fd00::7/64"], "hardwareAddress": "02:00"},
}


def test_all_but_our_entries_keeps_its_bytes() -> None:
    told = claim_in(with_devices(CLAIM, [ENTRY, {"driver": "gpu.example.com"}]))
    assert grouped(told[1][0]) == grouped(METADATA)
    assert told[2] == [SPEC]
    status = grouped(told[3][0])
    assert (status[ALLOCATED], status[RESERVED_FOR]) == ([ALLOCATION], [RESERVED])
    assert [grouped(it)[1] for it in status[DEVICES]] == [[b"gpu.example.com"], [OURS.encode()]]
    assert grouped(status[DEVICES][0]) == grouped(THEIRS)


def test_an_entry_has_what_its_json_says() -> None:
    (_, entry) = grouped(claim_in(with_devices(CLAIM, [ENTRY]))[3][0])[DEVICES]
    told = grouped(entry)
    assert (told[1], told[2], told[3], told[7]) == ([OURS.encode()], [b"node-a"], [b"d0"], [b"5e2f"])
    since = message(4, whole(1, 1893492000))  # `date -u -d 2030-01-01T10:00:00Z +%s`
    texts = text(1, "Ready") + text(2, "True"), text(5, "Attached") + text(6, "it is attached")
    assert told[4] == [texts[0] + whole(3, 3) + since + texts[1]]
    assert json.loads(dict(fields(told[5][0]))[1]) == {"mode": "shared"}
    network = grouped(told[6][0])
    assert network == {1: [b"rail0"], 2: [b"192.0.2.7/24", b"fd00::7/64"], 3: [b"02:00"]}


def test_an_entry_that_is_gone_is_gone_and_one_without_more_has_no_more() -> None:
    plain = {"driver": OURS, "pool": "p", "device": "d", "conditions": [READY]}
    status = grouped(claim_in(with_devices(CLAIM, [plain]))[3][0])
    assert {5, 6, 7} & set(grouped(status[DEVICES][1])) == set()
    assert [grouped(it)[DEVICE] for it in grouped(claim_in(with_devices(CLAIM, []))[3][0])[DEVICES]] == [[b"g0"]]


def test_the_resource_version_is_known() -> None:
    assert version_of(CLAIM) == "41"


@pytest.mark.parametrize("data", [b"", b"{}", b"k8s\x00\xff", b"k8s\x00" + message(2, b"\x0a\xff")])
def test_what_is_no_claim_is_an_error_of_the_api_server(data: bytes) -> None:
    with pytest.raises(ApiServerError, match="no claim in protobuf"):
        version_of(data)
