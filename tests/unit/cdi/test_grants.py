"""Which CDI devices a container has: what is reported counts first, then what its device nodes show."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nri_rdma.cdi.grants import CdiGrant, Origin, devices_of, grants_in, grants_of
from nri_rdma.cdi.index import Attached, Index, NodesAt
from nri_rdma.errors import RequestError
from nri_rdma.model.device import DeviceNumbers
from tests.unit.cdi.specs import KEY, RDMA_CM, edits, one, registry, spec_text, uverbs_path
from tests.unit.model.hardware import eight, nic, node, uverbs

VF0, VF1 = "net.example/vf=vf0", "net.example/vf=vf1"
TWO = Index(registry(spec_text({f"vf{it}": edits(RDMA_CM, uverbs_path(it)) for it in range(2)})), eight(), KEY)


def nodes(*numbers: int) -> dict[str, DeviceNumbers]:
    return {uverbs(it).path: (231, 192 + it) for it in numbers} | {RDMA_CM: (10, 58)}


def told(grants: tuple[CdiGrant, ...]) -> list[tuple[str, Origin]]:
    return [(grant.name, grant.origin) for grant in grants]


Names = Mapping[str, Origin]
Nodes = Mapping[str, DeviceNumbers]


def with_shown(index: Index, named: Names, there: Nodes, attached: Attached) -> dict[str, Origin]:
    """What is reported, and what the nodes show beside it."""
    return {**named, **dict.fromkeys(index.shown(named, there, attached) if there else (), Origin.NODES)}


def matched(index: Index, container: str, named: Names, there: Nodes, attached: Attached) -> tuple[CdiGrant, ...]:
    return grants_in(index, container, with_shown(index, named, there, attached), attached)


def bare(index: Index, named: Names, there: Nodes, attached: Attached) -> NodesAt:
    return index.unexplained(with_shown(index, named, there, attached), there, attached, (231, 10))


def test_a_device_that_none_of_our_hardware_is_in_is_no_grant() -> None:
    assert grants_of(TWO, "main", {"vendor.example/gpu=0": Origin.RUNTIME}) == ()


def test_what_a_spec_does_wrong_is_part_of_its_grant() -> None:
    (grant,) = grants_of(Index(registry(one(uverbs_path(0), key="{x: 1}")), eight(), KEY), "main", {VF0: Origin.NODES})
    assert isinstance(grant.problem, RequestError)
    assert (grant.meaning, grant.devices) == (None, ())


@pytest.mark.parametrize("origin", [Origin.RUNTIME, Origin.KUBELET])
def test_a_reported_name_explains_its_nodes_and_only_others_are_matched(origin: Origin) -> None:
    assert told(matched(TWO, "main", {VF0: origin}, nodes(0, 1), {})) == [(VF0, origin), (VF1, Origin.NODES)]


@pytest.mark.parametrize("origin", [Origin.RUNTIME, Origin.KUBELET])
def test_a_report_counts_more_than_nodes_also_where_the_spec_is_wrong(origin: Origin) -> None:
    """Such a spec is about no device that would explain the nodes."""
    index = Index(registry(one(uverbs_path(0), key="{x: 1}")), eight(), KEY)
    assert told(matched(index, "main", {}, nodes(0), {})) == [(VF0, Origin.NODES)]
    assert told(matched(index, "main", {VF0: origin}, nodes(0), {})) == [(VF0, origin)]


def test_a_container_without_nodes_has_what_is_reported_and_no_more() -> None:
    """So has a privileged container, whose nodes prove nothing."""
    assert told(matched(TWO, "main", {VF1: Origin.KUBELET}, {}, {})) == [(VF1, Origin.KUBELET)]
    assert matched(TWO, "main", {}, {}, {}) == ()


def test_a_device_that_moved_to_the_pod_is_known_by_its_path() -> None:
    gone = Index(registry(one(uverbs_path(0))), node(()), KEY)
    attached = {VF0: frozenset({nic(0).id})}
    assert told(matched(gone, "main", {}, {uverbs_path(0): (231, 777)}, attached)) == [(VF0, Origin.NODES)]
    assert bare(gone, {}, {uverbs_path(0): (231, 777)}, attached) == frozenset()


def test_a_reported_device_is_one_grant_when_it_is_attached_and_none_when_it_is_not_ours() -> None:
    named = {VF0: Origin.RUNTIME, "vendor.example/gpu=0": Origin.RUNTIME}
    attached = {VF0: frozenset({nic(0).id})}
    assert told(matched(TWO, "main", named, {}, attached)) == [(VF0, Origin.RUNTIME)]
    assert told(matched(TWO, "main", named, nodes(0), attached)) == [(VF0, Origin.RUNTIME)]


def test_a_reported_device_that_moved_is_had_by_that_name_alone() -> None:
    """Another claim's container has the same device by another name."""
    gone = Index(registry(spec_text({name: edits(uverbs_path(0)) for name in ("vf0", "vf1")})), node(()), KEY)
    attached = {name: frozenset({nic(0).id}) for name in (VF0, VF1)}
    there = {uverbs_path(0): (231, 777)}
    assert told(matched(gone, "main", {VF1: Origin.KUBELET}, there, attached)) == [(VF1, Origin.KUBELET)]


def test_a_device_that_moved_explains_its_paths_only_where_all_of_them_are() -> None:
    gone = Index(registry(one(uverbs_path(0), uverbs_path(1))), node(()), KEY)
    attached = {VF0: frozenset({nic(0).id, nic(1).id})}
    half = {uverbs_path(0): (231, 777)}
    assert bare(gone, {}, half, attached) == {(uverbs_path(0), (231, 777))}
    assert bare(gone, {}, {**half, uverbs_path(1): (231, 778)}, attached) == frozenset()


def test_nodes_are_unexplained_that_no_known_spec_is_about() -> None:
    assert bare(TWO, {}, nodes(0, 1), {}) == frozenset()
    assert (uverbs_path(5), (231, 197)) in bare(TWO, {}, nodes(0, 5), {})


def test_the_devices_of_grants_are_their_ids_together() -> None:
    grants = matched(TWO, "main", {VF0: Origin.RUNTIME, VF1: Origin.RUNTIME}, {}, {})
    assert devices_of(grants) == {nic(0).id, nic(1).id}
    assert {grant.vendor for grant in grants} == {"net.example"}
