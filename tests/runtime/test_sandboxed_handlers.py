"""A pod whose runtime handler stands for a kernel of its own is refused if it asks, however it asks, and starts if not.

The handler is runc under such a name: nri-rdma goes by what NRI tells.
"""

from collections.abc import Iterator

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.expect import look
from tests.rig.fabric import Fabric
from tests.rig.runtime import SANDBOXED, Runtime
from tests.runtime.asking import WAYS, Kubernetes, kubernetes

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]


@pytest.fixture
def on(runtime: Runtime, node: Fabric, cri: Cri, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    with kubernetes(runtime, node, tmp_path_factory.mktemp("k")) as made:
        yield made


def test_pods_with_such_a_handler_start_if_they_ask_for_nothing_only(host_equal: None, on: Kubernetes) -> None:
    cri = on.runtime.cri
    with on.daemon() as daemon:
        for way in ("annotation", "share", "claim", "cdi"):
            told = refusal(on, daemon, way)
            assert "nri-rdma: POLICY-HANDLER: " in told
            assert f"containers of runtime handler {SANDBOXED} have a kernel of their own" in told
        plain = cri.run_pod("plain", runtime_handler=SANDBOXED)
        assert look(cri, cri.run_container(plain, "main")).nodes == {}
        cri.delete_pod(plain)
        assert daemon.status()["sandboxes"] == []


def refusal(on: Kubernetes, daemon: Daemon, way: str) -> str:
    """The text with which a pod is refused, or its container."""
    asked = WAYS[way].prepare(on, f"asks-{way}", daemon)
    with pytest.raises(CriError) as caught:
        pod = on.runtime.cri.run_pod(f"asks-{way}", annotations=asked.annotations, runtime_handler=SANDBOXED)
        on.runtime.cri.create_container(
            pod, "main", annotations=asked.container_annotations, cdi_devices=asked.cdi_devices
        )
    return caught.value.text
