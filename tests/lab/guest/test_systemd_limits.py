"""Limits of the rdma cgroup where systemd owns the cgroups and each pod is a slice, as the kubelet then has it.

systemd does not know the rdma controller: it neither enables nor disables it. runc enables every controller on its way
down to the container's scope; crun enables those that it knows, and rdma is not among them: there the daemon does, and
writes the limits.
"""

import subprocess
from pathlib import Path

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import KUBEPODS
from tests.lab.guest.process import Server
from tests.lab.guest.test_limits import another_device
from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.deadline import wait_until

pytestmark = pytest.mark.machine("systemd")
CGROUPS = Path("/sys/fs/cgroup")
LIMIT = verbs.asks("mode: shared, limits: {hcaObjects: 4}")


# The subgroup of a scope in which the OCI runtime puts a container.
handlers = pytest.mark.parametrize(("handler", "subgroup"), [("runc", ""), ("crun", "container")])


@handlers
@pytest.mark.outcome("rdma-limits-systemd")
def test_a_limit_holds_in_a_scope_of_systemds_and_the_neighbour_is_free(
    cri: Cri, daemon: Server, rdma_device: str, handler: str, subgroup: str
) -> None:
    look_and_fill = f"cat /sys/fs/cgroup/rdma.max >/tmp/look; exec verbs-probe objects {rdma_device} 16 >/tmp/got"
    keep_sixteen = ["sh", "-c", look_and_fill]
    with (
        verbs.pod(cri, "limited", LIMIT, runtime_handler=handler) as limited_pod,
        verbs.pod(cri, "free", verbs.asks("mode: shared"), runtime_handler=handler) as free_pod,
    ):
        limited = verbs.start(cri, limited_pod, "main", keep_sixteen)
        assert _got(cri, limited) == "4 EAGAIN"
        assert _first_look(cri, limited) == f"{rdma_device} hca_handle=max hca_object=4"
        unified = cri.container_status(limited).spec["linux"]["resources"].get("unified", {})
        assert ("rdma.max" in unified) == (handler == "runc"), "runc limits it itself, crun would refuse it"
        scope = _slices(limited_pod)[-1] / f"cri-containerd-{limited.id}.scope" / subgroup
        assert (scope / "rdma.max").read_text().strip() == f"{rdma_device} hca_handle=max hca_object=4"
        # Both make systemd write what it wants of controllers into its cgroups anew.
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        subprocess.run(["systemctl", "set-property", "--runtime", "kubepods.slice", "TasksMax=9999"], check=True)
        for folder in (CGROUPS, *_slices(limited_pod)):
            assert "rdma" in (folder / "cgroup.subtree_control").read_text().split(), folder
        assert (scope / "rdma.current").read_text().strip() == f"{rdma_device} hca_handle=1 hca_object=4"
        neighbour = verbs.start(cri, free_pod, "main", keep_sixteen)
        assert _got(cri, neighbour) == "16 OK"


def test_a_container_of_crun_that_cannot_be_limited_does_not_start(cri: Cri, daemon: Server, rdma_device: str) -> None:
    """A device that nobody was limited on: older kernels may not survive that another one goes (docs/adr/0012)."""
    with another_device(rdma_device) as device, verbs.pod(cri, "crun", _limits(device), runtime_handler="crun") as pod:
        container = verbs.create(cri, pod, "main")
        kernel.rdma("link", "delete", device)
        try:
            with pytest.raises(CriError, match=f"LIMITS-NOT-SET: {device} cannot be limited: No such device"):
                cri.start(container)
        finally:
            kernel.rdma("link", "add", device, "type", "rxe", "netdev", "second")
        assert cri.container_status(container).state != "running"


def _limits(device: str) -> dict[str, str]:
    return verbs.asks(f"mode: shared, match: {{device: {device}}}, limits: {{hcaObjects: 4}}")


def _slices(sandbox: Sandbox) -> tuple[Path, ...]:
    """The cgroups from kubepods.slice to the pod's, by the kubelet's names."""
    pod = f"{KUBEPODS.removesuffix('.slice')}-pod{sandbox.uid.replace('-', '_')}.slice"
    kubepods = CGROUPS / "kubepods.slice"
    return kubepods, kubepods / KUBEPODS, kubepods / KUBEPODS / pod


def _first_look(cri: Cri, container: Container) -> str:
    """The container's limits when its program began."""
    return cri.exec(container, ["cat", "/tmp/look"]).stdout.strip()


def _got(cri: Cri, container: Container) -> str:
    """What the container's program printed into its file."""
    return wait_until(
        lambda: cri.exec(container, ["cat", "/tmp/got"]).stdout.strip() or None, "the program's answer", seconds=30
    )
