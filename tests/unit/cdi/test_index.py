"""The CDI devices of a node, found by name, and by what a container has."""

from __future__ import annotations

import timeit
import traceback
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.cdi.index import CLAIM_KEY, Index
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.device import CharDevice, DeviceNumbers, Node
from tests.unit.cdi.specs import KEY, RDMA_CM, edits, one, registry, spec_text, uverbs_path
from tests.unit.model import hardware
from tests.unit.model.hardware import eight, nic, node, umad, uverbs


def index(*texts: str, on: Node | None = None) -> Index:
    return Index(registry(*texts), on or eight(), KEY)


def present(*chars: CharDevice) -> dict[str, DeviceNumbers]:
    """Device nodes of a container."""
    return {char.path: (char.major, char.minor) for char in chars}


def vf(*names: str) -> tuple[str, ...]:
    return tuple(f"net.example/vf={name}" for name in names)


def pair(*numbers: int) -> dict[str, object]:
    return edits(RDMA_CM, *(uverbs_path(number) for number in numbers))


# By name


def test_a_cdi_device_is_found_by_its_name() -> None:
    found = index(one(uverbs_path(3))).meaning("net.example/vf=vf0")
    assert found is not None
    assert [device.name for device in found.devices] == ["mlx5_3"]


def test_what_is_no_cdi_device_or_none_of_ours_means_nothing() -> None:
    made = index(one("/dev/nvidia0"))
    assert made.meaning("net.example/vf=vf0") is None
    assert made.meaning("net.example/vf=other") is None
    assert (made.is_for_any, made.is_empty) == (False, True)


def test_an_index_with_rdma_devices_is_relevant_also_when_its_spec_is_wrong() -> None:
    assert index(one(uverbs_path(0))).is_for_any
    assert index(one(uverbs_path(0), key="{x: 1}")).is_for_any


def test_devices_of_our_claims_are_for_the_pods_of_the_claim_and_others_for_any() -> None:
    ours = spec_text({"vf1": edits(uverbs_path(0))}, common_annotations={CLAIM_KEY: "team/rails"})
    assert (index(ours).is_for_any, index(ours).is_empty) == (False, False)
    assert index(ours, one(uverbs_path(1))).is_for_any
    assert not index(spec_text({"gpu": edits("/dev/nvidia0")})).is_for_any


def test_what_was_not_parsed_again_keeps_its_meaning_unless_the_node_has_changed() -> None:
    on, told = eight(), registry(one(uverbs_path(3)), one("/dev/nvidia0", name="gpu"))
    first = Index(told, on, KEY)
    name = "net.example/vf=vf0"
    again = Index(told, on, KEY, first)
    assert again.meaning(name) is first.meaning(name)
    assert (again.nodes(name), again.knows("net.example/vf=gpu")) == (first.nodes(name), False)
    assert again.recognise(present(*on.devices[3].char_devices)) == first.recognise(
        present(*on.devices[3].char_devices)
    )
    changed = Index(registry(one(uverbs_path(5))), on, KEY, again).meaning(name)
    assert changed is not None
    assert [it.name for it in changed.devices] == ["mlx5_5"]
    other = Index(told, replace(on, devices=on.devices[:3]), KEY, again)
    assert not other.knows(name)
    assert Index(told, on, KEY, other).knows(name)
    unasked = Index(registry(one(uverbs_path(3), key="{mode: shared}")), on, "other.example", None)
    asked = Index(registry(one(uverbs_path(3), key="{mode: shared}")), on, KEY, unasked).meaning(name)
    assert asked is not None
    assert asked.asked


def test_what_is_wrong_is_told_each_time_and_does_not_grow() -> None:
    made = index(one(uverbs_path(0), key="{x: 1}"))
    for _ in range(50):
        with pytest.raises(RequestError) as caught:
            made.meaning("net.example/vf=vf0")
        assert caught.value.code is ErrorCode.ANNOTATION_UNKNOWN_KEY
    assert len(traceback.extract_tb(caught.value.__traceback__)) < 5


def test_a_wrong_spec_does_not_spoil_others() -> None:
    text = spec_text(
        {"bad": edits(uverbs_path(0)), "good": edits(uverbs_path(1))}, {"bad": {KEY: "["}, "good": {KEY: "{}"}}
    )
    found = index(text).meaning("net.example/vf=good")
    assert found is not None
    assert found.asked


def test_a_device_belongs_to_the_vendor_whose_cdi_devices_have_its_nodes() -> None:
    made = index(one(uverbs_path(0)), spec_text({"x": pair(1)}, kind="other.example/nic"))
    nics = eight().devices
    assert {key: set(own) for key, own in made.vendors_of.items()} == {
        nics[0].id: {"net.example"},
        nics[1].id: {"other.example"},
    }


def test_a_container_has_no_paths_of_a_cdi_device_whose_spec_is_gone() -> None:
    """A driver removes the spec while the pod still has what was attached for it."""
    made = index(one(uverbs_path(0)))
    assert made.has_paths("net.example/vf=vf0", present(uverbs(0)))
    assert not made.has_paths("net.example/vf=gone", present(uverbs(0)))


# By device nodes


def test_a_container_with_all_rdma_nodes_of_a_cdi_device_is_recognised() -> None:
    made = index(spec_text({"a": pair(0), "b": pair(1)}))
    assert made.recognise(present(hardware.RDMA_CM, uverbs(1))) == vf("b")
    assert made.recognise(present(hardware.RDMA_CM, uverbs(1), uverbs(0))) == vf("a", "b")


def test_a_container_without_one_of_the_nodes_is_not() -> None:
    made = index(spec_text({"a": pair(0, 1)}))
    assert made.recognise(present(hardware.RDMA_CM, uverbs(0))) == ()
    assert made.recognise(present(uverbs(0), uverbs(1))) == ()  # rdma_cm is missing
    assert made.recognise({}) == ()


def test_other_nodes_of_a_container_do_not_matter() -> None:
    made = index(one(uverbs_path(0)))
    others = {"/dev/null": (1, 3), "/dev/nvidia0": (195, 0), "/dev/infiniband/uverbs7": (231, 199)}
    assert made.recognise({**others, **present(uverbs(0))}) == vf("vf0")


def test_a_node_with_another_number_is_another_device() -> None:
    """A spec with numbers of yesterday, or a device that has come back with others."""
    made = index(one(uverbs_path(0)))
    assert made.recognise({uverbs_path(0): (231, 193)}) == ()


def test_a_node_at_another_path_is_not_the_cdi_devices() -> None:
    assert index(one(uverbs_path(0))).recognise({"/dev/infiniband/uverbs1": (231, 192)}) == ()


def test_paths_are_the_containers_and_numbers_the_hosts() -> None:
    moved = {"path": "/dev/infiniband/uverbs0", "hostPath": uverbs_path(5)}
    made = index(spec_text({"a": edits(nodes=[moved])}))
    assert made.recognise({"/dev/infiniband/uverbs0": (231, 197)}) == vf("a")
    assert made.recognise({"/dev/infiniband/uverbs5": (231, 197)}) == ()


@pytest.mark.parametrize("path", [RDMA_CM, "/dev/infiniband/umad0"])
def test_without_verbs_nothing_is_recognised(path: str) -> None:
    made = index(one(path), on=node((nic(0, chars=(uverbs(0), umad(0))),)))
    assert made.recognise(present(hardware.RDMA_CM, uverbs(0), umad(0))) == ()


def test_a_node_that_nobody_has_a_number_for_makes_a_cdi_device_unrecognisable() -> None:
    """Its container could not have been made; one that has the rest has another CDI device."""
    made = index(spec_text({"both": edits(uverbs_path(0), uverbs_path(99)), "single": edits(uverbs_path(0))}))
    assert made.recognise(present(uverbs(0))) == vf("single")
    alone = index(one(uverbs_path(0), uverbs_path(99)))
    assert alone.recognise(present(uverbs(0))) == ()
    assert alone.nodes(*vf("vf0")) == {}


def test_where_the_host_has_no_node_the_specs_number_is_what_a_container_has() -> None:
    """Its spec asks us, and names a device that is gone: that is found, and told."""
    gone = {"path": uverbs_path(99), "major": 231, "minor": 300}
    made = index(spec_text({"a": edits(uverbs_path(0), nodes=[gone])}, {"a": {KEY: "{}"}}))
    (name,) = made.recognise({**present(uverbs(0)), uverbs_path(99): (231, 300)})
    assert made.recognise(present(uverbs(0))) == ()
    with pytest.raises(Exception, match="uverbs99"):
        made.meaning(name)


def test_of_two_that_are_there_the_bigger_one_counts() -> None:
    made = index(spec_text({"one": pair(0), "two": pair(0, 1), "three": pair(2)}))
    assert made.recognise(present(hardware.RDMA_CM, uverbs(0), uverbs(1))) == vf("two")
    assert made.recognise(present(hardware.RDMA_CM, uverbs(0), uverbs(2))) == vf("one", "three")
    assert made.recognise(present(hardware.RDMA_CM, uverbs(0), uverbs(1), uverbs(2))) == vf("three", "two")


def test_of_two_with_the_same_nodes_the_first_by_name_counts() -> None:
    made = index(spec_text({"b": pair(0), "a": pair(0)}))
    assert made.recognise(present(hardware.RDMA_CM, uverbs(0))) == vf("a")


def test_a_cdi_device_that_asks_wrongly_is_recognised_too() -> None:
    made = index(one(uverbs_path(0), key="{x: 1}"))
    assert made.recognise(present(uverbs(0))) == vf("vf0")


@given(
    devices=st.lists(st.frozensets(st.integers(0, 4), min_size=1), max_size=6),
    has=st.frozensets(st.integers(0, 5)),
)
def test_recognised_are_exactly_the_largest_that_are_there(devices: list[frozenset[int]], has: frozenset[int]) -> None:
    if not devices:
        return
    made = index(spec_text({f"d{at}": edits(*map(uverbs_path, it)) for at, it in enumerate(devices)}))
    there = {it for it in devices if it <= has}
    largest = {it for it in there if not any(it < other for other in there)}
    expected = sorted(f"d{devices.index(it)}" for it in largest)
    assert made.recognise(present(*map(uverbs, has))) == vf(*expected)


# Cost


def many(count: int) -> Iterator[str]:
    """A spec for each claim, as drivers write them: shared devices, so that the same nodes come again and again."""
    for number in range(count):
        yield spec_text({f"claim-{number}": pair(number % 8)})


def test_a_container_is_looked_up_in_the_time_of_a_few_look_ups_however_many_claims_there_are() -> None:
    few, much = (Index(registry(*many(count)), eight(), KEY) for count in (8, 2000))
    container = {**present(hardware.RDMA_CM, uverbs(3)), "/dev/null": (1, 3), "/dev/zero": (1, 5)}
    assert few.recognise(container) == vf("claim-3")
    assert much.recognise(container) == vf("claim-1003")  # the first by name of 250 with these nodes
    times = [min(timeit.repeat(lambda it=it: it.recognise(container), number=200, repeat=7)) for it in (few, much)]  # type: ignore[misc]
    assert times[1] < 3 * times[0]


def test_the_index_does_not_change_with_the_node() -> None:
    first = eight()
    made = Index(registry(one(uverbs_path(0))), first, KEY)
    renumbered = replace(first.devices[0], char_devices=(replace(uverbs(0), minor=500),))
    other = Index(registry(one(uverbs_path(0))), replace(first, devices=(renumbered, *first.devices[1:])), KEY)
    assert made.recognise(present(uverbs(0))) == vf("vf0")
    assert other.recognise(present(uverbs(0))) == ()
    assert other.recognise({uverbs_path(0): (231, 500)}) == vf("vf0")
