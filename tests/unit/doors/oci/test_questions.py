"""What hooks ask is read into values or refused, and said in the words of a pod's annotation."""

import json
from dataclasses import replace
from typing import Any

import pytest

from nri_rdma.doors.oci.questions import (
    Given,
    HookQuestion,
    Prepared,
    Verb,
    Wish,
    annotation_of,
    holding,
    made_with,
    memlock_of,
    no,
    read_question,
    yes,
)
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.device import CharDevice, CharKind
from nri_rdma.model.request import UNLIMITED, Mode, RdmaLimits
from nri_rdma.text.annotations import PREFIX, parse_pod_request

ASKED: dict[str, Any] = {
    "version": 1,
    "ask": "attach",
    "id": "0123abcd",
    "pid": 42,
    "devices": [{"device": "mlx5_0", "mode": "exclusive", "netdev": "rail0", "memlock": "4096", "hca-objects": "30"}],
    "nodes": [["/dev/infiniband/uverbs0", 231, 192]],
    "cgroup": "machine.slice:libpod:0123abcd",
}


def test_a_question_is_read() -> None:
    assert read_question(json.dumps(ASKED).encode()) == HookQuestion(
        verb=Verb.ATTACH,
        container_id="0123abcd",
        pid=42,
        wishes=(Wish(device="mlx5_0", mode="exclusive", netdev="rail0", memlock="4096", hca_objects="30"),),
        nodes={"/dev/infiniband/uverbs0": (231, 192)},
        cgroups_path="machine.slice:libpod:0123abcd",
    )


def test_who_asks_for_too_many_devices_is_told_how_many_there_may_be() -> None:
    many = [{"device": f"mlx5_{number}"} for number in range(65)]
    with pytest.raises(NriRdmaError) as caught:
        read_question(json.dumps({**ASKED, "devices": many}).encode())
    assert (caught.value.code, caught.value.what, caught.value.hint) == (
        ErrorCode.OCI_STATE,
        "the container asks for 65 devices, and a container can ask for 64",
        "ask for fewer CDI devices (--device)",
    )
    assert len(read_question(json.dumps({**ASKED, "devices": many[1:]}).encode()).wishes) == 64


PREPARE: dict[str, Any] = {
    "version": 1,
    "ask": "prepare",
    "id": "0123abcd",
    "devices": [],
    "annotations": {f"{PREFIX}/pod": "2"},
    "nodes": [],
    "variables": ["NCCL_IB_HCA"],
    "network": False,
}


def test_a_question_of_a_container_that_is_about_to_be_made_is_read() -> None:
    assert read_question(json.dumps(PREPARE).encode()) == HookQuestion(
        verb=Verb.PREPARE,
        container_id="0123abcd",
        annotations={f"{PREFIX}/pod": "2"},
        variables=frozenset({"NCCL_IB_HCA"}),
        has_network=False,
    )


def test_the_variables_that_it_was_made_with_are_read() -> None:
    asked = {**PREPARE, "ask": "attach", "pid": 42, "prepared": {"RDMA_DEVICES_0": "mlx5_0"}}
    question = read_question(json.dumps(asked).encode())
    assert (question.verb, question.wishes, question.prepared) == (Verb.ATTACH, (), {"RDMA_DEVICES_0": "mlx5_0"})


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {}},
        {"annotations": {PREFIX: 2}},
        {"annotations": []},
        {"variables": [1]},
        {"prepared": {"A": None}},
    ],
    ids=str,
)
def test_annotations_and_variables_are_texts(change: dict[str, Any]) -> None:
    with pytest.raises(NriRdmaError) as caught:
        read_question(json.dumps({**PREPARE, **change}).encode())
    assert caught.value.code is ErrorCode.OCI_STATE


def test_of_a_container_that_is_over_its_id_suffices() -> None:
    asked = {"version": 1, "ask": "return", "id": "0123abcd"}
    assert read_question(json.dumps(asked).encode()) == HookQuestion(verb=Verb.RETURN, container_id="0123abcd")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"ask": "steal"},
        {"id": "../journal"},
        {"id": ""},
        {"id": 7},
        {"pid": -1},
        {"pid": "42"},
        {"pid": True},
        {"devices": []},
        {"devices": [{"device": 5}]},
        {"devices": [{"device": "mlx5_0", "colour": "red"}]},
        {"devices": [{"pool": "default"}]},
        {"devices": [{"device": "mlx5_0", "memlock": "much"}]},
        {"memlock": "64"},
        {"memlock": -1},
        {"memlock": True},
        {"devices": [{"device": "mlx5_0", "hca-handles": "few"}]},
        {"devices": [{"device": f"mlx5_{number}"} for number in range(65)]},
        {"nodes": [["/dev/infiniband/uverbs0", 231]]},
        {"nodes": [[1, 231, 192]]},
        {"cgroup": 7},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(NriRdmaError) as caught:
        read_question(json.dumps({**ASKED, **change}).encode())
    assert caught.value.code is ErrorCode.OCI_STATE


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"version": 1}'])
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(NriRdmaError) as caught:
        read_question(data)
    assert caught.value.code is ErrorCode.OCI_STATE


def test_wishes_become_requests_for_just_these_devices() -> None:
    wishes = (
        Wish(device="mlx5_0", mode="exclusive", netdev="rail0", memlock="4096"),
        Wish(device="rxe_eth0", pool="soft", mode="shared", netdev="eth0"),
        Wish(device="mlx5_9", hca_handles="8", hca_objects="30"),
    )
    asked = parse_pod_request({f"{PREFIX}/pod": annotation_of(wishes, {"mlx5_0": "rails", "rxe_eth0": "others"})})
    assert asked is not None
    one, two, three = asked.requests
    assert (one.name, one.match.device, one.pool, one.mode) == ("mlx5-0", "mlx5_0", "rails", Mode.EXCLUSIVE)
    assert one.interface.name == "rail0"
    assert (two.name, two.match.device, two.pool, two.mode) == ("rxe-eth0", "rxe_eth0", "soft", Mode.SHARED)
    assert two.interface.name is None, "a shared device's netdev stays where it is"
    assert (three.match.device, three.pool, three.mode) == ("mlx5_9", "default", None)
    assert [it.limits for it in (one, two, three)] == [None, None, RdmaLimits(hca_handles=8, hca_objects=30)]


@pytest.mark.parametrize(
    ("of_its_own", "given", "held"),
    [(None, None, None), (None, 64, 64), (64, None, 64), (64, 128, 64), (128, 64, 64), (UNLIMITED, 64, 64)],
)
def test_the_lower_memlock_holds_a_program(of_its_own: int | None, given: int | None, held: int | None) -> None:
    question = read_question(json.dumps({**ASKED, "memlock": of_its_own}).encode())
    assert holding(question, given) == held
    assert holding(replace(question, may_lock=True), given) == UNLIMITED


def test_the_most_memlock_that_any_device_asks_for_counts() -> None:
    assert memlock_of((Wish(device="a"), Wish(device="b", memlock="64"), Wish(device="c", memlock="128"))) == 128
    assert memlock_of((Wish(device="a", memlock="64"), Wish(device="b", memlock="unlimited"))) == UNLIMITED
    assert memlock_of((Wish(device="a"),)) is None


def test_answers_are_packets_of_json() -> None:
    node = CharDevice(kind=CharKind.UVERBS, path="/dev/x", major=231, minor=5, mode=0o666, uid=1, gid=2)
    assert json.loads(made_with(Prepared(nodes=(node,), env=(("A", "=b"),)))) == {
        "version": 1,
        "nodes": [["/dev/x", 231, 5, 0o666, 1, 2]],
        "env": [["A", "=b"]],
    }
    assert json.loads(yes(Given(memlock=5, must=True))) == {"version": 1, "memlock": 5, "must": True}
    assert json.loads(no("nri-rdma: no")) == {"version": 1, "refusal": "nri-rdma: no"}


@pytest.mark.parametrize("number", [b"1e999", b"NaN"])
def test_a_number_that_is_infinite_is_refused(number: bytes) -> None:
    data = b'{"version":1,"ask":"attach","id":"box","devices":[{"device":"mlx5_0"}],"nodes":[["/dev/x",%s,1]]}' % number
    with pytest.raises(NriRdmaError) as caught:
        read_question(data)
    assert caught.value.code is ErrorCode.OCI_STATE
