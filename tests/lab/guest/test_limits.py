"""Limits that the kernel enforces: the rdma cgroup's, and RLIMIT_MEMLOCK."""

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.cri import Container, Cri
from tests.rig.deadline import wait_until

HALF_GIB = 512 << 20
NOBODY = 65534


@pytest.mark.outcome("rdma-limits")
def test_a_container_at_its_limit_gets_no_object_more_while_its_neighbour_does(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    keep_sixteen = ["sh", "-c", f"exec verbs-probe objects {rdma_device} 16 >/tmp/got"]
    limit = verbs.asks("mode: shared, limits: {hcaObjects: 4}")
    with (
        verbs.pod(cri, "limited", limit) as limited_pod,
        verbs.pod(cri, "free", verbs.asks("mode: shared")) as free_pod,
    ):
        limited = verbs.start(cri, limited_pod, "main", keep_sixteen)
        assert _got(cri, limited) == "4 EAGAIN"
        in_use = kernel.cgroup_file(cri.container_status(limited).pid, "rdma.current")
        assert in_use == f"{rdma_device} hca_handle=1 hca_object=4"
        neighbour = verbs.start(cri, free_pod, "main", keep_sixteen)
        assert _got(cri, neighbour) == "16 OK"


@pytest.mark.outcome("memlock")
def test_a_user_without_privileges_registers_512_mib_only_in_the_pod_that_asked(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    register = ["verbs-probe", "register", rdma_device, str(HALF_GIB)]
    with verbs.pod(cri, "memlock", verbs.asks("mode: shared")) as sandbox:
        asked = verbs.start(cri, sandbox, "asked", user=NOBODY)
        shown = cri.exec(asked, register, seconds=60)
        assert shown.stdout.strip() == f"{HALF_GIB} OK"
    with verbs.pod(cri, "plain", {}) as sandbox:
        # The same device, handed to the runtime by somebody else.
        plain = cri.create_container(sandbox, "plain", image=WORKLOAD, user=NOBODY, devices=["/dev/infiniband/uverbs0"])
        cri.start(plain)
        assert cri.exec(plain, register, seconds=60).stdout.strip() == "0 ENOMEM"
        little = cri.exec(plain, ["verbs-probe", "register", rdma_device, "65536"], seconds=60)
        assert little.stdout.strip() == "65536 OK", "the refusal is not the limit's"


@pytest.mark.outcome("limited-device-removed")
def test_the_device_can_be_removed_when_a_container_with_limits_is_gone(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    sandbox = cri.run_pod("limited-to-its-end", annotations=verbs.asks("mode: shared, limits: {hcaObjects: 4}"))
    verbs.start(cri, sandbox, "main")
    cri.delete_pod(sandbox)
    with verbs.pod(cri, "next", verbs.asks("mode: shared")):
        pass  # by the end of it, the kernel has freed the cgroup
    netdev = kernel.netdev_of(rdma_device)
    kernel.rdma("link", "delete", rdma_device)
    kernel.rdma("link", "add", rdma_device, "type", "rxe", "netdev", netdev)
    wait_until(lambda: [it["state"] for it in kernel.rdma_links()] == ["ACTIVE"], "an active port", seconds=30)


def _got(cri: Cri, container: Container) -> str:
    """What the container's program printed into its file."""
    return wait_until(
        lambda: cri.exec(container, ["cat", "/tmp/got"]).stdout.strip() or None, "the program's answer", seconds=30
    )
