"""A claim becomes a CDI spec, and the spec goes."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from nri_rdma.errors import ApiServerError, CdiError, ClaimError, ErrorCode, PlacementError, RequestError
from tests.unit.doors.dra.claimed import NAME, OURS, PATH, Claimed

SPEC = "rdma.noderesource.dev-claim-u1.json"
CDI = "rdma.noderesource.dev/claim=u1-nic"
ALONE = {"rdma.noderesource.dev": "[{match: {device: mlx5_2}, mode: exclusive}]"}


def test_a_claim_has_its_spec_and_its_cdi_device_comes_with_the_first_device(node: Claimed) -> None:
    node.allocate("mlx5_3", "mlx5_1", request="nic/fast")
    first, second = node.prepare()
    assert (first.request, first.pool, first.cdi_devices, second.cdi_devices) == ("nic", "node-a", (CDI,), ())
    assert node.specs == [SPEC]
    assert node.awaited == [CDI]
    (device,) = json.loads((node.folder / SPEC).read_text())["devices"]
    assert device["name"] == "u1-nic"
    assert json.loads(device["annotations"]["rdma.noderesource.dev"]) == {"name": "rails-nic", "mode": "exclusive"}


def test_a_claim_of_another_driver_only_gets_no_spec(node: Claimed) -> None:
    node.allocate("g0", driver="gpu.example.com")
    assert (node.prepare(), node.specs) == ((), [])


def test_a_claim_of_the_same_name_with_another_uid_is_refused(node: Claimed) -> None:
    node.allocate("mlx5_3", uid="u2")
    with pytest.raises(
        ClaimError, match="CLAIM-CHANGED: claim team/rails was deleted and created again: its uid is now u2"
    ):
        node.prepare()
    assert node.specs == []


def test_a_claim_with_devices_of_another_node_is_refused_because_devices_have_the_same_names_there(
    node: Claimed,
) -> None:
    """The kubelet prepares it for a pod with `nodeName`, which no scheduler has placed."""
    node.allocate("mlx5_2", pool="node-b")
    with pytest.raises(ClaimError, match="the claim has devices of node node-b, and the pod is on node-a") as caught:
        node.prepare()
    assert (caught.value.code, node.specs, node.statuses.known) == (ErrorCode.DEVICE_UNKNOWN, [], ())
    assert caught.value.hint == "delete the pod, and let the scheduler place it: leave nodeName out"


def test_a_claim_that_is_gone_is_the_api_servers_refusal(node: Claimed) -> None:
    with pytest.raises(ApiServerError, match="404"):
        node.prepare()


def test_a_claim_whose_spec_cannot_be_written_is_refused_with_the_folder_and_a_next_step(node: Claimed) -> None:
    node.allocate("mlx5_3")
    node.folder.parent.mkdir(parents=True, exist_ok=True)
    node.folder.write_text("no folder")
    with pytest.raises(CdiError, match=r"CDI-FILE: the CDI spec cannot be written: .*hostPath"):
        node.prepare()


def test_a_repeated_prepare_has_the_same_answer_at_once_also_when_the_devices_are_away(node: Claimed) -> None:
    node.allocate("mlx5_2")
    first = node.prepare()
    written = (node.folder / SPEC).stat().st_mtime_ns
    node.serve_annotations()
    node.daemon.start_pod("one", ALONE)
    node.serve_claims()
    began = time.monotonic()
    assert node.prepare() == first
    assert time.monotonic() - began < 10
    assert (node.folder / SPEC).stat().st_mtime_ns == written


def test_a_spec_of_another_boot_or_a_broken_one_is_written_anew(node: Claimed) -> None:
    node.allocate("mlx5_2")
    first = node.prepare()
    spec = node.folder / SPEC
    for old in (spec.read_text().replace("boot-1", "boot-0"), "{", "[]", "{}", '{"annotations": []}'):
        spec.write_text(old)
        assert node.prepare() == first
        assert json.loads(spec.read_text())["annotations"]["claims.noderesource.dev/boot"] == "boot-1"


def test_a_device_that_stays_held_fails_at_the_time_limit_and_leaves_no_spec(
    node: Claimed,
) -> None:
    node.serve_annotations()
    node.daemon.start_pod("one", ALONE)
    node.serve_claims()
    node.allocate("mlx5_2")
    with pytest.raises(PlacementError, match="mlx5_2 is still held by default/one"):
        node.prepare(within_s=0.2)
    assert node.specs == []


def test_who_waits_for_a_netdev_that_is_away_is_told_how_to_get_another_device(node: Claimed) -> None:
    (device,) = (it for it in node.daemon.node.devices if it.name == "mlx5_3")
    del node.daemon.world.host.links[device.netdevs[0].ifindex]
    node.daemon.read_again()
    node.allocate("mlx5_3")
    with pytest.raises(PlacementError, match="mlx5_3 has no netdev on the host now") as caught:
        node.prepare(within_s=0.5)
    assert caught.value.hint.startswith("delete the pod, so that its next claim gets another device")


def test_a_claim_with_admin_access_is_prepared_for_one_that_looks_on(node: Claimed) -> None:
    node.serve_annotations()
    node.daemon.start_pod("owner", {OURS: "[{match: {device: mlx5_2}, mode: exclusive}]"})
    node.serve_claims()
    node.allocate("mlx5_2", adminAccess=True)
    (told,) = node.prepare()
    assert told.request == "nic"
    (device,) = json.loads((node.folder / node.specs[0]).read_text())["devices"]
    assert json.loads(device["annotations"][OURS]) == {"name": "rails-nic", "mode": "shared", "adminAccess": True}
    assert [it["path"] for it in device["containerEdits"]["deviceNodes"]] == [
        "/dev/infiniband/uverbs2",
        "/dev/infiniband/rdma_cm",
    ]


def test_unprepare_removes_the_claims_own_spec_and_a_second_one_nothing(node: Claimed) -> None:
    node.allocate("mlx5_3")
    node.prepare()
    (node.folder / "other.json").write_text("{}")
    for _ in range(2):
        node.unprepare()
        assert node.specs == ["other.json"]


def test_the_status_is_about_claims_that_are_prepared_or_refused_and_not_about_others(node: Claimed) -> None:
    node.allocate("g0", driver="gpu.example.com")
    node.prepare()
    assert not node.statuses.known
    node.allocate("mlx5_3")
    node.prepare()
    assert node.statuses.known == ("u1",)


def test_a_refused_claim_has_a_status_and_one_that_is_gone_has_none(node: Claimed) -> None:
    node.serve_claims()
    with pytest.raises(ApiServerError, match="404"):
        node.prepare()
    assert not node.statuses.known
    node.allocate("mlx5_2")
    parameters = {"source": "FromClaim", "opaque": {"driver": OURS, "parameters": {"mood": "exclusive"}}}
    node.told[PATH]["status"]["allocation"]["devices"]["config"] = [parameters]
    with pytest.raises(RequestError):
        node.prepare()
    assert node.statuses.known == ("u1",)


@pytest.mark.parametrize("uid", ["../../../../elsewhere/evil", "a/b", "a\nb", ""])
def test_a_uid_that_is_a_path_makes_no_file_and_removes_none(node: Claimed, uid: str) -> None:
    node.allocate("mlx5_3", uid=uid)
    before = sorted(node.folder.parent.rglob("*"))
    name = replace(NAME, uid=uid)
    with pytest.raises(ClaimError, match="KUBELET-ANSWER"):
        node.prepare(name=name)
    with pytest.raises(ClaimError, match="KUBELET-ANSWER"):
        node.preparer.unprepare(name)
    assert sorted(node.folder.parent.rglob("*")) == before
    assert node.statuses.known == ()


def test_parameters_that_nest_500_levels_are_an_error_of_who_wrote_them(node: Claimed) -> None:
    node.allocate("mlx5_3")
    parameters = json.loads('{"a":' * 500 + "1" + "}" * 500)
    opaque = {"driver": OURS, "parameters": parameters}
    node.told[PATH]["status"]["allocation"]["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
    with pytest.raises(RequestError, match=r"ANNOTATION-SIZE: the parameters for .*, in the claim"):
        node.prepare()


@pytest.mark.parametrize("label", ["A B", "a\nb", "\u202e", "a/b", "Rails", "a_b"])
def test_a_claim_whose_label_is_none_is_refused_when_it_is_prepared(node: Claimed, label: str) -> None:
    """Its author may write the annotation, and a spec with it is one that we do not read."""
    node.allocate("mlx5_3")
    node.told[PATH]["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": label}
    with pytest.raises(RequestError, match=r"ANNOTATION-VALUE: .* is no claim's name in a pod") as caught:
        node.prepare()
    assert str(caught.value).isprintable()
    assert node.specs == []
