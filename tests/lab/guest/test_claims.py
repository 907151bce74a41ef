"""Containers with a CDI device that a DRA driver prepared: the spec is where drivers write it; no annotation asks."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.guest.test_exclusive import facts
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.cri import Container, Cri
from tests.rig.deadline import wait_until
from tests.rig.expect import assert_no_nodes

CDI = Path("/var/run/cdi")
KIND = "dra.example.com/nic"
KEY = "rdma.noderesource.dev"


class Claims:
    """Specs as a driver writes them: the nodes without numbers, which the runtime takes from the host."""

    def __init__(self) -> None:
        CDI.mkdir(exist_ok=True)
        self._written: list[Path] = []

    def prepare(self, claim: str, uverbs: str, keys: str) -> str:
        """A CDI device with that node and rdma_cm; its name. `keys` is what stands under our annotation."""
        nodes = [{"path": f"/dev/infiniband/{name}"} for name in (uverbs, "rdma_cm")]
        device = {"name": claim, "annotations": {KEY: keys}, "containerEdits": {"deviceNodes": nodes}}
        path = CDI / f"dra.example.com-nic_{claim}.json"
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": KIND, "devices": [device]}))
        self._written.append(beside.rename(path))
        return f"{KIND}={claim}"

    def unprepare(self) -> None:
        """All specs are gone."""
        for path in self._written:
            path.unlink()


@pytest.fixture
def claims() -> Iterator[Claims]:
    made = Claims()
    yield made
    made.unprepare()


def uverbs_of(device: str) -> str:
    """The node of one of the host's RDMA devices."""
    found = Path("/sys/class/infiniband_verbs").glob("uverbs*/ibdev")
    (name,) = (path.parent.name for path in found if path.read_text().strip() == device)
    return name


def got(cri: Cri, container: Container) -> str:
    return wait_until(lambda: cri.exec(container, ["cat", "/tmp/got"]).stdout.strip() or None, "the answer", seconds=30)


@pytest.mark.outcome("claim-limits")
def test_the_kernel_enforces_what_the_spec_asks(cri: Cri, daemon: Server, rdma_device: str, claims: Claims) -> None:
    name = claims.prepare("limited", uverbs_of(rdma_device), "{limits: {hcaObjects: 4}, memlock: unlimited}")
    keep_sixteen = ["sh", "-c", f"exec verbs-probe objects {rdma_device} 16 >/tmp/got"]
    before = kernel.NodeState.take()
    with verbs.pod(cri, "claim", {}) as sandbox:
        limited = verbs.start(cri, sandbox, "main", keep_sixteen, cdi_devices=[name])
        assert got(cri, limited) == "4 EAGAIN"
        pid = cri.container_status(limited).pid
        assert kernel.cgroup_file(pid, "rdma.max") == f"{rdma_device} hca_handle=max hca_object=4"
        assert kernel.memlock(pid) == ("unlimited", "unlimited")
        plain = cri.create_container(sandbox, "plain", image=WORKLOAD)
        cri.start(plain)
        assert_no_nodes(cri, plain)
    wait_until(lambda: not before.differences_to(kernel.NodeState.take()), "the host to be as before", seconds=10)


@pytest.mark.outcome("claim-alone")
def test_a_device_alone_moves_when_the_container_is_made_and_comes_home(
    cri: Cri, daemon: Server, rdma_device: str, claims: Claims
) -> None:
    with kernel.labs_rxe(rdma_device), kernel.rdma_netns("exclusive"):
        device = "rxe1-claim.0"
        with verbs.pod(cri, "rxe1-claim", {}) as sandbox:
            assert device in kernel.rdma_devices()
            name = claims.prepare("alone", uverbs_of(device), "mode: exclusive")
            container = verbs.start(cri, sandbox, "main", cdi_devices=[name])
            assert device not in kernel.rdma_devices()
            shown = cri.exec(container, ["ibv_devinfo", "-d", device])
            assert shown.exit_code == 0, shown.stderr
            assert "PORT_ACTIVE" in shown.stdout
        assert facts("rxe1-claim", "del") == facts("rxe1-claim", "add")
