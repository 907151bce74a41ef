"""Claims while driver, kubelet, containerd and API server are killed at random: each pod ends well, and no two claims
had a device at the same time.

Half of the pods name their claim; a third share one in pairs. The guard comes by the admission policy. NRI_RDMA_CLAIMS
is the number of pods, NRI_RDMA_SEED chooses who is killed when; the seed of a run is printed.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from signal import SIGHUP, SIGKILL
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.pods import pod
from tests.cluster.test_claims import CONFIG as CLAIMS_CONFIG
from tests.cluster.test_claims import DRIVER, EIGHT, claim_spec, device_class, mac_of, make, named, published, template
from tests.cluster.test_guard_resource import RESOURCE, apply_policy
from tests.cluster.test_shares import allocatable
from tests.rig.deadline import wait_until

CONFIG = f'guard_resource = "{RESOURCE}"\n{CLAIMS_CONFIG}'
CLAIMS = int(os.environ.get("NRI_RDMA_CLAIMS", "32"))
SEED = int(os.environ.get("NRI_RDMA_SEED", secrets.randbelow(1 << 16)))
AT_ONCE = 12
"""Pods that exist at one time: more than the node has devices."""
NOT_ADMITTED = "UnexpectedAdmissionError"
WORK = (
    "n=$(echo /dev/infiniband/uverbs*); b=$(cut -d' ' -f1 /proc/uptime); sleep 1; m=$(cat /sys/class/net/*/address); "
)
WORK += "echo $(cut -d' ' -f1 /proc/uptime) $b $n $m > /dev/termination-log"


def shared_claim(name: str) -> str:
    """The claim that a pod shares with another one, "" for a pod with a claim of its own."""
    number = number_of(name)
    return f"both{number // 6}" if number % 6 > 3 else ""


def jobs(numbers: range) -> list[dict[str, Any]]:
    """Pods that have a NIC and say when they had which one; each is made again until it has ended well. A claim that
    two pods share comes before the first of them."""
    made: list[dict[str, Any]] = []
    for number in numbers:
        name = f"j{number}"
        resources = {"claims": [{"name": "rdma"}]} if number % 2 else {}
        container = {"resources": resources, "command": ["sh", "-c", WORK]}
        claim = {"resourceClaimTemplateName": "one"}
        if shared := shared_claim(name):
            made.append(named(shared, claim_spec({"nic": {}}, {"mode": "shared"})))
            claim = {"resourceClaimName": shared}
        claims = [{"name": "rdma", **claim}]
        made.append(pod(name, containers=[container], resourceClaims=claims, restartPolicy="OnFailure"))
    return made


class Killer(threading.Thread):
    """Kills a program of the cluster now and then, and starts it again a little later."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._node = cluster.nodes["n1"]
        programs = self._node.machine.programs
        self._programs = [programs[it] for it in ("nri-rdma", "kubelet", "containerd")]
        self._programs.append(cluster.control.programs["kube-apiserver"])
        self._hardware = programs["hardware"]
        self._random = random.Random(SEED)
        self._ends = threading.Event()
        self.killed: Counter[str] = Counter()

    def run(self) -> None:
        while not self._ends.wait(self._random.uniform(2, 12)):
            program = self._random.choice(self._programs)
            if program.name == "containerd":
                self._node.remove_twins()
            program.end(SIGKILL)
            time.sleep(self._random.uniform(0, 2))
            program.start()
            self.killed[program.name] += 1
            self._hardware.send(SIGHUP)  # of a pod that ended without us

    def end(self) -> None:
        self._ends.set()
        self.join()


def asked(ask: Callable[[], Any]) -> Any:
    """Ask until the API server answers."""
    until = time.monotonic() + 60
    while True:
        try:
            return ask()
        except ClusterError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


@pytest.mark.timeout(3600)
def test_each_pod_of_many_has_its_device_alone_while_everything_is_killed(cluster: Cluster) -> None:
    print(f"seed {SEED}, {CLAIMS} claims")
    wait_until(lambda: len(published(cluster)) == 8, "the node's ResourceSlice", 30)
    make(cluster, device_class(), template("one", claim_spec({"nic": {}})))
    wait_until(lambda: allocatable(cluster, RESOURCE) == "1024", "the guard resource", 30)
    apply_policy(cluster)
    links = _links(cluster)
    killer = Killer(cluster)
    killer.start()
    try:
        reports = _ended(cluster)
    finally:
        killer.end()
    print(f"killed: {dict(killer.killed)}")
    assert set(killer.killed) == {"nri-rdma", "kubelet", "containerd", "kube-apiserver"} or CLAIMS < 100
    _assert_alone(reports)
    cluster.kubectl("delete", "resourceclaims", "--all", "--timeout=60s")
    wait_until(lambda: _links(cluster) == links, "the host's netdevs as before", 60)
    # Pauses after errors of the API server are up to 30 s long.
    wait_until(lambda: len(published(cluster)) == 8, "the slice after it all", 60)
    wait_until(lambda: not cluster.get("resourceclaims")["items"], "no claim", 60)
    wait_until(lambda: not _left(cluster), "no CDI spec of a claim", 60)


def _ended(cluster: Cluster) -> dict[str, str]:
    """Run all pods; return what each of them said."""
    reports: dict[str, str] = {}
    made = 0
    until = time.monotonic() + 120 + 20 * CLAIMS
    while len(reports) < CLAIMS:
        assert time.monotonic() < until, f"{len(reports)} of {CLAIMS} have ended"
        found = asked(lambda: cluster.get("pods")["items"])
        done = {it["metadata"]["name"]: it for it in found if it["status"].get("phase") in {"Succeeded", "Failed"}}
        for name in [name for name, it in done.items() if it["status"].get("reason") == NOT_ADMITTED]:
            # It came to the node in the moment in which the kubelet lost the guard resource: its owner makes another.
            del done[name]
            asked(lambda: cluster.kubectl("delete", "pod", "--ignore-not-found", name))  # noqa: B023
            again = {"apiVersion": "v1", "kind": "List", "items": jobs(range(number_of(name), number_of(name) + 1))}
            asked(lambda: cluster.kubectl("apply", "-f", "-", given=again))  # noqa: B023
        for name, it in done.items():
            if name not in reports:
                reports[name] = _report(it)
                print(name, reports[name], flush=True)
        if gone := [it for it in done if it in reports and "deletionTimestamp" not in done[it]["metadata"]]:
            asked(lambda: cluster.kubectl("delete", "pod", "--wait=false", "--ignore-not-found", *gone))
        room = AT_ONCE - (len(found) - len(done))
        fresh = range(made, min(CLAIMS, made + room))
        if fresh:
            items = {"apiVersion": "v1", "kind": "List", "items": jobs(fresh)}
            asked(lambda: cluster.kubectl("apply", "-f", "-", given=items))  # noqa: B023
            made += len(fresh)
        time.sleep(0.5)
    return reports


def number_of(name: str) -> int:
    """The number of a pod."""
    return int(name.removeprefix("j"))


def _report(it: dict[str, Any]) -> str:
    assert it["status"]["phase"] == "Succeeded", json.dumps(it["status"])
    (status,) = it["status"]["containerStatuses"]
    message: str = status["state"]["terminated"]["message"]
    return message.strip()


def _assert_alone(reports: dict[str, str]) -> None:
    """Each pod had one device, alone with its netdev, and no two claims had one at the same time."""
    times: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for name, report in reports.items():
        end, begin, node, *macs = report.split()
        number = int(node.removeprefix("/dev/infiniband/uverbs"))
        had = [it for it in range(len(EIGHT.rdma)) if mac_of(it) in macs]
        assert had == ([] if shared_claim(name) else [number]), (name, report)
        times[number].append((float(begin), float(end), name))
    for number, spans in times.items():
        spans.sort()
        for (_, ended, first), (began, _, second) in pairwise(spans):
            is_one_claim = shared_claim(first) != "" and shared_claim(first) == shared_claim(second)
            assert ended <= began or is_one_claim, f"uverbs{number}: {first} until {ended}, {second} from {began}"


def _links(cluster: Cluster) -> dict[str, str]:
    """The node's NICs by name, with their addresses."""
    listed = json.loads(cluster.nodes["n1"].machine.run("ip", "-j", "address"))
    ours = {it.name for it in EIGHT.netdevs}
    return {
        it["ifname"]: f"{it['address']} {it['operstate']} {[a['local'] for a in it['addr_info']]}"
        for it in listed
        if it["ifname"] in ours
    }


def _left(cluster: Cluster) -> list[str]:
    listed = cluster.nodes["n1"].machine.run("sh", "-c", "ls /var/run/cdi 2>/dev/null || true")
    return [it for it in listed.split() if f"{DRIVER}-claim-" in it]
