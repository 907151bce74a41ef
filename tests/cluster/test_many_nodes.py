"""The slices of 500 nodes at one API server: how often they are written, and what that costs the server.

The nodes are objects only; each has a publisher as a daemon has it, with the eight devices of the cluster's real node.
What was written is what the API server's own metrics say.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.decide.advertised import Advertised
from nri_rdma.doors.dra.publishing import QUIET_S, Publisher
from nri_rdma.host.kubernetes.api import ApiServer
from tests.cluster.cluster import Cluster
from tests.cluster.test_claims import CONFIG, DRIVER, published, slices
from tests.rig.deadline import wait_until

__all__ = ["CONFIG"]  # the fixture of the cluster reads it in this module
MANY = 500
IDLE_S, FLAP_S, FLAP_PAUSE_S = 30.0, 20.0, 0.5


class Simulated:
    """A node with eight devices, whose first link flaps."""

    def __init__(self, stack: ExitStack, kubeconfig: Path, name: str, devices: tuple[Advertised, ...]) -> None:
        api = stack.enter_context(closing(ApiServer(kubeconfig)))
        self._devices = devices
        self._publisher = stack.enter_context(closing(Publisher(api, name, lambda: self._devices)))

    def start(self) -> None:
        self._publisher.start()

    def flap(self, state: str) -> None:
        first, *rest = self._devices
        attributes = {**first.attributes, f"{DRIVER}/state": {"string": state}}
        self._devices = (replace(first, attributes=attributes), *rest)
        self._publisher.look()


@pytest.fixture
def simulated(cluster: Cluster) -> Iterator[list[Simulated]]:
    """The nodes; none of them has published yet."""
    wait_until(lambda: len(published(cluster)) == 8, "the real node's ResourceSlice", 30)
    (real,) = slices(cluster)
    devices = tuple(
        Advertised(
            name=it["name"],
            attributes=it["attributes"],
            capacity={name: value["value"] for name, value in it["capacity"].items()},
        )
        for it in real["spec"]["devices"]
    )
    names = [f"s{number:03}" for number in range(MANY)]
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": it}} for it in names]
    cluster.kubectl("create", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": nodes})
    with ExitStack() as stack:
        yield [Simulated(stack, Path(cluster.environment["KUBECONFIG"]), it, devices) for it in names]


def writes(cluster: Cluster) -> int:
    """How many writes of slices the API server has answered, of whatever kind and outcome."""
    told = cluster.kubectl("get", "--raw", "/metrics")
    pattern = r'^apiserver_request_total\{.*resource="resourceslices".*verb="(?:POST|PUT|PATCH|DELETE)".*\} (\d+)'
    return sum(map(int, re.findall(pattern, told, re.MULTILINE)))


def memory_mib(cluster: Cluster) -> int:
    """The resident memory of the API server."""
    status = Path(f"/proc/{cluster.control.programs['kube-apiserver'].pid}/status").read_text()
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(kib) // 1024


@pytest.mark.timeout(900)
def test_500_nodes_write_their_slices_once_and_a_flapping_link_at_most_once_in_five_seconds(
    cluster: Cluster, simulated: list[Simulated]
) -> None:
    before, memory = writes(cluster), memory_mib(cluster)
    began = time.monotonic()
    for node in simulated:
        node.start()
    wait_until(lambda: len(slices(cluster)) == MANY + 1, "the slices of all nodes", 300)
    took = time.monotonic() - began
    made = writes(cluster) - before
    print(f"{MANY} nodes at once: {made} writes in {took:.0f} s, API server {memory} -> {memory_mib(cluster)} MiB")
    assert made == MANY
    time.sleep(2 * QUIET_S)
    before = writes(cluster)
    time.sleep(IDLE_S)
    print(f"nothing changes for {IDLE_S:.0f} s: {writes(cluster) - before} writes")
    assert writes(cluster) == before
    began = time.monotonic()
    number = 0
    while time.monotonic() < began + FLAP_S:
        number += 1
        for node in simulated:
            node.flap("down" if number % 2 else "up")
        time.sleep(FLAP_PAUSE_S)
    took = time.monotonic() - began
    made = writes(cluster) - before
    print(
        f"all links flap {number} times in {took:.0f} s: {made} writes, {made / took:.0f}/s, {memory_mib(cluster)} MiB"
    )
    assert made <= MANY * (took / QUIET_S + 1)
