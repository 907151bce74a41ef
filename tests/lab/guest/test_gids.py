"""The GID by which a pod's traffic goes, where nobody sets one by hand.

The first entry of a table is that of the link-local address, to which no route leads beyond the link: a program that
takes index 0, as NCCL before 2.21 does, sends nothing to a pod elsewhere.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.outcomes import NO_DATA, OutcomeError
from tests.rig.cri import Container, Cri, Sandbox

NAMES = ("rxe1-left", "rxe1-right")


@pytest.fixture(scope="module")
def exclusive(cri: Cri, daemon: Server, rdma_device: str) -> Iterator[None]:
    """The driver that can move, and a kernel that shows each device in one namespace only."""
    with kernel.labs_rxe(rdma_device), kernel.rdma_netns("exclusive"):
        yield


def variables(cri: Cri, container: Container) -> dict[str, str]:
    """What a container was told for NCCL, UCX and NVSHMEM."""
    shown = cri.exec(container, ["env"]).stdout
    print(shown)
    return dict(re.findall(r"^((?:NCCL|UCX|NVSHMEM)_\w+)=(.*)$", shown, re.MULTILINE))


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
