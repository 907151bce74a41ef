"""Each call of the runtime is counted once, by its event and by what became of it, and answered as without a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError, Message

from nri_rdma.doors.nri.counted import CountedPlugin
from nri_rdma.doors.nri.plugin import Plugin, UnknownMethodError
from nri_rdma.errors import NriRdmaError
from nri_rdma.observe.durations import Labels
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import Request
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import SERVICE

PREFIX = "rdma.noderesource.dev"


class Runtime:
    """Calls a counted plugin, and says what was counted."""

    def __init__(self, inside: InsideDaemon) -> None:
        self._inside = inside
        self._counts: Counter[Labels] = Counter()
        self.plain = Plugin(inside.engine, inside.spans, lambda _runtime: None)
        self.plugin = CountedPlugin(self.plain, self._counts)

    def call(self, method: str, message: Message) -> bytes:
        return self.plugin.answer(request(method, message.SerializeToString()))

    def pod(self, name: str, **annotations: str) -> nri.PodSandbox:
        path = f"/run/netns/{name}"
        self._inside.world.add_link(self._inside.world.add_namespace(path), "lo")
        asked = {f"{PREFIX}/{key}": text for key, text in annotations.items()}
        pod = nri.PodSandbox(id=name, uid=name, name=name, namespace="default", annotations=asked)
        pod.linux.namespaces.add(type="network", path=path)
        return pod

    def counts(self) -> dict[tuple[str, ...], int]:
        return dict(self._counts)


def request(method: str, payload: bytes) -> Request:
    return Request(1, ttrpc.Request(service=SERVICE, method=method, payload=payload), 0)


@pytest.fixture
def runtime(tmp_path: Path, eight: Path) -> Iterator[Runtime]:
    with InsideDaemon(tmp_path, eight) as inside:
        yield Runtime(inside)


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_events_are_counted_by_what_became_of_them(runtime: Runtime, own_rpcs: bool) -> None:
    def tell(event: str, pod: nri.PodSandbox) -> None:
        if own_rpcs:
            runtime.call(event, getattr(nri, f"{event}Request")(pod=pod))
        else:
            number = nri.Event.Value("RUN_POD_SANDBOX" if event == "RunPodSandbox" else "STOP_POD_SANDBOX")
            runtime.call("StateChange", nri.StateChangeEvent(event=number, pod=pod))  # type: ignore[arg-type]  # a number

    asking, plain, greedy = runtime.pod("asking", pod="1"), runtime.pod("plain"), runtime.pod("greedy", pod="99")
    for pod in (asking, plain):
        tell("RunPodSandbox", pod)
    with pytest.raises(NriRdmaError):
        tell("RunPodSandbox", greedy)
    for pod in (asking, plain):
        tell("StopPodSandbox", pod)
    assert runtime.counts() == {
        ("RunPodSandbox", "done"): 1,
        ("RunPodSandbox", "nothing_asked"): 1,
        ("RunPodSandbox", "refused"): 1,
        ("StopPodSandbox", "done"): 1,
        ("StopPodSandbox", "nothing_asked"): 1,
    }


def test_configure_and_synchronize_are_done(runtime: Runtime) -> None:
    runtime.call("Configure", nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.9"))
    runtime.call("Synchronize", nri.SynchronizeRequest())
    assert runtime.counts() == {("Configure", "done"): 1, ("Synchronize", "done"): 1}


def test_what_cannot_be_read_or_is_not_served_failed_and_its_name_is_no_label(runtime: Runtime) -> None:
    with pytest.raises(DecodeError):
        runtime.plugin.answer(request("CreateContainer", b"\x12\x02\xff\xff"))
    for name in ("Strange", "Stranger"):
        with pytest.raises(UnknownMethodError):
            runtime.plugin.answer(request(name, b""))
    assert runtime.counts() == {("CreateContainer", "failed"): 1, ("unknown", "failed"): 2}


def test_a_state_change_that_nobody_knows_asks_for_nothing(runtime: Runtime) -> None:
    runtime.call("StateChange", nri.StateChangeEvent(event=99))  # type: ignore[arg-type]  # a newer interface's
    assert runtime.counts() == {("StateChange", "nothing_asked"): 1}


def test_the_answer_is_the_same(runtime: Runtime) -> None:
    pod = runtime.pod("one", pod="1")
    runtime.call("RunPodSandbox", nri.RunPodSandboxRequest(pod=pod))
    call = nri.CreateContainerRequest(pod=pod, container=nri.Container(id="c", pod_sandbox_id="one", name="main"))
    asked = request("CreateContainer", call.SerializeToString())
    assert runtime.plugin.answer(asked) == runtime.plain.answer(asked) != b""
