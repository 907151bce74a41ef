"""A daemon's driver of claims: there where a pool is asked through claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.claims import make_claims_door
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.dra import publishing
from nri_rdma.model.pool import Pool
from nri_rdma.tasks.workers import Workers
from tests.rig.api_server import running
from tests.rig.deadline import wait_until
from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.doors.deviceplugin.pools import pool
from tests.unit.doors.dra.claimed import OURS, RAILS, kubelet_folder, register


def nothing(_names: list[str]) -> None:
    """Nobody prepares a claim here."""


@pytest.mark.parametrize("pools", [(), (pool(),)], ids=["none", "of a resource"])
def test_without_a_pool_of_claims_there_is_no_driver(daemon: InsideDaemon, pools: tuple[Pool, ...]) -> None:
    assert make_claims_door(Settings(pools=pools), daemon.engine, daemon.workers, nothing) is None


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
        door = make_claims_door(settings, daemon.engine, workers, nothing)
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
