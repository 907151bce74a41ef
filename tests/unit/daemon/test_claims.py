"""A daemon's driver of claims: there where a pool is asked through claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.claims import make_claims_door
from nri_rdma.decide.advertised import slice_name
from nri_rdma.decide.claims import AdmittedClaim
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.dra import publishing
from nri_rdma.doors.dra.specs import SpecStyle, claim_spec, spec_file
from nri_rdma.host.cdi.write import write_spec
from nri_rdma.model.claim import Claim, ClaimRequest
from nri_rdma.model.device import DeviceId
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.workers import Workers
from tests.rig.api_server import running
from tests.rig.deadline import wait_until
from tests.unit.adopting import SHARED, Node, node, spec, world
from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.doors.deviceplugin.pools import pool
from tests.unit.doors.dra.claimed import NAME, OURS, PATH, RAILS, kubelet_folder, register
from tests.unit.model.hardware import nic

__all__ = ["node", "world"]


@pytest.mark.parametrize("pools", [(), (pool(),)], ids=["none", "of a resource"])
def test_without_a_pool_of_claims_there_is_no_driver(daemon: InsideDaemon, pools: tuple[Pool, ...]) -> None:
    assert make_claims_door(Settings(pools=pools), daemon.engine, daemon.workers, daemon.spans) is None


def test_the_node_is_published_by_its_name_and_again_when_it_has_changed(
    daemon: InsideDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "QUIET_S", 0.1)
    daemon.engine.placer.offering.policy = policy_of((RAILS,), (), allow_default_pool=False)
    workers = Workers()
    with running() as server, kubelet_folder() as folder:
        settings = Settings(
            pools=(RAILS,),
            node_name="node-a",
            kubeconfig=server.kubeconfig(tmp_path),
            kubelet_plugins_dir=folder / "plugins",
            cdi_dirs=(tmp_path / "etc", tmp_path / "cdi"),
        )
        door = make_claims_door(settings, daemon.engine, workers, daemon.spans)
        assert door is not None
        try:
            door.open_later()
            registrar = folder / "plugins_registry" / f"{OURS}-reg.sock"
            wait_until(registrar.is_socket, "the socket")
            register(registrar)
            wait_until(lambda: bool(server.slices), "the slice")
            (told,) = server.slices.values()
            assert (told["spec"]["nodeName"], len(told["spec"]["devices"])) == ("node-a", 8)
            daemon.engine.placer.offering.policy = policy_of((), (), allow_default_pool=True)
            daemon.read_again()
            wait_until(
                lambda: not any(it["spec"]["devices"] for it in [*server.slices.values()]), "no device", seconds=5
            )
        finally:
            workers.close(5)
            door.close()


def test_what_becomes_of_a_claims_device_is_written_into_its_status(node: Node, tmp_path: Path) -> None:
    workers, cdi_device = Workers(), f"{OURS}/claim=u1-nic"
    request = ClaimRequest(
        name="nic", devices=(slice_name(DeviceId("mlx5_0")),), pool="p", parameters={}, from_claim={}
    )
    claim = Claim(namespace=NAME.namespace, name=NAME.name, uid=NAME.uid, label="", requests=(request,))
    admitted = AdmittedClaim(request=request, devices=(nic(0),), pool=RAILS.name, mode=Mode.SHARED, text=SHARED)
    write_spec(claim_spec(claim, [admitted], None, SpecStyle(prefix=OURS, hook=None)), tmp_path, spec_file("u1"))
    node.specify(spec(cdi_device, 0, keys=SHARED))
    with running() as server, kubelet_folder() as folder:
        result = {"request": "nic", "driver": OURS, "pool": "p", "device": slice_name(DeviceId("mlx5_0"))}
        server.claims[PATH] = {
            "metadata": {"namespace": "team", "name": "rails", "uid": "u1", "resourceVersion": "1"},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        settings = Settings(
            pools=(RAILS,),
            kubeconfig=server.kubeconfig(tmp_path),
            kubelet_plugins_dir=folder / "plugins",
            cdi_dirs=(tmp_path,),
        )
        door = make_claims_door(settings, node.engine, workers, Recorder())
        assert door is not None
        try:
            door.open_later()
            wait_until(lambda: any(it.path == PATH for it in server.seen), "the claim to be compared")
            node.create("main", 0)
            wait_until(lambda: "devices" in server.claims[PATH]["status"], "the status", seconds=5)
        finally:
            workers.close(5)
            door.close()
    (entry,) = server.claims[PATH]["status"]["devices"]
    assert [it["reason"] for it in entry["conditions"]] == ["Attached"]
