"""Entries of a claim's status: what they say, what of others stays, and the API's limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nri_rdma.doors.dra.statuses import ClaimState, changed_devices
from nri_rdma.engine.claim_states import CdiState
from nri_rdma.model.claim import GivenDevice, GivenProof
from nri_rdma.model.request import Mode

OURS = "rdma.noderesource.dev"
NIC = f"{OURS}/claim=u1-nic"
NOW, BEFORE = "2030-01-02T03:04:05Z", "2029-01-01T00:00:00Z"


def result(device: str = "d0", driver: str = OURS, request: str = "nic", **more: Any) -> dict[str, Any]:
    return {"driver": driver, "pool": "node-a", "device": device, "request": request, **more}


def claim(*results: dict[str, Any], devices: list[dict[str, Any]] | None = None, **metadata: Any) -> dict[str, Any]:
    """A claim that was allocated this, and what its status says of it."""
    status: dict[str, Any] = {"allocation": {"devices": {"results": [*results]}}}
    if devices is not None:
        status["devices"] = devices
    return {"metadata": {"uid": "u1", "generation": 7, **metadata}, "status": status}


def given(device: str = "d0", **more: Any) -> GivenDevice:
    told: dict[str, Any] = {"rdma_device": "mlx5_0", "nodes": ("/dev/infiniband/uverbs0",), "mode": Mode.EXCLUSIVE}
    return GivenDevice(device=device, **{**told, **more})


def state(
    *devices: GivenDevice, returning: str | None = None, was_given: bool = False, failure: str = "", refusal: str = ""
) -> ClaimState:
    now = CdiState(given=devices, is_returning=returning is not None, undo_error=returning or "")
    return ClaimState(
        states={NIC: now} if devices or returning is not None else {},
        was_given=frozenset({NIC} if was_given else ()),
        failures={NIC: failure} if failure else {},
        refusal=refusal,
    )


def entry(asked: dict[str, Any], known: ClaimState) -> dict[str, Any]:
    """The only entry that is to be written."""
    (made,) = changed_devices(asked, known, NOW) or [{}]
    return dict(made)


def condition(asked: dict[str, Any], known: ClaimState) -> tuple[str, str, str]:
    (made,) = entry(asked, known)["conditions"]
    return made["status"], made["reason"], made["message"]


def ready(status: str, reason: str, message: str = "", at: str = BEFORE) -> dict[str, Any]:
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at,
        "observedGeneration": 7,
    }


def test_an_attached_device_is_ready_with_its_network_and_our_object() -> None:
    it = given(interface="rail0", mac="02:00:00:00:00:01", addresses=("192.0.2.7/24", "2001:DB8::7/64"))
    assert entry(claim(result()), state(it)) == {
        "driver": OURS,
        "pool": "node-a",
        "device": "d0",
        "conditions": [ready("True", "Attached", "mlx5_0 is attached in mode exclusive, with netdev rail0", NOW)],
        "data": {"rdmaDevice": "mlx5_0", "mode": "exclusive", "nodes": ["/dev/infiniband/uverbs0"]},
        "networkData": {
            "interfaceName": "rail0",
            "hardwareAddress": "02:00:00:00:00:01",
            "ips": ["192.0.2.7/24", "2001:db8::7/64"],
        },
    }


def test_a_shared_device_has_no_network() -> None:
    made = entry(claim(result()), state(given(mode=Mode.SHARED)))
    assert ("networkData" in made, made["data"]["mode"]) == (False, "shared")


def test_a_claim_without_a_generation_has_conditions_without_one() -> None:
    asked = claim(result())
    del asked["metadata"]["generation"]
    assert "observedGeneration" not in entry(asked, state(given()))["conditions"][0]


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        (state(failure="the sentence"), ("False", "AttachFailed", "the sentence")),
        (state(refusal="the sentence"), ("False", "PrepareFailed", "the sentence")),
        (state(was_given=True), ("False", "Returned", "the device is on the host, and no pod has it")),
        (
            state(returning="it hangs", was_given=True),
            ("False", "Returning", "the device is being returned to the host. it hangs"),
        ),
    ],
    ids=["attach failed", "prepare failed", "returned", "returning"],
)
def test_what_no_pod_has_is_not_ready_with_the_reason(known: ClaimState, wanted: tuple[str, str, str]) -> None:
    attached = {**result(), "conditions": [ready("True", "Attached")], "data": {"x": 1}, "networkData": {"ips": []}}
    del attached["request"]
    for asked in (claim(result()), claim(result(), devices=[attached])):
        assert condition(asked, known) == wanted
        assert entry(asked, known).keys() == {"driver", "pool", "device", "conditions"}


def test_a_device_that_is_attached_is_ready_whatever_failed_before() -> None:
    assert condition(claim(result()), state(given(), failure="no", refusal="no"))[:2] == ("True", "Attached")


@pytest.mark.parametrize("known", [state(), state(returning="")], ids=["nothing is known", "being returned"])
def test_what_nobody_saw_attached_replaces_only_an_entry_that_is_ready(known: ClaimState) -> None:
    base = {"driver": OURS, "pool": "node-a", "device": "d0"}
    assert changed_devices(claim(result()), known, NOW) is None
    failed = claim(result(), devices=[{**base, "conditions": [ready("False", "AttachFailed")]}])
    assert changed_devices(failed, known, NOW) is None
    attached = claim(result(), devices=[{**base, "conditions": [ready("True", "Attached")]}])
    assert condition(attached, known)[0] == "False"


def test_what_is_so_already_is_not_written_and_a_condition_keeps_its_time_until_it_changes() -> None:
    first = changed_devices(claim(result()), state(given()), BEFORE)
    assert first is not None
    written = [dict(it) for it in first]
    assert changed_devices(claim(result(), devices=written), state(given()), NOW) is None
    (renamed,) = entry(claim(result(), devices=written), state(given(rdma_device="mlx5_9")))["conditions"]
    assert (renamed["lastTransitionTime"], "mlx5_9" in renamed["message"]) == (BEFORE, True)
    (returned,) = entry(claim(result(), devices=written), state(was_given=True))["conditions"]
    assert returned["lastTransitionTime"] == NOW


def test_entries_of_other_drivers_and_conditions_of_other_types_stay() -> None:
    theirs = {"driver": "gpu.example.com", "pool": "p", "device": "d0", "data": {"any": [1]}}
    other = {"type": "Checked", "status": "True", "reason": "By", "message": "", "lastTransitionTime": BEFORE}
    mine = {"driver": OURS, "pool": "node-a", "device": "d0", "conditions": [other]}
    asked = claim(result(driver="gpu.example.com"), result(), devices=[theirs, mine])
    first, second = changed_devices(asked, state(given()), NOW) or []
    assert first == theirs
    assert [it["type"] for it in second["conditions"]] == ["Ready", "Checked"]
    assert second["conditions"][0]["lastTransitionTime"] == NOW  # that of the other one says nothing of it


def test_a_claim_without_an_allocation_gets_nothing() -> None:
    assert changed_devices({"metadata": {"uid": "u1"}, "status": {}}, state(given()), NOW) is None
    assert changed_devices({"metadata": {"uid": "u1"}}, state(given()), NOW) is None


def test_each_device_of_a_request_has_its_entry_and_a_share_its_id() -> None:
    asked = claim(result("d0", request="nic/fast"), result("d1", request="nic/fast", shareID="s1"), result("d2"))
    made = changed_devices(asked, state(given("d1"), given("d0", rdma_device="mlx5_7")), NOW) or []
    assert [(it["device"], it.get("shareID"), it["data"]["rdmaDevice"]) for it in made] == [
        ("d0", None, "mlx5_7"),
        ("d1", "s1", "mlx5_0"),
    ]


def test_nothing_is_longer_than_the_api_takes() -> None:
    """Limits: types.go of resource.k8s.io/v1."""
    it = given(
        rdma_device="m" * 300,
        nodes=tuple(f"/dev/infiniband/{number:0200}" for number in range(100)),
        interface="é" * 300,
        mac="a" * 300,
        addresses=tuple(f"10.0.0.{number}/24" for number in range(20)),
    )
    many = [
        {"type": f"T{number}", "status": "True", "reason": "R", "message": "", "lastTransitionTime": BEFORE}
        for number in range(8)
    ]
    asked = claim(result(), devices=[{"driver": OURS, "pool": "node-a", "device": "d0", "conditions": many}])
    made = entry(asked, state(it))
    network = made["networkData"]
    assert len(network["interfaceName"].encode()) <= 256
    assert len(network["hardwareAddress"]) <= 128
    assert network["ips"] == [f"10.0.0.{number}/24" for number in range(16)]
    assert len(made["conditions"]) == 8
    assert made["conditions"][0]["type"] == "Ready"
    assert len(json.dumps(made["data"])) <= 10 * 1024
    assert made["data"]["nodes"]
    long = condition(claim(result()), state(failure="ü" * 40000))[2]
    assert len(long.encode()) <= 32768


def test_an_object_may_be_as_large_as_the_api_takes_and_a_larger_one_has_fewer_nodes() -> None:
    bare = len(json.dumps({"rdmaDevice": "mlx5_0", "mode": "exclusive", "nodes": ["", "", ""]}))
    for more, nodes in ((0, 3), (1, 1)):
        last = "n" * (10 * 1024 - bare - len("ab") + more)
        data = entry(claim(result()), state(given(nodes=("a", "b", last))))["data"]
        assert len(data["nodes"]) == nodes


def test_a_text_may_be_as_long_as_the_api_takes() -> None:
    assert [len(condition(claim(result()), state(failure="e" * it))[2]) for it in (32768, 32769)] == [32768] * 2


def test_addresses_are_each_there_once_and_in_the_form_that_the_api_takes() -> None:
    it = given(interface="r", addresses=("10.0.0.1/24", "10.0.0.1/24", "::ffff:1.2.3.4/96", "FD00::0:1/64"))
    assert entry(claim(result()), state(it))["networkData"]["ips"] == ["10.0.0.1/24", "fd00::1/64"]
    assert "ips" not in entry(claim(result()), state(given(interface="r")))["networkData"]


def test_each_share_of_a_device_keeps_its_own_entry() -> None:
    shares = [{"driver": "other.example.com", "pool": "p", "device": "d", "shareID": it} for it in ("a", "b")]
    told = changed_devices(claim(result(), devices=shares), state(given()), NOW)
    assert told is not None
    assert [it.get("shareID") for it in told] == ["a", "b", None]


def test_a_device_that_was_to_be_proven_has_a_condition_for_it_as_long_as_a_pod_has_it() -> None:
    proven, refused = GivenProof(code="", words="mlx5_0:1 roce"), GivenProof(code="PROOF-PORT", words="the sentence")
    first = entry(claim(result()), state(given(proof=refused)))
    assert [it["type"] for it in first["conditions"]] == ["Ready", "Proven"]
    told = {key: first["conditions"][1][key] for key in ("status", "reason", "message")}
    assert told == {"status": "False", "reason": "ProofPort", "message": "the sentence"}
    other = {"type": "Other", "status": "True", "reason": "X", "message": "", "lastTransitionTime": BEFORE}
    first["conditions"].append(other)
    second = entry(claim(result(), devices=[first]), state(given(proof=proven)))
    assert [it["type"] for it in second["conditions"]] == ["Ready", "Proven", "Other"]
    assert (second["conditions"][1]["status"], second["conditions"][1]["reason"]) == ("True", "Proven")
    assert changed_devices(claim(result(), devices=[second]), state(given(proof=proven)), "2031") is None
    last = entry(claim(result(), devices=[second]), state(was_given=True))
    assert [it["type"] for it in last["conditions"]] == ["Ready", "Other"]
