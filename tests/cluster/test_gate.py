"""Pods that are proven before they start, in a real cluster: by a claim and by a share.

The machine has no RDMA: the process that makes proofs is the real one, but what its queries of the hardware answer is
planted (tests/rig/planted_proofs.py).
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, events, pod, runs
from tests.cluster.test_claims import (
    account,
    claim_spec,
    claiming,
    claims_of,
    make,
    published,
    restart_as,
    template,
    verbs,
)
from tests.cluster.test_shares import allocatable
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until
from tests.rig.planted_proofs import PlantedProofs

FOLDER = Path(tempfile.mkdtemp(prefix="nri-rdma-"))
PROOFS = PlantedProofs(FOLDER / "proofs")
RESOURCE = "rdma/hca"
STARTS_S = 90.0
"""After some refusals the kubelet waits for up to a minute."""
CONFIG = f"""
guard_hook = "{PROJECT}/hooks/nri-rdma-hook"
node_name = "THIS_NODE"
kubeconfig = "KUBECONFIG"
verbs_python = "{PROOFS.program}"

[pools.nics]
select = {{ device = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"] }}
modes = ["exclusive", "shared"]
door = "claims"
userspace = "off"

[pools.hcas]
select = {{ device = ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"] }}
modes = ["shared"]
door = "resource"
resource = "{RESOURCE}"
shares = 8
prove = true
userspace = "off"
"""


@pytest.fixture(scope="module", autouse=True)
def served(cluster: Cluster) -> Iterator[None]:
    """The scheduler knows devices and shares, of a daemon that has the rights of its manifests."""
    restart_as(cluster, "n1", account(cluster, "n1"))
    wait_until(lambda: len(published(cluster)) == 4, "the slice", 30)
    wait_until(lambda: allocatable(cluster, RESOURCE) == "8", "the node's shares", 30)
    yield
    shutil.rmtree(FOLDER)


def refused_then_proven(cluster: Cluster, name: str, asked: Mapping[str, Any]) -> None:
    """A pod does not start while a port is down, says so, and starts when it is up."""
    PROOFS.plant(problem={"step": "port", "errno": errno.ENETDOWN, "text": "the port is DOWN"})
    make(cluster, asked)
    cluster.wait(f"{name} to be refused", lambda: any("PROOF-PORT" in it for it in events(cluster, name)), STARTS_S)
    assert not runs(cluster, name)
    PROOFS.plant()
    cluster.wait(f"pod {name} to be proven", lambda: runs(cluster, name), STARTS_S)


def conditions(cluster: Cluster, name: str) -> list[tuple[str, str]]:
    """The status and the reason of the condition Proven of a pod's claim."""
    (claim,) = claims_of(cluster, name)
    told = [it for entry in claim["status"].get("devices") or () for it in entry["conditions"]]
    return [(it["status"], it["reason"]) for it in told if it["type"] == "Proven"]


def test_a_pod_with_a_claim_starts_when_rdma_was_proven(cluster: Cluster) -> None:
    make(cluster, template("proven", claim_spec({"nic": {}}, {"mode": "shared", "prove": True})))
    refused_then_proven(cluster, "claims", claiming("claims", {"nic": "proven"}))
    assert len(verbs(cluster, "claims")) == 1
    cluster.wait("the condition Proven", lambda: conditions(cluster, "claims") == [("True", "Proven")], 30)
    delete(cluster, "claims")


def test_a_pod_with_a_share_starts_when_rdma_was_proven(cluster: Cluster) -> None:
    asked = pod("shares", containers=[{"resources": {"limits": {RESOURCE: 1}}}])
    refused_then_proven(cluster, "shares", asked)
    assert PROOFS.seen()[-1]["device"] == f"mlx5_{verbs(cluster, 'shares')[0]}"
    delete(cluster, "shares")
