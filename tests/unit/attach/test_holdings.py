"""All attachments of one sandbox: what they gave to whom."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

import pytest

from nri_rdma.attach.holdings import NOTHING, Holdings, held_by_id, late_name
from nri_rdma.errors import NotReadyError
from nri_rdma.model.device import DeviceId
from nri_rdma.model.request import Match
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import ONE
from tests.unit.rigs.engine_with_kubelet import MOVE, NIC, Node, node, spec, world

__all__ = ["node", "world"]  # fixtures


@pytest.fixture
def both(node: Node) -> Node:
    """A sandbox with an attachment of its own, and one that its container "sidecar" came with."""
    node.specify(spec(NIC, 1, keys=MOVE))
    node.start(annotations=ONE)
    node.sandbox().attach_done.result(SOON)
    node.create("sidecar", 1, cdi=(NIC,), annotations=ONE)
    return node


def test_all_that_is_attached_is_told_together_and_apart(both: Node) -> None:
    parts = both.rig.sandboxes.of("sandbox-1")
    assert [it.part for it in parts] == ["", "sidecar"]
    assert [it.device.name for item in parts.attached for it in item.devices] == ["mlx5_0", "mlx5_1"]
    assert parts.rdma_cm == both.rdma_cm
    assert parts.by_cdi_device == {NIC: {"mlx5_1"}}
    assert parts.devices("sidecar") == {"mlx5_0", "mlx5_1"}
    assert parts.devices("main") == {"mlx5_0"}


def test_the_sandboxs_own_attachment_is_the_one_of_its_start(both: Node) -> None:
    parts = both.rig.sandboxes.of("sandbox-1")
    assert parts.own is parts[0]
    assert Holdings(parts[1:]).own is None
    assert NOTHING.own is None


def test_an_own_attachment_stays_beside_the_late_ones_of_now(both: Node) -> None:
    """It may have ended since; a container that waits for it must not start without it."""
    parts = both.rig.sandboxes.of("sandbox-1")
    assert Holdings(parts[:1]).with_late(parts) == parts
    assert parts.with_late(NOTHING) == parts[:1]
    assert NOTHING.with_late(parts) == parts[1:]


def test_the_nodes_rdma_cm_is_that_of_whichever_part_has_one(both: Node) -> None:
    """The module was loaded between two attaches."""
    parts = both.rig.sandboxes.of("sandbox-1")
    assert parts[0].now.record is not None
    parts[0].change(record=replace(parts[0].now.record, rdma_cm=None))
    assert parts.rdma_cm == both.rdma_cm


def test_a_part_that_ends_gives_its_sandbox_nothing_more(both: Node) -> None:
    parts = both.rig.sandboxes.of("sandbox-1")
    done = both.rig.sandboxes.end("sandbox-1")
    assert done is not None
    done.result(SOON)
    assert (parts.attached, parts.rdma_cm) == ((), None)


def test_a_sandbox_that_nothing_is_planned_for_yet_has_nothing(node: Node) -> None:
    node.rig.gate.stop_at = "before plan"
    with suppress(NotReadyError):
        node.start(annotations=ONE, seconds=0.05)
    assert node.rig.gate.reached.wait(SOON)
    parts = node.rig.sandboxes.of("sandbox-1")
    assert [it.now.record for it in parts] == [None]
    assert (parts.attached, parts.rdma_cm) == ((), None)
    assert parts.by_cdi_device == {}
    assert parts.moved_netdevs({"rail0"}) == ()


def test_the_netdevs_that_we_moved_are_told_to_who_names_them(both: Node) -> None:
    parts = both.rig.sandboxes.of("sandbox-1")
    assert parts.moved_netdevs({"rail0", "rail1", "eth0"}) == ("rail0", "rail1")
    assert parts.moved_netdevs({"eth0"}) == ()
    assert parts.moved_netdevs(()) == ()


def test_a_container_waits_for_what_concerns_it(both: Node) -> None:
    parts = both.rig.sandboxes.of("sandbox-1")
    assert parts.concerning("sidecar", ()) == parts
    assert parts.concerning("main", ()) == parts[:1]
    assert parts.concerning("main", {NIC}) == parts, "it has the same CDI device"


def test_only_what_was_given_by_an_id_is_held_by_one(both: Node) -> None:
    """A pool may have had shares before its ids stood for devices."""
    (first, _) = parts = both.rig.sandboxes.of("sandbox-1")
    assert first.now.record is not None
    (item,) = first.now.record.attached
    request = item.admitted.request
    assert held_by_id(parts, request.pool) == ()
    by_id = replace(item, admitted=replace(item.admitted, request=replace(request, match=Match(id=DeviceId("mlx5_0")))))
    first.change(record=replace(first.now.record, attached=(by_id,)))
    assert [device.name for device in held_by_id(parts, request.pool)] == ["mlx5_0"]


def test_a_part_that_is_taken_gets_a_number(both: Node) -> None:
    parts = both.rig.sandboxes.of("sandbox-1")
    assert parts.free_key("sandbox-1", "main") == ("main", "sandbox-1+main")
    assert parts.free_key("sandbox-1", "sidecar") == ("sidecar.1", "sandbox-1+sidecar.1")


@pytest.mark.parametrize("name", ["main", "a-b"])
def test_a_part_has_the_name_of_its_container(name: str) -> None:
    assert late_name(name) == name


@pytest.mark.parametrize("name", ["../../etc", "A" * 300, "", "a/b", "\udcff"])
def test_a_name_that_no_file_can_have_is_replaced_always_in_the_same_way(name: str) -> None:
    assert re.fullmatch(r"c\.[0-9a-f]{16}", late_name(name))
    assert late_name(name) == late_name(name)
    assert late_name(name) != late_name(f"{name}x")


def test_a_pod_that_has_nothing_has_no_parts() -> None:
    assert (NOTHING.attached, NOTHING.rdma_cm, NOTHING.by_cdi_device) == ((), None, {})
