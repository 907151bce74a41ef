"""A daemon that lacks one capability refuses by its name who needs it, and begins nothing that it could not undo."""

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.expect import host_link
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

EXCLUSIVE = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}, mode: exclusive}]"}
SHARED = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}, mode: shared}]"}


@pytest.mark.parametrize("name", ["NET_ADMIN", "SYS_ADMIN"])
def test_an_exclusive_pod_is_refused_by_the_capabilitys_name_and_a_shared_one_runs(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, name: str
) -> None:
    without = ("setpriv", "--bounding-set", f"-{name.lower()}", "--inh-caps", "-all")
    with Daemon(runtime, node, inside=without) as daemon:
        with pytest.raises(CriError) as refused:
            cri.run_pod("asks", annotations=EXCLUSIVE)
        assert f"nri-rdma: PRIVILEGE: the daemon lacks CAP_{name}: " in refused.value.text
        assert f"Next: add {name} to securityContext.capabilities of the daemon's container" in refused.value.text
        assert host_link("rail3") is not None
        pod = cri.run_pod("shares", annotations=SHARED)
        cri.start(cri.create_container(pod, "main"))
        cri.delete_pod(pod)
        assert "undo" not in daemon.log
        troubles = [it["part"] for it in daemon.status()["troubles"]]
        assert troubles == (["rights"] if name == "NET_ADMIN" else [])
