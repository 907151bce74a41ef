"""A daemon's driver of claims: there where a pool is asked through claims."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon import wire_claims
from nri_rdma.daemon.wire_claims import make_claims_door
from nri_rdma.decide.advertised import slice_name
from nri_rdma.decide.claim_admission import AdmittedClaim
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.dra import publishing
from nri_rdma.doors.dra.claim_specs import SpecStyle, claim_spec, spec_file
from nri_rdma.host.cdi.write import write_spec
from nri_rdma.model.claim import Claim, ClaimRequest
from nri_rdma.model.device import DeviceId
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode
from nri_rdma.observe.spans import Recorder
from nri_rdma.pb import dra_pb2 as dra
from nri_rdma.pb import pluginregistration_pb2 as registration
from nri_rdma.tasks.workers import Workers
from tests.rig.api_server import running
from tests.rig.deadline import wait_until
from tests.rig.node import load
from tests.unit.doors.deviceplugin.pools import pool
from tests.unit.doors.dra.claimed import NAME, OURS, PATH, RAILS, call, kubelet_folder, register
from tests.unit.model.hardware import nic
from tests.unit.rigs.engine_with_kubelet import SHARED, Node, node, spec, world
from tests.unit.rigs.inside_daemon import InsideDaemon

__all__ = ["node", "world"]


def done() -> Future[None]:
    """What is done: the runtime has reported its pods."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


@pytest.mark.parametrize("pools", [(), (pool(),)], ids=["none", "of a resource"])
def test_without_a_pool_of_claims_there_is_no_driver(daemon: InsideDaemon, pools: tuple[Pool, ...]) -> None:
    assert make_claims_door(Settings(pools=pools), daemon.engine, daemon.workers, daemon.spans, Future()) is None


def test_the_node_is_published_by_its_name_and_again_when_it_has_changed(
    daemon: InsideDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "QUIET_S", 0.1)
    daemon.engine.offering.policy = policy_of((RAILS,), (), allow_default_pool=False)
    workers = Workers()
    with running() as server, kubelet_folder() as folder:
        settings = Settings(
            pools=(RAILS,),
            node_name="node-a",
            kubeconfig=server.kubeconfig(tmp_path),
            kubelet_plugins_dir=folder / "plugins",
            cdi_dirs=(tmp_path / "etc", tmp_path / "cdi"),
        )
        door = make_claims_door(settings, daemon.engine, workers, daemon.spans, done())
        assert door is not None
        try:
            door.open_later()
            registrar = folder / "plugins_registry" / f"{OURS}-reg.sock"
            wait_until(registrar.is_socket, "the socket")
            register(registrar)
            wait_until(lambda: bool(server.slices), "the slice")
            (told,) = server.slices.values()
            assert (told["spec"]["nodeName"], len(told["spec"]["devices"])) == ("node-a", 8)
            daemon.engine.offering.policy = policy_of((), (), allow_default_pool=True)
            daemon.read_again()
            wait_until(
                lambda: not any(it["spec"]["devices"] for it in [*server.slices.values()]), "no device", seconds=5
            )
        finally:
            workers.close(5)
            door.close()


def test_before_the_runtime_has_reported_its_pods_the_driver_is_registered_and_neither_prepares_nor_publishes(
    daemon: InsideDaemon, tmp_path: Path
) -> None:
    daemon.engine.offering.policy = policy_of((RAILS,), (), allow_default_pool=False)
    workers, reported = Workers(), Future[None]()
    with running() as server, kubelet_folder() as folder:
        server.claims[PATH] = allocated("mlx5_0")
        settings = Settings(
            pools=(RAILS,),
            node_name="node-a",
            kubeconfig=server.kubeconfig(tmp_path),
            kubelet_plugins_dir=folder / "plugins",
            cdi_dirs=(tmp_path / "cdi",),
        )
        door = make_claims_door(settings, daemon.engine, workers, daemon.spans, reported)
        assert door is not None
        try:
            door.open_later()
            registrar = wait_until(lambda: next((folder / "plugins_registry").iterdir(), None), "the socket")
            register(registrar)
            assert door.view().registration.error == ""
            with ThreadPoolExecutor(1) as kubelet:
                answer = kubelet.submit(prepare, registrar)
                with pytest.raises(TimeoutError):
                    answer.result(0.5)
                assert not server.slices
                reported.set_result(None)
                assert answer.result(30) == ""
            assert (tmp_path / "cdi" / spec_file("u1")).exists()
            wait_until(lambda: bool(server.slices), "the slice")
        finally:
            workers.close(5)
            door.close()


def test_where_the_runtime_does_not_report_its_pods_claims_are_refused_and_no_device_is_published(
    daemon: InsideDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler would choose this node for claims that it cannot serve."""
    monkeypatch.setattr(wire_claims, "REPORTED_S", 0.1)
    monkeypatch.setattr(publishing, "QUIET_S", 0.1)
    daemon.engine.offering.policy = policy_of((RAILS,), (), allow_default_pool=False)
    workers, reported = Workers(), Future[None]()
    with running() as server, kubelet_folder() as folder:
        settings = Settings(
            pools=(RAILS,),
            node_name="node-a",
            kubeconfig=server.kubeconfig(tmp_path),
            kubelet_plugins_dir=folder / "plugins",
            cdi_dirs=(tmp_path / "cdi",),
        )
        door = make_claims_door(settings, daemon.engine, workers, daemon.spans, reported)
        assert door is not None
        try:
            door.open_later()
            registrar = wait_until(lambda: next((folder / "plugins_registry").iterdir(), None), "the socket")
            register(registrar)
            told = prepare(registrar)
            assert "NOT-READY: the runtime has not reported its pods yet" in told
            assert "`nri-rdma status` says why" in told
            wait_until(lambda: bool(server.slices), "a slice")
            assert [len(it["spec"]["devices"]) for it in server.slices.values()] == [0]
            reported.set_result(None)
            wait_until(lambda: [len(it["spec"]["devices"]) for it in [*server.slices.values()]] == [8], "it")
        finally:
            workers.close(5)
            door.close()


def prepare(registrar: Path) -> str:
    """Have the claim prepared, as the kubelet does; return the error."""
    info = registration.PluginInfo.FromString(call(registrar, "/pluginregistration.Registration/GetInfo", b""))
    asked = dra.NodePrepareResourcesRequest(claims=[dra.Claim(namespace="team", name="rails", uid="u1")])
    method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
    answer = dra.NodePrepareResourcesResponse.FromString(call(Path(info.endpoint), method, asked.SerializeToString()))
    error: str = answer.claims["u1"].error
    return error


def allocated(device: str) -> dict[str, Any]:
    """The claim with a device of the node."""
    (address,) = [it.function for it in load("eight").rdma if it.name == device]
    result = {"request": "nic", "driver": OURS, "pool": "node-a", "device": slice_name(DeviceId(str(address)))}
    return {
        "metadata": {"namespace": "team", "name": "rails", "uid": "u1", "resourceVersion": "1"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


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
        door = make_claims_door(settings, node.engine, workers, Recorder(), done())
        assert door is not None
        try:
            door.open_later()
            wait_until(lambda: any(it.path == PATH for it in server.seen), "the claim to be compared")
            node.create("main", 0)
            wait_until(lambda: "devices" in server.claims[PATH]["status"], "the status")
        finally:
            workers.close(5)
            door.close()
    (entry,) = server.claims[PATH]["status"]["devices"]
    assert [it["reason"] for it in entry["conditions"]] == ["Attached"]
