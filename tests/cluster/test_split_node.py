"""A node whose sixteen adapters are split into sixteen virtual functions each: 256 devices for claims."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, start
from tests.cluster.test_claims import (
    CONFIG,
    DRIVER,
    claim_spec,
    claiming,
    claims_of,
    device_class,
    make,
    published,
    slices,
    template,
    verbs,
)
from tests.rig.deadline import wait_until
from tests.rig.node import SPLIT, load

__all__ = ["CONFIG"]  # the fixture of the cluster reads it in this module
DESCRIBED = SPLIT
NODE = load(SPLIT)
VIRTUAL = {it.address: it.physfn for it in NODE.functions if it.physfn}


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the node's devices are published."""
    wait_until(lambda: len(published(cluster)) == 256, "the node's ResourceSlices", 60)
    make(cluster, device_class())
    return cluster


def test_256_devices_are_in_slices_of_at_most_128_and_of_one_generation(served: Cluster) -> None:
    found = slices(served)
    assert sorted(len(it["spec"]["devices"]) for it in found) == [128, 128]
    assert {it["spec"]["pool"]["resourceSliceCount"] for it in found} == {2}
    assert len({it["spec"]["pool"]["generation"] for it in found}) == 1
    told = {name: device for it in found for name, device in _by_address(it["spec"]["devices"]).items()}
    assert {name: it["physicalFunction"]["string"] for name, it in told.items()} == VIRTUAL
    status = Path(f"/proc/{served.nodes['n1'].machine.programs['nri-rdma'].pid}/status").read_text()
    (kib,) = re.findall(r"VmRSS:\s+(\d+)", status)
    print(f"256 devices: nri-rdma has {int(kib) // 1024} MiB")


def _by_address(devices: list[dict[str, dict[str, dict[str, str]]]]) -> dict[str, dict[str, dict[str, str]]]:
    """Their attributes without the domain, by PCI address."""
    plain = [{name.rpartition("/")[2]: value for name, value in it["attributes"].items()} for it in devices]
    return {it["pciAddress"]["string"]: it for it in plain}


def test_a_pod_has_four_functions_of_one_adapter_and_the_last_ones_are_given_too(served: Cluster) -> None:
    spec = claim_spec({"nic": {"count": 4}})
    spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/physicalFunction"}]
    make(served, template("four", spec), template("rest", claim_spec({"nic": {"count": 28}})))
    start(served, claiming("four", {"rdma": "four"}))
    homes = Counter(VIRTUAL[NODE.rdma[it].function] for it in verbs(served, "four"))
    assert list(homes.values()) == [4]
    (claim,) = claims_of(served, "four")
    assert len(claim["status"]["allocation"]["devices"]["results"]) == 4
    names = [f"rest{number}" for number in range(9)]
    for name in names:
        start(served, claiming(name, {"rdma": "rest"}))
    given = Counter(it for name in ("four", *names) for it in verbs(served, name))
    assert len(given) == 256
    assert set(given.values()) == {1}
    for name in ("four", *names):
        delete(served, name)
    assert len(published(served)) == 256
