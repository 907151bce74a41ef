"""A container whose request says `prove` starts when RDMA was proven in it, and not otherwise, on a real containerd.

This machine has no RDMA: the process that makes proofs is real, and what it finds is planted
(tests.rig.planted_proofs).
"""

import errno
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.guard import GUARDED
from tests.rig.planted_proofs import PlantedProofs
from tests.rig.runtime import Runtime
from tests.runtime.asking import WAYS, Asked, Kubernetes, kubernetes
from tests.runtime.test_guard import expected, guarded, nodes_of, refusal, refused, run, stopped

__all__ = ["guarded"]

pytestmark = [pytest.mark.root, pytest.mark.runtime]

PROVE = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}, prove: true, userspace: off}]"}
"""The image of the rig has no libraries: test_userspace.py is about those."""
MEMLOCK = 8 << 20
RESOURCE = "rdma.noderesource.dev/guard"
WITHIN_S = 20.0
"""A refusal is seen so soon."""


@pytest.fixture
def proofs(tmp_path: Path) -> PlantedProofs:
    return PlantedProofs(tmp_path / "verbs")


def proving(runtime: Runtime, node: Fabric, proofs: PlantedProofs, *flags: str) -> Daemon:
    """A daemon with this program as its verbs_python."""
    return Daemon(runtime, node, extra=(*EXCLUSIVE_FIRST, "--verbs-python", str(proofs.program), *flags))


def test_a_container_is_proven_within_its_limits_and_starts_and_again_when_it_is_made_again(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, proofs: PlantedProofs
) -> None:
    with proving(runtime, node, proofs) as daemon:
        pod = cri.run_pod("proven", annotations=PROVE, runtime_handler=GUARDED)
        for attempt in range(2):
            container = run(cri, pod, "main", attempt=attempt)
            assert nodes_of(cri, container) == expected(node)
            seen = proofs.seen()
            assert len(seen) == attempt + 1, "one proof for each start"
            assert (seen[-1]["device"], seen[-1]["port"]) == ("mlx5_3", 1)
            assert container.id in seen[-1]["cgroups"], "it was in the container's cgroup"
            assert seen[-1]["memlock"] == MEMLOCK
            assert "rdma0" in seen[-1]["links"], "it was in the pod's network namespace"
            cri.stop_container(container)
            cri.remove_container(container)
        (sandbox,) = daemon.status()["sandboxes"]
        (proof,) = sandbox["proofs"]
        assert (proof["container"], proof["code"], proof["ports"]) == ("main", "", ["mlx5_3:1 roce by GID 1"])
        shown = daemon.cli("trace", "default/proven").stdout
        assert "prove" in shown
        cri.delete_pod(pod)


@pytest.mark.every_runtime
def test_no_runtime_starts_a_container_that_was_not_proven(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri, proofs: PlantedProofs
) -> None:
    asked = ("--containerd-socket", str(runtime.cri_address))  # also of CRI-O, whose own socket is the machine's
    with proving(runtime, node, proofs, *asked) as daemon:
        pod = cri.run_pod("proven", annotations=PROVE, runtime_handler=guarded)
        proofs.plant(**problem("open", errno.ENODEV))
        text = refused(cri, pod, "main")
        print(text)
        assert "nri-rdma: PROOF-DEVICE: " in text
        proofs.plant()
        assert nodes_of(cri, run(cri, pod, "main", attempt=1)) == expected(node)
        assert [it["code"] for sandbox in daemon.status()["sandboxes"] for it in sandbox["proofs"]] == [""]
        cri.delete_pod(pod)


def problem(step: str, number: int | None = None) -> dict[str, object]:
    return {"problem": {"step": step, "errno": number, "text": "as planted"}}


@pytest.mark.parametrize(
    ("planted", "code"),
    [
        (problem("open", errno.ENODEV), "PROOF-DEVICE"),
        (problem("port"), "PROOF-PORT"),
        (problem("gid"), "PROOF-GID"),
        (problem("register", errno.ENOMEM), "PROOF-MEMLOCK"),
        (problem("qp", errno.EAGAIN), "PROOF-LIMITS"),
        (problem("transfer"), "PROOF-TRANSFER"),
        (problem("pyverbs"), "PROOF-UNAVAILABLE"),
        ({"ends": True}, "PROOF-ENDED"),
        ({"takes_s": 60}, "PROOF-LATE"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_container_in_which_rdma_does_not_work_is_refused_with_the_cause_and_starts_when_that_is_gone(
    host_equal: None,
    runtime: Runtime,
    node: Fabric,
    cri: Cri,
    proofs: PlantedProofs,
    planted: dict[str, object],
    code: str,
) -> None:
    with proving(runtime, node, proofs) as daemon:
        pod = cri.run_pod("planted", annotations=PROVE, runtime_handler=GUARDED)
        proofs.plant(**planted)
        container = cri.create_container(pod, "main")
        began = time.monotonic()
        text = refusal(cri, container)
        took_s = time.monotonic() - began
        print(f"{code} after {took_s:.2f} s: {text}")
        assert f"nri-rdma: {code}: " in text
        assert ", default/planted, container main" in text
        assert took_s < WITHIN_S
        told = [(it["code"], it["container"]) for it in daemon.status()["refused"]]
        assert [it for it in told if it[0] != "NOT-READY"] == [(code, "main")]  # a slow attach is asked for again
        proofs.plant()
        assert nodes_of(cri, run(cri, pod, "main", attempt=1)) == expected(node)
        cri.delete_pod(pod)


def test_the_process_that_makes_proofs_is_killed_and_the_next_container_has_another(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, proofs: PlantedProofs
) -> None:
    with proving(runtime, node, proofs) as daemon:
        pod = cri.run_pod("killed", annotations=PROVE, runtime_handler=GUARDED)
        run(cri, pod, "first")
        (line,) = (it for it in daemon.log.splitlines() if "started the process that makes proofs" in it)
        os.kill(int(line.partition("pid=")[2].split()[0]), signal.SIGKILL)
        assert nodes_of(cri, run(cri, pod, "second")) == expected(node)
        cri.delete_pod(pod)


def test_no_container_starts_unproven_under_a_daemon_that_is_dead_or_hangs(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, proofs: PlantedProofs
) -> None:
    with proving(runtime, node, proofs) as daemon:
        pod = cri.run_pod("dead", annotations=PROVE, runtime_handler=GUARDED)
        with stopped(daemon):
            assert "nri-rdma: DAEMON-LATE: the daemon did not answer in 2 s" in refused(cri, pod, "main")
        daemon.wait_synchronized(times=2)
        container = cri.create_container(pod, "main", attempt=1)
        proofs.plant(takes_s=60)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(refusal, cri, container)
            wait_until(lambda: bool(proofs.seen()), "the proof to begin")
            daemon.kill()
            text = starting.result()
        assert "nri-rdma: DAEMON-ABSENT: " in text
        proofs.plant()
        daemon.start()
        assert nodes_of(cri, run(cri, pod, "main", attempt=2)) == expected(node)
        cri.delete_pod(pod)


def test_other_containers_do_not_wait_for_a_proof(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, proofs: PlantedProofs
) -> None:
    plain = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_4}}]"}
    with proving(runtime, node, proofs):
        slow = cri.run_pod("slow", annotations=PROVE, runtime_handler=GUARDED)
        container = cri.create_container(slow, "main")
        proofs.plant(takes_s=2)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(cri.start, container)
            wait_until(lambda: bool(proofs.seen()), "the proof to begin")
            began = time.monotonic()
            other = cri.run_pod("other", annotations=plain, runtime_handler=GUARDED)
            run(cri, other, "main")
            took_s = time.monotonic() - began
            print(f"another pod meanwhile: {took_s:.2f} s")
            assert not starting.done()
            starting.result()
        cri.delete_pod(slow)
        cri.delete_pod(other)


def test_a_pod_whose_handler_has_no_guard_is_refused_at_its_start_and_one_that_asks_for_no_proof_is_not(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, proofs: PlantedProofs
) -> None:
    with proving(runtime, node, proofs):
        with pytest.raises(CriError, match="nri-rdma: PROOF-NO-HOOK: prove needs the guard's hook") as caught:
            cri.run_pod("bare", annotations=PROVE)
        assert "it does not run for the default runtime handler" in caught.value.text
        assert "nri-rdma install containerd" in caught.value.text
        pod = cri.run_pod("plain", annotations={"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}}]"})
        assert nodes_of(cri, cri.run_container(pod, "main")) == expected(node)
        cri.delete_pod(pod)
    assert proofs.seen() == []


def runs(cri: Cri, container: Container) -> bool:
    """Whether a container runs; CRI-O forgets one whose start fails."""
    with suppress(CriError):
        return cri.container_status(container).state == "running"
    return False


def trusting(runtime: Runtime, node: Fabric, proofs: PlantedProofs) -> Daemon:
    """A daemon that takes pods without asking for their handler's guard: their containers may have the guard
    resource."""
    resource = ("--guard-resource", RESOURCE, "--device-plugin-dir", str(runtime.run))
    return proving(runtime, node, proofs, *resource)


@pytest.mark.every_runtime
def test_a_container_without_the_hook_is_not_created_where_its_pod_was_taken(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, proofs: PlantedProofs
) -> None:
    """So it does not run, whoever dies before its start."""
    with trusting(runtime, node, proofs) as daemon:
        pod = cri.run_pod("trusted", annotations=PROVE)
        with pytest.raises(CriError, match="PROOF-NO-HOOK: prove needs the guard's hook, and this container has none"):
            cri.create_container(pod, "main")
        (row,) = daemon.status()["refused"]
        assert (row["call"], row["code"], proofs.seen()) == ("CreateContainer", "PROOF-NO-HOOK", [])
        cri.delete_pod(pod)


@pytest.mark.every_runtime
def test_a_container_whose_hook_did_not_ask_after_all_does_not_run(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, proofs: PlantedProofs, tmp_path: Path
) -> None:
    """CRI-O starts containers whatever it is told."""
    hook = tmp_path / "nri-rdma-hook"
    hook.symlink_to("/bin/true")
    args = ["nri-rdma-hook", "verify", "--resource", RESOURCE]
    edits = {"hooks": [{"hookName": "createRuntime", "path": str(hook), "args": args}]}
    spec = {"cdiVersion": "0.6.0", "kind": "silent.example/guard", "devices": [{"name": "a", "containerEdits": edits}]}
    (runtime.cdi_dir / "silent.json").write_text(json.dumps(spec))
    with trusting(runtime, node, proofs) as daemon:
        pod = cri.run_pod("trusted", annotations=PROVE)
        container = cri.create_container(pod, "main", cdi_devices=("silent.example/guard=a",))
        with suppress(CriError):
            cri.start(container)
        wait_until(lambda: not runs(cri, container), "the container not to run")
        (row,) = daemon.status()["refused"]
        assert (row["call"], row["code"], proofs.seen()) == ("StartContainer", "PROOF-NO-HOOK", [])
        assert "nothing was proven: the guard's hook did not run for this container" in row["error"]
        cri.delete_pod(pod)


@pytest.fixture
def on(runtime: Runtime, node: Fabric, tmp_path: Path) -> Iterator[Kubernetes]:
    """A kubelet."""
    with kubernetes(runtime, node, tmp_path / "kubelet") as made:
        yield made


WITH_A_HOOK = [("share", ""), ("unguarded-claim", ""), ("resource", ""), ("unnamed", GUARDED), ("annotation", GUARDED)]


@pytest.mark.parametrize(("ask", "handler"), WITH_A_HOOK)
def test_each_way_to_ask_is_proven_by_its_hook(
    host_equal: None, on: Kubernetes, cri: Cri, proofs: PlantedProofs, ask: str, handler: str
) -> None:
    with on.daemon(proves=proofs.program) as daemon:
        asked = WAYS[ask].prepare(on, f"asks-{ask}", daemon)
        name, annotations = f"asks-{ask}", asked.annotations
        pod = cri.run_pod(name, annotations=annotations, uid=asked.uid, runtime_handler=handler)
        proofs.plant(**problem("port"))
        assert "nri-rdma: PROOF-PORT: " in text_of(cri, pod, asked, 0)
        proofs.plant()
        assert text_of(cri, pod, asked, 1) == ""
        seen = proofs.seen()
        assert asked.wanted is not None
        assert [it["device"] for it in seen] == [f"mlx5_{asked.wanted.number}"] * 2
        if "unguarded-claim" in ask:
            wait_until(lambda: proven(on) == ("True", "Proven"), lambda: f"the condition: {on.api.claims}")
        cri.delete_pod(pod)


def test_a_claim_that_no_container_names_on_a_node_without_the_guard_is_not_created(
    host_equal: None, on: Kubernetes, cri: Cri, proofs: PlantedProofs
) -> None:
    with on.daemon(proves=proofs.program) as daemon:
        asked = WAYS["unguarded-unnamed"].prepare(on, "asks", daemon)
        pod = cri.run_pod("asks", annotations=asked.annotations, uid=asked.uid)
        assert "nri-rdma: PROOF-NO-HOOK: prove needs the guard's hook, and this " in text_of(cri, pod, asked, 0)
        assert proofs.seen() == []
        cri.delete_pod(pod)


def text_of(cri: Cri, pod: Sandbox, asked: Asked, attempt: int) -> str:
    """The text with which the container is refused; "" where it starts."""
    annotations, cdi_devices = asked.container_annotations, asked.cdi_devices
    try:
        cri.start(cri.create_container(pod, "main", annotations=annotations, cdi_devices=cdi_devices, attempt=attempt))
    except CriError as error:
        return error.text
    return ""


def proven(on: Kubernetes) -> tuple[str, str]:
    """Status and reason of the condition of the claim's device."""
    ((claim,),) = [on.api.claims.values()]
    (device,) = claim["status"].get("devices") or [{}]
    (found,) = [it for it in device.get("conditions", ()) if it["type"] == "Proven"] or [{"status": "", "reason": ""}]
    return found["status"], found["reason"]
