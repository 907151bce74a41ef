"""The runtime's trace goes on in ours: a runtime-side client sends a W3C traceparent in the call's metadata."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.pb import nri_pb2 as nri
from tests.fakes.runtime import FakeRuntime
from tests.rig.daemon import Daemon
from tests.rig.fabric import Fabric

pytestmark = [pytest.mark.root, pytest.mark.runtime]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@dataclass(frozen=True)
class Place:
    """Where a daemon runs that no containerd owns."""

    run: Path
    work: Path
    nri_socket: Path


@pytest.fixture
def place() -> Iterator[Place]:
    with TemporaryDirectory(prefix="nri-") as folder:
        yield Place(run=Path(folder), work=Path(folder), nri_socket=Path(folder) / "nri.sock")


def test_spans_of_an_event_continue_the_runtimes_trace(place: Place, node: Fabric) -> None:
    pod = nri.PodSandbox(id="sandbox1", name="traced", uid="uid1", namespace="default")
    pod.annotations["rdma.noderesource.dev"] = "1"
    runtime = FakeRuntime(place.nri_socket)
    daemon = Daemon(place, node, extra=())
    try:
        daemon.start_process()
        runtime.accept(10)
        daemon.wait_synchronized()
        metadata = [("Traceparent", f"00-{TRACE}-{PARENT}-01")]
        runtime.state_change(nri.RUN_POD_SANDBOX, pod, metadata=metadata)
        container = nri.Container(id="container1", pod_sandbox_id="sandbox1", name="main")
        request = nri.CreateContainerRequest(pod=pod, container=container)
        answer = runtime.call("CreateContainer", request, metadata=metadata)
        assert isinstance(answer, nri.CreateContainerResponse)
        assert {device.path for device in answer.adjust.linux.devices} == {
            "/dev/infiniband/uverbs0",
            "/dev/infiniband/rdma_cm",
        }
        spans = json.loads(daemon.cli("trace", "traced", "-o", "json").stdout)["spans"]
    finally:
        daemon.stop()
        runtime.close()
    assert {span["trace_id"] for span in spans} == {TRACE}
    roots = [span for span in spans if span["parent_id"] == PARENT]
    assert [span["name"] for span in roots] == ["RunPodSandbox", "CreateContainer"]
    known = {span["span_id"] for span in spans} | {PARENT}
    assert all(span["parent_id"] in known for span in spans)
    assert {"parse", "place", "attach", "plan", "resolve-numbers", "inject"} <= {span["name"] for span in spans}
