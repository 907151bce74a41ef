"""Whatever the kubelet's answer is, it becomes a value or a refusal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.host.kubelet.podresources_messages import (
    MAX_CPUS,
    MAX_ENTRIES,
    MAX_POD_BYTES,
    MAX_PODS,
    MAX_TEXT,
    allocation_of,
    listed_allocation,
)
from nri_rdma.model.allocation import PodAllocation
from tests.rig.kubelet import Claim, Claimed, Given, message, pod_message


def get_answer(*containers: Given, namespace: str = "web", name: str = "a") -> bytes:
    return message(1, pod_message(namespace, name, containers))


def list_answer(*pods: tuple[str, str, tuple[Given, ...]]) -> bytes:
    return b"".join(message(1, pod_message(*pod)) for pod in pods)


CLAIM = Claim(namespace="web", name="c", devices=(Claimed(driver="d", pool="p", device="x", cdi=("ve/cl=0",)),))
SOUND = Given(name="main", resources={"rdma/hca": ("0", "1")}, claims=(CLAIM,))

BAD = {
    "another pod": (get_answer(SOUND, name="b"), "web/b"),
    "another namespace": (get_answer(SOUND, namespace="other"), "other/a"),
    "no pod": (b"", "about /"),
    "a container twice": (get_answer(SOUND, SOUND), "main is in it twice"),
    "a container without a name": (get_answer(Given(name="")), "no container's name"),
    "a container that is a path": (get_answer(Given(name="../x\n")), "no container's name"),
    "too many ids": (
        get_answer(Given(name="main", resources={"r/x": tuple(map(str, range(MAX_ENTRIES)))})),
        f"more than {MAX_ENTRIES}",
    ),
    "too many containers": (get_answer(*(Given(name=f"c{n}") for n in range(MAX_ENTRIES + 1))), "more than"),
    "too many bytes": (get_answer(Given(name="main", resources={"r/x": ("x" * MAX_POD_BYTES,)})), "bytes"),
    "a long id": (get_answer(Given(name="main", resources={"r/x": ("x" * (MAX_TEXT + 1),)})), "characters"),
    "a long resource": (get_answer(Given(name="main", resources={"x" * (MAX_TEXT + 1): ("0",)})), "characters"),
    "too many CPUs": (get_answer(Given(name="main", cpus=tuple(range(MAX_CPUS + 1)))), f"more than {MAX_CPUS} CPUs"),
    "a long claim": (
        get_answer(Given(name="main", claims=(Claim(namespace="web", name="x" * (MAX_TEXT + 1)),))),
        "characters",
    ),
}


@pytest.mark.parametrize(("data", "why"), BAD.values(), ids=BAD.keys())
def test_an_answer_that_leaves_open_what_the_pod_was_given_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(KubeletError) as caught:
        allocation_of(data, "web", "a")
    assert caught.value.code is ErrorCode.KUBELET_ANSWER
    assert why in caught.value.what
    assert caught.value.where == "pod web/a"


def test_as_many_entries_as_are_allowed_are_read() -> None:
    ids = tuple(map(str, range(MAX_ENTRIES // 2 - 1)))  # each comes with the resource's name, beside the container's
    told = allocation_of(get_answer(Given(name="main", resources={"r/x": ids})), "web", "a")
    assert len(told.containers[0].resources[0].ids) == len(ids)


def test_the_cpus_that_a_container_has_alone_are_read() -> None:
    told = allocation_of(get_answer(Given(name="main", cpus=(200, 8, 9)), Given(name="sidecar")), "web", "a")
    assert [(it.name, it.cpus) for it in told.containers] == [("main", (8, 9, 200)), ("sidecar", ())]
    assert not told.named  # CPUs are no devices


def test_a_pod_with_many_claimed_devices_is_read() -> None:
    devices = [
        Claimed(driver="net.example.com", pool="node-17", device=f"vf-{n}", cdi=(f"k8s.net.example.com/vf=claim-{n}",))
        for n in range(256)
    ]
    claims = (Claim(namespace="web", name=f"c-{n}", devices=tuple(devices[n : n + 32])) for n in range(0, 256, 32))
    data = get_answer(Given(name="main", claims=tuple(claims)))
    assert 100_000 < len(data) < 200_000
    assert len(allocation_of(data, "web", "a").containers[0].cdi_devices) == 256


def test_a_claim_that_says_nothing_of_devices_gives_none() -> None:
    told = allocation_of(get_answer(Given(name="main", claims=(Claim(namespace="web", name="c"),))), "web", "a")
    assert told.named == frozenset()


def test_two_pods_of_one_name_are_told_apart_by_nothing() -> None:
    old, new = ("web", "a", (SOUND,)), ("web", "a", (Given(name="main"),))
    with pytest.raises(KubeletError) as caught:
        listed_allocation(list_answer(old, new), "web", "a")
    assert caught.value.code is ErrorCode.KUBELET_ANSWER
    assert "several pods of that name" in caught.value.what


def test_two_pods_of_one_name_that_were_given_the_same_need_not_be_told_apart() -> None:
    pod = ("web", "a", (SOUND,))
    assert listed_allocation(list_answer(pod, pod), "web", "a") == allocation_of(get_answer(SOUND), "web", "a")


def test_another_pods_odd_entry_does_not_spoil_ours() -> None:
    odd = ("web", "b", (Given(name="-"), Given(name="-")))
    assert listed_allocation(list_answer(odd, ("web", "a", (SOUND,))), "web", "a") is not None


def test_an_answer_with_more_pods_than_a_node_has_is_refused() -> None:
    with pytest.raises(KubeletError, match=f"more than {MAX_PODS} pods"):
        listed_allocation(message(1, b"") * (MAX_PODS + 1), "web", "a")


@given(data=st.binary(max_size=200))
@settings(max_examples=500)
def test_any_bytes_become_a_value_or_a_refusal(data: bytes) -> None:
    _read_both(data)


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 10_000))
@settings(max_examples=500)
def test_any_damage_to_an_answer_becomes_a_value_or_a_refusal(at: int, byte: int, cut: int) -> None:
    data = bytearray(get_answer(SOUND, Given(name="other")))
    data[at % len(data)] = byte
    _read_both(bytes(data[: max(1, cut % (len(data) + 1))]))


def _read_both(data: bytes) -> None:
    for read in (allocation_of, listed_allocation):
        try:
            told = read(data, "web", "a")
        except KubeletError as error:
            assert error.code is ErrorCode.KUBELET_ANSWER
        else:
            assert told is None or isinstance(told, PodAllocation)
