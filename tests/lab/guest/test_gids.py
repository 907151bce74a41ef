"""The GID by which a pod's traffic goes, where nobody sets one by hand.

The first entry of a table is that of the link-local address, to which no route leads beyond the link: a program that
takes index 0, as NCCL before 2.21 does, sends nothing to a pod elsewhere.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import STATE
from tests.lab.guest.process import Server
from tests.lab.outcomes import NO_DATA, OutcomeError
from tests.rig.cri import Container, Cri, Sandbox
from tests.rig.deadline import wait_until

NAMES = ("rxe1-left", "rxe1-right")


def variables(cri: Cri, container: Container) -> dict[str, str]:
    """What a container was told for NCCL, UCX and NVSHMEM."""
    shown = cri.exec(container, ["env"]).stdout
    print(shown)
    return dict(re.findall(r"^((?:NCCL|UCX|NVSHMEM)_\w+)=(.*)$", shown, re.MULTILINE))


FIRST, SECOND = "192.0.2.1", "192.0.2.9"


@pytest.fixture
def netdev(rdma_device: str) -> Iterator[str]:
    """The netdev of the first device, which gets an address and loses it."""
    (name,) = (link["netdev"] for link in kernel.rdma_links() if link["ifname"] == rdma_device)
    address("add", FIRST, name)
    yield name
    for it in (FIRST, SECOND):
        subprocess.run(["ip", "address", "delete", f"{it}/24", "dev", name], check=False, capture_output=True)


def address(verb: str, it: str, netdev: str) -> None:
    subprocess.run(["ip", "address", verb, f"{it}/24", "dev", netdev], check=True)


def status_of(pod: str) -> dict[str, list[str]]:
    """What `status` says of the GIDs of a pod, and the warnings."""
    command = [
        sys.executable,
        "-m",
        "nri_rdma",
        "status",
        "--control-socket",
        str(STATE / "control.sock"),
        "-o",
        "json",
    ]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (sandbox,) = (it for it in document["sandboxes"] if it["pod"].endswith(f"/{pod}"))
    return {"gids": [it["words"] for it in sandbox["gids"]], "warnings": sandbox["gid_warnings"]}


@pytest.mark.usefixtures("daemon")
def test_a_pod_that_shares_is_told_of_the_hosts_address_and_when_its_gid_has_moved(
    cri: Cri, rdma_device: str, netdev: str
) -> None:
    """Index 0 would be the link-local address here, too."""
    ask = verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}")
    wait_until(lambda: FIRST in gids_of(rdma_device), f"the GID of {FIRST}", seconds=10)
    with verbs.pod(cri, "sharing", ask) as sandbox:
        first = verbs.start(cri, sandbox, "first")
        index = str(gids_of(rdma_device).index(FIRST))
        assert index != "0"
        assert variables(cri, first)["NCCL_IB_GID_INDEX"] == index
        told = status_of("sharing")
        assert told["warnings"] == []
        (words,) = told["gids"]
        assert f"GID {index}, {FIRST} (RoCE v2): no address of the pod has a GID on this device" in words
        address("delete", FIRST, netdev)
        address("add", SECOND, netdev)
        found = wait_until(lambda: status_of("sharing")["warnings"], "status to warn", seconds=20)
        print(found)
        assert f"{SECOND} now, and was {index}, {FIRST} when the pod started" in found[0]
        again = verbs.start(cri, sandbox, "again")
        assert variables(cri, again)["NCCL_IB_GID_INDEX"] == str(gids_of(rdma_device).index(SECOND))


def gids_of(device: str) -> list[str]:
    """The addresses of a device's first GIDs, by index; "" for an entry that is not in use."""
    folder = Path(f"/sys/class/infiniband/{device}/ports/1/gids")
    values = [IPv6Address((folder / str(index)).read_text().strip()) for index in range(8)]
    return ["" if it.is_unspecified else str(it.ipv4_mapped or it) for it in values]


@pytest.mark.usefixtures("daemon")
def test_soft_roce_has_no_gid_of_roce_v1_and_the_pod_is_told(cri: Cri, rdma_device: str) -> None:
    with verbs.pod(
        cri, "old", verbs.asks(f"mode: shared, roceVersion: 1, match: {{device: {rdma_device}}}")
    ) as sandbox:
        told = variables(cri, verbs.start(cri, sandbox, "main"))
        assert {"NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM"}.isdisjoint(told)
        assert status_of("old")["gids"] == [
            f"{rdma_device}:1: no GID that it could send by, so that its traffic goes nowhere"
        ]


@pytest.fixture(scope="module")
def exclusive(cri: Cri, daemon: Server, rdma_device: str) -> Iterator[None]:
    """The driver that can move, and a kernel that shows each device in one namespace only."""
    with kernel.labs_rxe(rdma_device), kernel.rdma_netns("exclusive"):
        yield


@contextmanager
def two_pods(cri: Cri) -> Iterator[tuple[tuple[Sandbox, Container], tuple[Sandbox, Container]]]:
    asks = [verbs.asks(f"mode: exclusive, match: {{device: {name}.0}}") for name in NAMES]
    with verbs.pod(cri, NAMES[0], asks[0]) as left, verbs.pod(cri, NAMES[1], asks[1]) as right:
        yield (left, verbs.start(cri, left, "main")), (right, verbs.start(cri, right, "main"))


@pytest.mark.outcome("exclusive-traffic")
@pytest.mark.usefixtures("exclusive")
def test_data_goes_by_the_index_that_a_container_is_told_and_not_by_index_0(cri: Cri) -> None:
    with two_pods(cri) as pods:
        told = [variables(cri, container) for _, container in pods]
        assert [it["NCCL_IB_GID_INDEX"] for it in told] == ["1", "1"]
        assert [it["UCX_IB_GID_INDEX"] for it in told] == ["1", "1"]

        def peers(indices: list[int]) -> list[verbs.Peer]:
            return [
                verbs.Peer(sandbox=sandbox, container=container, device=f"{name}.0", gid_index=index)
                for name, (sandbox, container), index in zip(NAMES, pods, indices, strict=True)
            ]

        with pytest.raises(OutcomeError) as caught:
            verbs.bandwidth(cri, *peers([0, 0]))
        assert caught.value.outcome == NO_DATA
        print(f"index 0: {caught.value}")
        speed = verbs.bandwidth(cri, *peers([int(it["NCCL_IB_GID_INDEX"]) for it in told]))
        print(f"index {told[0]['NCCL_IB_GID_INDEX']}: data arrives, {speed} MiB/s")
