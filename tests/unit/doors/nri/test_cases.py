"""What real runtimes do to plugins now and then, each on a real socket."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

import nri_rdma
from nri_rdma import errors
from nri_rdma.doors.nri.runtime_link import Link
from nri_rdma.doors.nri.session import status_code
from nri_rdma.errors import (
    ApiServerError,
    AttachError,
    CdiError,
    ErrorCode,
    LimitsError,
    NotReadyError,
    NriRdmaError,
    PlacementError,
)
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Code, RpcError
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.unit.doors.nri.door import ASKS, SOON, Door, GatedPlugin, connected, create, door, make_pod

__all__ = ["door"]

T = TypeVar("T")
TRIES = 3
HANDLED = 0b101111
"""RunPodSandbox, StopPodSandbox, RemovePodSandbox, CreateContainer, StartContainer."""
EITHER_WAY = pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])


@contextmanager
def busy_workers(door: Door) -> Iterator[None]:
    """Nothing is attached meanwhile."""
    release = threading.Event()
    started = threading.Barrier(5)

    def hang() -> None:
        started.wait(SOON)
        release.wait(SOON)

    hanging = [door.inside.workers.submit(f"hang-{number}", hang) for number in range(4)]
    started.wait(SOON)
    try:
        yield
    finally:
        release.set()
        for task in hanging:
            task.result(SOON)


@pytest.mark.parametrize(
    ("name", "version", "nri_version"),
    [
        ("containerd", "v1.7.0", ""),
        ("v2", "v2.0.1", ""),
        ("cri-o", "1.33.0", "(devel)"),
        ("containerd", "v2.3.0", "v0.12.0"),
        ("another", "", "v0.12.2"),
        ("", "", ""),
    ],
)
def test_every_runtime_is_asked_for_the_events_that_have_a_handler(
    door: Door, name: str, version: str, nri_version: str
) -> None:
    runtime = connected(door, name=name, version=version, nri_version=nri_version)
    assert runtime.events == HANDLED
    runtime.close()


def test_no_event_is_asked_for_that_the_runtime_does_not_know(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nri_rdma.doors.nri.runtimes.EVENTS_0_2", 0b1111)
    runtime = connected(door)
    assert runtime.events == HANDLED & 0b1111
    runtime.close()


def test_half_a_list_is_forgotten_with_its_connection(door: Door) -> None:
    runtime = FakeRuntime(door.socket_path)
    door.thread.start()
    runtime.accept(SOON, synchronize=False)
    early = make_pod(door.inside, "early")
    running = nri.Container(id="c", pod_sandbox_id=early.id, name="main")
    runtime.call("Synchronize", nri.SynchronizeRequest(pods=[early], containers=[running], more=True))
    assert door.facts == []
    runtime.accept(SOON)
    wait_until(lambda: door.facts != [], "the list to be complete")
    door.inside.workers.submit("reconcile", lambda: None).result(SOON)
    assert door.inside.engine.unserved == ()
    runtime.close()


@EITHER_WAY
def test_an_event_is_handled_once_and_again_is_no_harm(door: Door, own_rpcs: bool) -> None:
    runtime = connected(door, own_rpcs=own_rpcs)
    pod = make_pod(door.inside)
    runtime.run_pod_sandbox(pod)
    names = [span.name for span in door.inside.spans.recent()]
    assert (names.count("RunPodSandbox"), names.count("attach")) == (1, 1)
    runtime.own_rpcs = not own_rpcs  # CRI-O may tell a pod in Synchronize and once more; no runtime changes its ways
    runtime.run_pod_sandbox(pod)
    assert [span.name for span in door.inside.spans.recent()].count("attach") == 1
    for _ in range(2):
        runtime.stop_pod_sandbox(pod)
        runtime.remove_pod_sandbox(pod)
    door.inside.await_releases()
    assert door.inside.sandboxes.all() == ()
    runtime.close()


@pytest.mark.parametrize("number", [0, 5, 15, 2**31 - 1, -1])
def test_an_event_that_nobody_knows_is_answered_and_changes_nothing(door: Door, number: int) -> None:
    runtime = connected(door)
    before = door.inside.world.snapshot()
    change = nri.StateChangeEvent(event=number, pod=make_pod(door.inside))  # type: ignore[arg-type] # on purpose
    runtime.call("StateChange", change)
    door.inside.world.remove_namespace("/run/netns/one")
    assert door.inside.world.snapshot() == before
    runtime.close()


def test_fields_and_values_of_a_newer_interface_are_ignored(door: Door) -> None:
    runtime = connected(door, own_rpcs=True)
    unknown = b"\xfa\x3f\x04\xde\xad\xbe\xef" + b"\xf8\x3f\x2a"  # field 1023: bytes, then a number
    pod = nri.PodSandbox.FromString(make_pod(door.inside).SerializeToString() + unknown)
    runtime.call("RunPodSandbox", nri.RunPodSandboxRequest.FromString(b"\x0a" + _sized(pod) + unknown))
    container = nri.Container(id="c", pod_sandbox_id=pod.id, name="main", state=77)  # type: ignore[arg-type]
    container = nri.Container.FromString(container.SerializeToString() + unknown)
    assert [device.path for device in runtime.create_container(pod, container).adjust.linux.devices] != []
    runtime.close()


def _sized(message: nri.PodSandbox) -> bytes:
    data = message.SerializeToString()
    assert 128 <= len(data) < 1 << 14
    return bytes((len(data) & 0x7F | 0x80, len(data) >> 7)) + data


def _errors() -> list[NriRdmaError]:
    """One of every kind and code."""
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, NriRdmaError)}
    made: list[NriRdmaError] = [
        AttachError("what", device="d", hint="this is a test"),
        LimitsError("what", where="w", hint="h"),
        CdiError(ErrorCode.CDI_SYNTAX, "what", file="f", hint="h"),
        ApiServerError("what", where="w", hint="h"),
    ]
    return made + [kind(code, "what") for kind in kinds - {type(error) for error in made} for code in ErrorCode]


def test_no_error_of_ours_is_told_as_unimplemented() -> None:
    """A runtime with NRI 0.12 takes that for "tell me by StateChange", for as long as we are connected."""
    found = _errors()
    assert {type(error) for error in found} > {NotReadyError, PlacementError}
    assert Code.UNIMPLEMENTED not in {status_code(error) for error in found}


@pytest.mark.parametrize(
    "bug",
    [
        NotImplementedError("later"),
        OSError(5, "five"),
        MemoryError(),
    ],
)
def test_no_bug_of_ours_is_told_as_unimplemented(door: Door, bug: Exception) -> None:
    runtime = connected(door)
    GatedPlugin.broken = bug
    with pytest.raises(RpcError, match=f"nri-rdma: INTERNAL: {type(bug).__name__}") as told:
        create(runtime, make_pod(door.inside, "plain", {}))
    assert told.value.code == Code.INTERNAL
    GatedPlugin.broken = None
    create(runtime, make_pod(door.inside, "plain2", {}))
    runtime.close()


def in_time(door: Door, ask: Callable[[FakeRuntime, str], T], configured_ms: int) -> T:
    """What `ask` returns of a runtime that waits so long, for a pod of that name. It may raise TimeoutError twice: who
    decides too late is late each time, and a busy machine is not."""
    attempt = 1
    with connected(door, request_timeout_ms=configured_ms) as runtime:
        while True:
            try:
                return ask(runtime, f"try-{attempt}")
            except TimeoutError:
                if attempt == TRIES:
                    raise
            attempt += 1
            runtime.accept(SOON)


@pytest.mark.parametrize(
    ("configured_ms", "call_s", "expected_s"), [(600, 5.0, 0.45), (5000, 0.4, 0.3), (1000, 1.0, 0.8)]
)
def test_an_attach_that_takes_longer_is_answered_before_the_runtime_gives_up(
    door: Door, configured_ms: int, call_s: float, expected_s: float
) -> None:
    """The smaller of the runtime's time-out and the call's own counts, less a quarter or 0.2 s for the way."""

    def ask(runtime: FakeRuntime, name: str) -> float:
        pod = make_pod(door.inside, name, {"rdma.noderesource.dev": "1"})
        with busy_workers(door):
            begun = time.monotonic()
            runtime.run_pod_sandbox(pod, timeout_s=call_s)
            took = time.monotonic() - begun
            if took >= configured_ms / 1000:
                raise TimeoutError(f"the runtime waits {configured_ms} ms, and was answered after {took:.3f} s")
            with pytest.raises(RpcError, match="nri-rdma: NOT-READY: network is not ready"):
                create(runtime, pod)
        return took

    assert in_time(door, ask, configured_ms) >= expected_s - 0.05


def test_a_refusal_that_needs_fresh_facts_comes_in_time_too(door: Door) -> None:
    def ask(runtime: FakeRuntime, name: str) -> None:
        with busy_workers(door), pytest.raises(RpcError, match="NOT-READY: no suitable device is known to be free"):
            runtime.run_pod_sandbox(make_pod(door.inside, name, {"rdma.noderesource.dev": "99"}), timeout_s=0.5)

    in_time(door, ask, 500)


def test_a_stop_that_takes_longer_is_answered_before_the_runtime_gives_up(door: Door) -> None:
    def stop(runtime: FakeRuntime, name: str) -> None:
        pod = make_pod(door.inside, name, {"rdma.noderesource.dev": "1"})
        runtime.run_pod_sandbox(pod)
        with busy_workers(door):
            runtime.stop_pod_sandbox(pod, timeout_s=0.4)
        runtime.remove_pod_sandbox(pod)
        wait_until(lambda: door.inside.sandboxes.all() == (), "the devices to be home")

    in_time(door, stop, 400)


def test_a_shutdown_is_answered_and_ends_nothing(door: Door) -> None:
    runtime = connected(door)
    runtime.call("Shutdown", nri.Empty())
    create(runtime, make_pod(door.inside, "plain", {}))
    runtime.close()


def test_a_runtime_that_comes_back_is_served_as_before(door: Door) -> None:
    runtime = connected(door)
    pod = make_pod(door.inside)
    runtime.run_pod_sandbox(pod)
    runtime.pods = [pod]
    for _ in range(3):
        runtime.disconnect()
        runtime.accept(SOON)
        wait_until(lambda: door.runner.link is Link.SYNCHRONIZED, "the link to be up")
        assert len(create(runtime, pod).adjust.linux.devices) == 2
    runtime.close()


def test_the_runtimes_trace_goes_on_in_ours_and_nonsense_starts_a_new_one(door: Door) -> None:
    runtime = connected(door)
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    told = [
        [("Traceparent", f"00-{trace}-{parent}-01")],
        [("traceparent", "nonsense"), ("baggage", "a=b")],
        [],
    ]
    for number, metadata in enumerate(told):
        runtime.state_change(nri.RUN_POD_SANDBOX, make_pod(door.inside, f"p{number}", ONE), metadata=metadata)
    first, second, third = [span for span in door.inside.spans.recent() if span.name == "RunPodSandbox"]
    assert (f"{first.trace_id:032x}", f"{first.parent_id:016x}") == (trace, parent)
    assert len({first.trace_id, second.trace_id, third.trace_id}) == 3
    assert (second.parent_id, third.parent_id) == (0, 0)
    runtime.close()


ONE = {"rdma.noderesource.dev": "1"}


@EITHER_WAY
def test_a_plugin_calls_nothing_but_register_in_a_pods_whole_life(door: Door, own_rpcs: bool) -> None:
    """UpdateContainers in the middle of an event would stop the runtime until it drops us."""
    runtime = connected(door, own_rpcs=own_rpcs, pods=[make_pod(door.inside, "old", {})], sync_chunk=1)
    pod = make_pod(door.inside, annotations=ASKS)
    runtime.run_pod_sandbox(pod)
    create(runtime, pod)
    runtime.start_container(pod, nri.Container(id="c", pod_sandbox_id=pod.id, name="main"))
    with pytest.raises(RpcError):
        runtime.run_pod_sandbox(make_pod(door.inside, "bad", {"rdma.noderesource.dev": "gold"}))
    runtime.stop_pod_sandbox(pod)
    runtime.remove_pod_sandbox(pod)
    door.runner.stop()
    runtime.wait_closed(SOON)
    assert runtime.calls == ["RegisterPlugin"]


def test_the_product_knows_one_call_to_the_runtime() -> None:
    folder = Path(nri_rdma.__file__).parent
    sources = {path: path.read_text() for path in folder.rglob("*.py") if path.parent.name != "pb"}
    naming = sorted(str(path.relative_to(folder)) for path, text in sources.items() if "RUNTIME_SERVICE," in text)
    assert naming == ["doors/nri/session.py"]
    assert [str(path) for path, text in sources.items() if "UpdateContainersRequest" in text] == []
    assert sources[folder / "doors/nri/session.py"].count("_client.request(") == 1


def test_settings_that_the_runtime_tells_an_external_plugin_are_not_read(door: Door) -> None:
    """Runtimes send them none; what another plugin's drop-in says is not for us."""
    runtime = connected(door, config=json.dumps({"memlock": "lots"}))
    assert runtime.events == HANDLED
    runtime.close()


@EITHER_WAY
def test_a_container_without_a_name_has_the_kubelets_label(door: Door, own_rpcs: bool) -> None:
    runtime = connected(door, own_rpcs=own_rpcs, name="cri-o", version="1.34.0")
    asks = {"rdma.noderesource.dev": "[{match: {device: mlx5_3}, containers: [trainer]}]"}
    pod = make_pod(door.inside, annotations=asks)
    runtime.run_pod_sandbox(pod)
    container = nri.Container(id="c", pod_sandbox_id=pod.id, labels={"io.kubernetes.container.name": "trainer"})
    assert len(runtime.create_container(pod, container).adjust.linux.devices) == 2
    (sandbox,) = door.inside.sandboxes.all()
    assert list(sandbox.containers.unstarted) == ["trainer"]
    runtime.start_container(pod, container)
    assert list(sandbox.containers.unstarted) == []
    runtime.close()
