"""One trace of a pod: the kubelet's span, the runtime's below it, ours below these, and our steps below ours.

The runtime and the daemon export to one collector. Runtimes that send no trace context are shown to send none.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rig.collector import Collector, SeenSpan
from tests.rig.containerd import Containerd
from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.crio import Crio
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime
from tests.rig.watched_daemon import WatchedDaemon

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

OURS = "nri-rdma"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
KUBELET = "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{KUBELET}-01", f"00-{TRACE}-{KUBELET}-00"
REQUEST = "rdma.noderesource.dev/pod"
ASKS = {REQUEST: "- {match: {device: mlx5_2}}"}
STEPS = {
    "RunPodSandbox": ("parse", "place", "plan", "attach"),
    "CreateContainer": ("inject",),
    "StartContainer": ("userspace",),
    "StopPodSandbox": ("undo",),
    "attach": ("capture", "move-netdev", "configure-netdev", "resolve-numbers", "gids"),
    "undo": ("undo configure-netdev", "undo move-netdev", "restore"),
}
"""The spans below each of ours, in their order; all others have none. RemovePodSandbox finds nothing to do any more."""
CALLS = tuple(name for name in STEPS if name[0].isupper())
NO_STEPS = {"", *CALLS, "attach", "undo"}
"""What has steps below it does nothing by itself."""
NOT_FOR_PODS = ("MainThread", "node-reader")
"""Threads that read the node: at the start of the daemon, and whenever it changes."""
LATER = {"attach", "undo", "userspace"}
"""What goes on when its call has been answered."""
CLOCKS_NS = 1_000_000
"""How far the clocks of two programs on one machine may be apart: a span in Go takes its end from the monotonic one."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which the daemons of this test export."""
    with Collector() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def traced(runtime: Runtime, tmp_path: Path, collector: Collector) -> Iterator[Runtime]:
    """A runtime of this release that exports to the same collector."""
    kind = Crio if runtime.release.is_crio else Containerd
    with kind(tmp_path, release=runtime.release, collector=collector) as running:
        yield running


def sends_context(runtime: Runtime) -> bool:
    """Whether the runtime sends a traceparent in the calls of NRI: containerd does since 2.2, CRI-O since 1.29."""
    return runtime.release.is_crio or runtime.release.name >= "containerd-2.2"


def run_and_remove(cri: Cri, daemon: Daemon) -> Sandbox:
    """The life of a pod with a device, in which no call waits for the attach, nor for the restore."""
    pod = cri.run_pod("traced", annotations=ASKS)
    wait_until(lambda: " attached " in daemon.log, lambda: f"the pod to be attached; the log:\n{daemon.log}")
    cri.run_container(pod, "main")
    cri.stop_pod(pod)
    wait_until(lambda: " returned " in daemon.log, lambda: f"the device to be as before; the log:\n{daemon.log}")
    cri.delete_pod(pod)
    return pod


@dataclass(frozen=True, slots=True)
class Tree:
    """The spans of all programs by their ids."""

    spans: tuple[SeenSpan, ...]

    def below(self, span: SeenSpan) -> tuple[SeenSpan, ...]:
        """The spans whose parent this one is, in the order of their beginnings."""
        return tuple(it for it in self.spans if (it.trace_id, it.parent_id) == (span.trace_id, span.span_id))

    def above(self, span: SeenSpan) -> tuple[SeenSpan, ...]:
        """The spans from the parent up to the last one that arrived."""
        parent = [it for it in self.spans if (it.trace_id, it.span_id) == (span.trace_id, span.parent_id)]
        return (parent[0], *self.above(parent[0])) if parent else ()


def check_steps(tree: Tree, span: SeenSpan, expected: Mapping[str, tuple[str, ...]]) -> None:
    """The steps of a span are the expected ones; each begins when the one before has ended, and ends in the span."""
    steps = tree.below(span)
    assert tuple(it.name for it in steps) == expected.get(span.name, ())
    before = span.start_ns
    for step in steps:
        assert step.service == OURS
        assert before <= step.start_ns <= step.end_ns, (span.name, step.name)
        assert step.end_ns <= span.end_ns or step.name in LATER, (span.name, step.name)
        before = step.end_ns
        check_steps(tree, step, expected)


def test_the_spans_of_a_pod_are_one_tree_with_the_runtimes(traced: Runtime, node: Fabric, collector: Collector) -> None:
    with Daemon(traced, node) as daemon:
        traced.cri.traceparent = SAMPLED
        pod = run_and_remove(traced.cri, daemon)
        collector.wait_for(OURS, [*CALLS, "attach", "undo", "userspace"])
    traced.terminate()  # it exports what it still has
    tree = Tree(collector.spans)
    ours = collector.of(OURS)
    calls = [it for it in ours if it.kind == "SERVER" and it.name in CALLS]
    assert tuple(it.name for it in calls) == CALLS
    assert len(ours) == len(calls) + sum(len(steps) for steps in STEPS.values()), "a span outside of the tree"
    steps = dict(STEPS)
    (undo,) = [it for it in ours if it.name == "undo"]
    if traced.release.is_crio and not undo.parent_id:
        # It removes the namespace before it calls: that is the pod's end for us where we notice it before the call.
        steps["StopPodSandbox"] = ()
        assert undo.links == ((TRACE, calls[0].span_id),)
        check_steps(tree, undo, steps)
    for call in calls:
        assert not call.is_failed
        assert call.attributes["k8s.pod.uid"] == pod.uid
        check_steps(tree, call, steps)
        if sends_context(traced):
            check_runtimes(tree, call)
        else:
            assert (call.parent_id, call.trace_id == TRACE) == ("", False)
    if not sends_context(traced):
        assert len({call.trace_id for call in calls}) == len(calls)
        theirs = [it for it in tree.spans if it.service != OURS]
        assert theirs, "the runtime is not traced"
        assert not [it.name for it in theirs if "nri" in it.name.lower()]


def check_runtimes(tree: Tree, call: SeenSpan) -> None:
    """Our call is made by the runtime's client of NRI, within its answer to the kubelet's call of the same name."""
    client, *others = tree.above(call)
    assert client.service != OURS
    assert client.kind == "CLIENT"
    assert client.name in {f"nri.pkg.api.v1alpha1.Plugin/{name}" for name in (call.name, "StateChange")}
    end_ns = call.start_ns if call.name == "RunPodSandbox" else call.end_ns  # its handler returns after the answer
    assert client.start_ns - CLOCKS_NS <= call.start_ns <= end_ns <= client.end_ns + CLOCKS_NS
    kubelets = others[-1]
    assert kubelets.name == f"runtime.v1.RuntimeService/{call.name}"
    assert (kubelets.kind, kubelets.trace_id, kubelets.parent_id) == ("SERVER", TRACE, KUBELET)


def test_a_kubelet_that_does_not_sample_a_trace_gets_failures_only(
    traced: Runtime, node: Fabric, collector: Collector
) -> None:
    with Daemon(traced, node) as daemon:
        traced.cri.traceparent = UNSAMPLED
        run_and_remove(traced.cri, daemon)
        kept = json.loads(daemon.cli("trace", "traced", "-o", "json").stdout)["spans"]
        assert {*CALLS, "attach"} <= {it["name"] for it in kept}, "nothing is recorded, either"
        with pytest.raises(CriError):
            traced.cri.run_pod("refused", annotations={REQUEST: "- {match: {device: nosuch}}"})
    traced.terminate()
    theirs = {it.span_id for it in collector.spans if it.service != OURS and it.trace_id == TRACE}
    assert theirs == set()
    ours = collector.of(OURS)
    if not sends_context(traced):
        assert {*CALLS, "attach"} <= {it.name for it in ours}
        return
    failed, *steps = ours
    assert (failed.name, failed.attributes["k8s.pod.name"]) == ("RunPodSandbox", "refused")
    assert (failed.parent_id, failed.is_failed) == ("", True)
    ((trace_id, client_id),) = failed.links
    assert (trace_id, failed.trace_id == TRACE) == (TRACE, False)
    assert client_id not in {"", KUBELET}, "not the runtime's own span"
    assert {(it.trace_id, it.parent_id) for it in steps} == {(failed.trace_id, failed.span_id)}


def test_every_call_of_the_kernel_for_a_pod_is_made_in_the_span_of_a_step(
    runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    """Also for pods that an earlier daemon left, and for one that started while there was none."""
    with WatchedDaemon(runtime, node) as daemon:
        run_and_remove(cri, daemon)
        shaped = "- {match: {device: mlx5_3}, interface: {name: fab0, mtu: 1400, addresses: [10.9.0.2/24]}}"
        left = cri.run_pod("left", annotations={REQUEST: shaped})
        cri.run_container(left, "main")
        ended = cri.run_pod("ended", annotations={REQUEST: "- {mode: shared, count: 2}"})
        cri.run_container(ended, "main")
        daemon.stop()
        calls = list(daemon.calls)
        cri.stop_pod(ended)
        unseen = cri.run_pod("unseen", annotations=ASKS)
        daemon.start()
        wait_until(lambda: " attached " in daemon.log, lambda: f"the pod to be served; the log:\n{daemon.log}")
        cri.run_container(unseen, "main")
        for pod in (left, ended, unseen):
            cri.delete_pod(pod)
        calls += daemon.calls
    for_pods = [it for it in calls if not it.thread.startswith(NOT_FOR_PODS)]
    outside = {(it.span, it.what, it.stack) for it in for_pods if it.span in NO_STEPS}
    assert outside == set()
    of_attach = {"plan", "capture", "move-netdev", "configure-netdev", "resolve-numbers", "gids"}
    others = {"undo move-netdev", "restore", "recover", "userspace"}
    assert of_attach | others == {it.span for it in for_pods}
    assert {"setns", "send netlink 0", "send netlink 4", "send netlink 16"} <= {it.what for it in for_pods}
