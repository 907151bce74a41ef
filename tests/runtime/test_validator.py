"""NRI's own validator, told to require the plugin: it refuses containers while the plugin is absent, not when it is
late. The guard is for both."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.containerd import Containerd
from tests.rig.cri import CriError
from tests.rig.daemon import Daemon
from tests.rig.expect import look
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime(differs=True)]

ASKS = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}}]"}
NOT_PRESENT = 'required plugin "nri-rdma" not present'


@pytest.fixture
def requiring(runtime: Runtime, tmp_path: Path) -> Iterator[Containerd]:
    """A containerd of this release whose validator requires nri-rdma."""
    if runtime.release.name < "containerd-2.2" or runtime.release.is_crio:
        pytest.skip("the validator came with NRI 0.10: containerd 2.2 has it, this release has not")
    with Containerd(tmp_path, release=runtime.release, required_plugins=["nri-rdma"]) as containerd:
        yield containerd


def test_a_validator_refuses_a_container_while_the_plugin_is_absent_and_not_when_it_is_late(
    requiring: Containerd, node: Fabric
) -> None:
    cri = requiring.cri
    with Daemon(requiring, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS)
        served = cri.create_container(pod, "served")
        cri.start(served)
        assert "uverbs3" in look(cri, served).nodes
        os.kill(daemon.pid, signal.SIGSTOP)  # late: it lives, and does not answer in time
        try:
            bare = cri.create_container(pod, "bare")
            cri.start(bare)
            assert look(cri, bare).nodes == {}, "started without its devices, and the validator saw nothing"
            with pytest.raises(CriError) as absent:  # the runtime has closed the connection since
                cri.create_container(pod, "absent")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert NOT_PRESENT in absent.value.text
        daemon.kill()
        plain = cri.run_pod("plain")
        with pytest.raises(CriError) as refused:
            cri.create_container(plain, "main")
        assert NOT_PRESENT in refused.value.text
