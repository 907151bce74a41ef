"""Containers of podman and Docker start when RDMA was proven in them, and otherwise are refused and leave nothing.

The process that makes proofs is real, and what it finds is planted (tests.rig.planted_proofs).
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oci.conftest import Engine, start
from tests.oci.host import Host, Podman
from tests.oci.test_annotations import FIFTH, SLEEP, asks, engine, installed, wait_home
from tests.oci.test_podman import has_sentence
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.fabric import Fabric
from tests.rig.planted_proofs import PlantedProofs

__all__ = ["engine", "installed"]

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("installed")]

PROVEN = {**FIFTH, "prove": True, "userspace": "off"}
MEMLOCK = 4 << 20


@pytest.fixture
def proofs(tmp_path: Path) -> PlantedProofs:
    return PlantedProofs(tmp_path / "verbs")


@pytest.fixture
def daemon(host: Host, engine: Engine, node: Fabric, proofs: PlantedProofs) -> Iterator[Daemon]:
    """A daemon with planted proofs."""
    running = Daemon(host, node, extra=(*EXCLUSIVE_FIRST, "--verbs-python", str(proofs.program)))
    start(running)
    try:
        yield running
        engine.remove_all()
    finally:
        running.stop()


def test_a_container_is_proven_with_its_own_limit_and_network_and_starts(
    host_equal: None, daemon: Daemon, engine: Engine, proofs: PlantedProofs
) -> None:
    engine.must(*engine.run("-d", "--name", "proven", *asks(engine, [PROVEN]), command=SLEEP))
    (seen,) = proofs.seen()
    assert (seen["device"], seen["memlock"], "rdma0" in seen["links"]) == ("mlx5_5", MEMLOCK, True)
    (sandbox,) = json.loads(daemon.cli("status", "-o", "json").stdout)["sandboxes"]
    assert [it["ports"] for it in sandbox["proofs"]] == [["mlx5_5:1 roce by GID 1"]]
    engine.remove("proven")
    wait_home()


def test_a_container_in_which_rdma_does_not_work_is_refused_and_its_device_comes_home(
    host_equal: None, daemon: Daemon, engine: Engine, proofs: PlantedProofs
) -> None:
    proofs.plant(problem={"step": "port", "errno": None, "text": "as planted"})
    done = engine(*engine.run("--rm", *asks(engine, [PROVEN]), command=["echo", "it runs"]))
    assert (done.returncode != 0, "it runs" in done.stdout) == (True, False)
    if isinstance(engine, Podman):
        assert has_sentence(engine, done.stderr, "PROOF-PORT")
    wait_home()
    proofs.plant()
    assert engine(*engine.run("--rm", *asks(engine, [PROVEN]), command=["echo", "it runs"])).stdout == "it runs\n"
    wait_home()
