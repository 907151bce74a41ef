"""What `nri-rdma status` shows."""

import json
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nri_rdma.attach.containers import ContainerProof
from nri_rdma.commands.common.screen import TextTable
from nri_rdma.commands.status.cli import _facts, _tables, attention
from nri_rdma.decide.gpus import GpuEvidence
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.control.status_document import status_document
from nri_rdma.engine.container import Listed, ListedContainer
from nri_rdma.engine.shares import Guarding, ShareBook
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import GUARD_POOL
from nri_rdma.model.registration import Registration
from nri_rdma.observe.export import ExportCounts
from tests.fakes.containerd import FakeContainerd
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.inside_daemon import InsideDaemon


def status(daemon: InsideDaemon, columns: int = 80) -> str:
    done = nri_rdma("status", "--state-dir", daemon.settings.state_dir, columns=columns)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_it_shows_link_guard_memlock_devices_and_sandboxes(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "[{match: {device: mlx5_2}}]"})
    lines = status(daemon).splitlines()
    for line in (
        "Runtime      not known yet: disconnected, /var/run/nri/nri.sock",
        "Pool         default: exclusive, shared; 8 devices",
        "Memlock      8388608 bytes: the setting memlock says so",
        "Namespaces   1 held open",
        "mlx5_2  0000:62:00.0  0     ACTIVE  rail2 as rdma0  default/one (exclusive)",
        "mlx5_3  0000:81:00.0  0     ACTIVE  rail3           -",
        "default/one  sandbox-one  attached  mlx5_2",
    ):
        assert line in lines
    assert "Guard        WARNING, not known: it has asked about no container yet; `nri-rdma" in lines
    assert "isolation soft" in [line.strip() for line in lines]
    assert max(map(len, lines)) <= 80


def test_devices_are_shown_beside_the_gpus_of_their_containers(daemon: InsideDaemon) -> None:
    attached = daemon.start_pod("one", {"rdma.noderesource.dev": "[{match: {device: mlx5_2}}]"})
    for container, node in (("near", (195, 2)), ("far", (195, 7))):
        daemon.engine.start_container(attached.sandbox_id, container, "", partial(GpuEvidence, nodes=(node,)))
    told = [" ".join(line.split()) for line in status(daemon, 120).splitlines()]
    assert "default/one near aligned: PHB its device nodes" in told
    assert "default/one far mlx5_2 is SYS from GPU 0000:f8:00.0 its device nodes" in told


def test_after_a_restart_of_the_daemon_a_pods_own_devices_are_no_ones_elses(daemon: InsideDaemon) -> None:
    """The runtime lists a container with the nodes that it got from us, and this daemon was not asked about it."""
    asks = {"rdma.noderesource.dev": "[{match: {device: mlx5_2}}]"}
    pod = daemon.start_pod("one", asks)
    edits = daemon.edits(pod, asks, "trainer")
    nodes = {it.path: (it.major, it.minor) for it in edits.char_devices}
    trainer = ListedContainer(
        name="trainer",
        devices={**nodes, "/dev/nvidia2": (195, 2)},
        env=frozenset(name for name, _value in edits.env),
        gpus=GpuEvidence(nodes=(*nodes.values(), (195, 2))),
    )
    stranger = ListedContainer(name="stranger", devices={"/dev/infiniband/uverbs3": (231, 195)})
    listed = (
        Listed(pod=pod, annotations=asks, containers=(trainer,)),
        Listed(pod=replace(pod, sandbox_id="s", uid="u", name="two"), annotations={}, containers=(stranger,)),
    )
    daemon.engine.synchronize(listed).result(SOON)
    document = ask_status(daemon.settings.control_path)
    assert document["unserved"] == []
    assert [(it["pod"], it["devices"]) for it in document["from_others"]] == [("default/two", ["mlx5_3"])]
    assert [(it["pod"], it["container"], it["words"]) for it in document["alignment"]] == [
        ("default/one", "trainer", "aligned: PHB")
    ]


def test_the_guard_resource_is_told_with_whether_the_kubelet_knows_it(daemon: InsideDaemon) -> None:
    assert ask_status(daemon.settings.control_path)["guard_resource"] is None
    book = ShareBook(guard_resource="a.example/guard")
    daemon.engine.kubelet.shares = book
    facts = replace(daemon.facts, settings=replace(daemon.settings, guard_resource="a.example/guard"))

    def told() -> tuple[list[str], bool]:
        document = status_document(facts, started=0.0, guard={"active": "unknown", "warning": ""})
        return [words for _, words in _facts(document)], any("guard resource" in it for it in attention(document))

    lines, needs_attention = told()
    assert "a.example/guard: the guard of pods to which an admission policy gives it" in lines
    assert not needs_attention  # it was tried a moment ago
    book.registrations[GUARD_POOL] = Registration(error="no kubelet", since=time.time() - 100)
    lines, needs_attention = told()
    assert "WARNING, the kubelet does not know it, for 1 min 40 s: no kubelet" in lines
    assert needs_attention
    book.registered(GUARD_POOL)
    lines, needs_attention = told()
    assert "WARNING, pods with it wait: the hook is not at guard_hook on the host" in lines
    assert needs_attention
    book.guarding = Guarding.ON
    lines, needs_attention = told()
    assert any(it.startswith("hook of containers with the resource a.example/guard: ") for it in lines)
    assert not needs_attention


def test_a_runtime_is_told_with_what_it_does_not_apply(daemon: InsideDaemon) -> None:
    document = ask_status(daemon.settings.control_path)
    told = {"name": "cri-o", "version": "1.28.1", "nri": "0.3.1", "lacks": ["this", "that"], "launched": True}
    document["runtime"] |= told
    facts = [value for _name, value in _facts(document)]
    assert facts[1:5] == [
        "cri-o 1.28.1: disconnected, which started this daemon",
        "NRI 0.3.1",
        "does not apply: this",
        "does not apply: that",
    ]
    document["runtime"]["nri"] = ""
    assert "NRI of a release that is not known" in [value for _name, value in _facts(document)]


def test_spans_that_no_collector_took_are_told(daemon: InsideDaemon) -> None:
    assert not [name for name, _value in _facts(ask_status(daemon.settings.control_path)) if name == "Traces"]
    daemon.export_counts = ExportCounts(waiting=4, exported=90, dropped=0, failed=0, error="")
    facts = list(_facts(ask_status(daemon.settings.control_path)))
    at = facts.index(("Traces", "90 spans exported, 4 wait"))
    assert facts[at + 1][0] == "Namespaces"
    daemon.export_counts = replace(daemon.export_counts, dropped=7, failed=512, error="no route")
    facts = list(_facts(ask_status(daemon.settings.control_path)))
    how = "512 not taken, 7 dropped because too many waited"
    assert facts[at + 1] == ("", f"WARNING, 519 lost ({how}): no route")


def test_limits_of_shares_are_shown_once_for_devices_with_the_same(daemon: InsideDaemon) -> None:
    document = ask_status(daemon.settings.control_path)
    fair, none = "hca_handle=204 hca_object=6553 (32767 ah among 4 shares and the host)", "no limits (it hangs)"
    limits = {name: {"words": words} for name, words in (("mlx5_0", fair), ("mlx5_1", none), ("mlx5_2", fair))}
    shares = {"resource": "rdma/hca", "shares": 12, "given": 0, "gives": "one", "guarded": True}
    document["pools"][0] |= {**shares, "limits": limits}
    told = [value for _name, value in _facts(document)]
    assert f"limits of a share on mlx5_0, mlx5_2: {fair}" in told
    assert f"limits of a share on mlx5_1: {none}" in told


def test_the_last_error_of_the_connection_has_its_time(daemon: InsideDaemon) -> None:
    document = ask_status(daemon.settings.control_path)
    document["runtime"] |= {"error": "/nri.sock: Connection refused", "error_since": time.time() - 125.5}
    facts = [value for _name, value in _facts(document)]
    assert facts[2] == "last error, for 2 min 5 s: /nri.sock: Connection refused"


def test_pods_that_run_without_their_devices_are_a_warning(daemon: InsideDaemon) -> None:
    pod = Pod(sandbox_id="s", uid="u", name="early", namespace="prod", netns_path="/x")
    container = ListedContainer(name="main", devices={})
    early = Listed(pod=pod, annotations={"rdma.noderesource.dev": "1"}, containers=(container,))
    daemon.engine.synchronizer.reconcile((early,), ())
    told = status(daemon)
    assert "WARNING: pods that run without what they ask for" in told
    assert "prod/early  its containers were made while nri-rdma was away" in told


def test_what_containers_use_is_shown_beside_their_limits(daemon: InsideDaemon) -> None:
    daemon.make_cgroups("/pod/a")
    pod = daemon.start_pod("one", {"rdma.noderesource.dev": "[{match: {device: mlx5_2}}]"})
    daemon.engine.container_created(pod.sandbox_id, "a", "/pod/a")
    daemon.cgroup_file("/pod/a", "rdma.max").write_text("mlx5_2 hca_handle=max hca_object=40 \n")
    daemon.cgroup_file("/pod/a", "rdma.current").write_text("mlx5_2 hca_handle=1 hca_object=38 \n")
    lines = status(daemon).splitlines()
    assert "POD          CONTAINER  DEVICE  HCA HANDLES  HCA OBJECTS" in lines
    assert "default/one  a          mlx5_2  1/max        38/40" in lines


def test_an_undo_that_fails_is_told_with_its_sandbox(daemon: InsideDaemon) -> None:
    pod = daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    sandbox = daemon.sandboxes.get(pod.sandbox_id)
    assert sandbox is not None
    sandbox.change(undo_error="the kernel does not want to")
    assert "UNDO FAILED: the kernel does not want to" in status(daemon)


def test_use_by_the_host_is_told(daemon: InsideDaemon) -> None:
    document = ask_status(daemon.settings.control_path)
    document["devices"][1]["in_use"] = ["rail1 carries a default route"]
    document["devices"][1]["used_by_some"] = ["process 7 (opensm) has it open"]
    (devices,) = _tables(document)
    assert devices.rows[1][-1] == "the host: rail1 carries a default route; process 7 (opensm) has it open"


def test_that_a_device_can_only_be_shared_is_told(daemon: InsideDaemon) -> None:
    document = ask_status(daemon.settings.control_path)
    document["devices"][1]["netdevs"][0]["unreturnable"] = ["is used by the multipath route 10.9.0.0/16"]
    (devices,) = _tables(document)
    assert devices.rows[1][-1] == "nobody, can only be shared: rail1 is used by the multipath route 10.9.0.0/16"


@pytest.mark.parametrize("error", ["", "127.0.0.1:9178: Address already in use"])
def test_where_metrics_are_served_or_why_not_is_told(daemon: InsideDaemon, error: str) -> None:
    document = ask_status(daemon.settings.control_path)
    assert document["metrics"] is None
    assert "Metrics" not in dict(_facts(document))
    document["metrics"] = {"address": "127.0.0.1:9178", "error": error}
    document["runtime"]["link"] = "synchronized"
    told = f"WARNING, not served: {error}" if error else "http://127.0.0.1:9178/metrics, and /healthz"
    assert dict(_facts(document))["Metrics"] == told
    assert list(attention(document)) == ([f"metrics are not served: {error}"] if error else [])
    del document["metrics"]  # of a daemon before this field
    assert list(attention(document)) == []


def test_netdevs_that_pods_have_lost_are_a_warning(daemon: InsideDaemon) -> None:
    document = ask_status(daemon.settings.control_path)
    assert (document["lost_count"], document["lost_netdevs"]) == (0, [])
    row = {
        "device": "mlx5_0",
        "netdev": "rail0",
        "kind": "veth",
        "pod": "default/trainer",
        "sandbox": "s",
        "why": "it is gone",
    }
    (table,) = (
        it
        for it in _tables({**document, "lost_count": 3, "lost_netdevs": [{**row, "at": time.time()}]})
        if "lost" in it.title
    )
    assert table.title.startswith("WARNING: netdevs that pods have lost (3 since the start)")
    ((netdev, kind, device, pod, _, why),) = table.rows
    assert (netdev, kind, device, pod, why) == ("rail0", "veth", "mlx5_0", "default/trainer", "it is gone")


def test_a_machine_without_rdma_says_so(daemon: InsideDaemon) -> None:
    document = ask_status(daemon.settings.control_path)
    assert list(_tables({**document, "devices": []})) == [
        TextTable(title="This machine has no RDMA device.", headings=(), rows=())
    ]


def test_json_is_the_daemons_document_unchanged(daemon: InsideDaemon) -> None:
    done = nri_rdma("status", "--state-dir", daemon.settings.state_dir, "-o", "json")
    assert json.loads(done.stdout) == ask_status(daemon.settings.control_path)


def test_what_was_refused_lately_is_shown_by_pod_and_code_also_after_the_pod_is_gone(daemon: InsideDaemon) -> None:
    for _ in range(2):
        with pytest.raises(NriRdmaError):
            daemon.start_pod("greedy", {"rdma.noderesource.dev/pod": "99"})
    with pytest.raises(NriRdmaError):
        daemon.start_pod("wrong", {"rdma.noderesource.dev": "[{match: {device: mlx5_99}}]"})
    document = ask_status(daemon.settings.control_path)
    wrong, greedy = document["refused"]
    assert (greedy["pod"], greedy["call"], greedy["code"], greedy["count"]) == (
        "default/greedy",
        "RunPodSandbox",
        "DEVICES-EXHAUSTED",
        2,
    )
    assert (wrong["code"], wrong["sandbox"], document["refused_count"]) == ("DEVICE-UNKNOWN", "sandbox-wrong", 3)
    shown = " ".join(status(daemon, 200).split())
    assert "Refused in the last 10 minutes; `nri-rdma trace POD` shows each" in shown
    assert re.search(r"default/greedy RunPodSandbox DEVICES-EXHAUSTED 2 \d s ago asked 99, free 8 of 8", shown)


def check(daemon: InsideDaemon) -> tuple[int, list[str]]:
    done = nri_rdma("status", "--check", "--state-dir", daemon.settings.state_dir)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_check_says_what_needs_attention_only(daemon: InsideDaemon) -> None:
    """Nobody has connected this daemon to a runtime; a pod that is refused is the pod's matter."""
    with pytest.raises(NriRdmaError):
        daemon.start_pod("greedy", {"rdma.noderesource.dev/pod": "99"})
    code, lines = check(daemon)
    assert code == 1
    assert lines == ["the runtime is disconnected, so that pods start without nri-rdma (/var/run/nri/nri.sock)"]
    assert nri_rdma("status", "--check", "-o", "json", "--state-dir", daemon.settings.state_dir).returncode == 1


def test_for_a_check_a_daemon_that_is_dead_is_a_line(tmp_path: Path) -> None:
    done = nri_rdma("status", "--check", "--state-dir", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("nri-rdma: DAEMON-ABSENT: ")
    for_programs = nri_rdma("status", "--check", "-o", "json", "--state-dir", tmp_path)
    assert (for_programs.returncode, for_programs.stdout, for_programs.stderr) == (1, "", done.stdout)
    assert nri_rdma("status", "--state-dir", tmp_path).returncode == 3


def test_where_only_podman_asks_no_runtime_and_no_guard_are_missed(daemon: InsideDaemon) -> None:
    daemon.runtime = replace(daemon.runtime, link="none", engines=("podman", "Docker"))
    shown = status(daemon, 120)
    words = "not needed: there is no runtime with NRI here, and our hook serves podman and Docker"
    assert f"Runtime      {words}" in shown
    assert "WARNING" not in shown
    assert check(daemon) == (0, [])


def test_a_guard_is_required_of_each_handler_only_if_that_is_asked_for(daemon: InsideDaemon) -> None:
    with FakeContainerd() as containerd:
        containerd.configuration = '{"containerd": {"runtimes": {"runc": {"baseRuntimeSpec": ""}}}}'
        flags = ("--state-dir", daemon.settings.state_dir, "--containerd-socket", containerd.socket)
        plain = nri_rdma("status", "--check", *flags).stdout.splitlines()
        done = nri_rdma("status", "--check", "--require-guard", *flags)
        sentence = "containerd's runc has no guard, so pods may start without their devices: no base_runtime_spec"
        assert (done.returncode, done.stdout.splitlines()) == (1, [*plain, sentence])
        excepted = nri_rdma("status", "--check", "--require-guard", "--except-handler", "runc", *flags)
        assert excepted.stdout.splitlines() == plain
    assert nri_rdma("status", "--require-guard").returncode == 2


def test_where_nothing_needs_attention_a_check_is_silent(daemon: InsideDaemon) -> None:
    document = ask_status(daemon.settings.control_path)
    document["runtime"]["link"] = "synchronized"
    assert list(attention(document)) == []
    document["reload_error"] = "line 3"
    document["unserved"] = [{"pod": "a/b", "why": "it came while nobody listened"}]
    sandbox = {"pod": "a/c", "undo_error": "EBUSY", "unstarted": [{"container": "main", "answers": 3, "seconds": 61}]}
    document["sandboxes"] = [sandbox]
    assert list(attention(document)) == [
        "the settings are as before: line 3",
        "devices of a/c could not be returned to the host: EBUSY",
        "container main of a/c did not start for 1 min 1 s, after 3 answers",
        "a/b runs without what it asks for: it came while nobody listened",
    ]


def test_containers_that_were_proven_are_shown_with_what_was(daemon: InsideDaemon) -> None:
    assert "RDMA was proven" not in nri_rdma("status", "--state-dir", daemon.settings.state_dir).stdout
    daemon.start_pod("one", {"rdma.noderesource.dev/pod": "1"})
    (attachment,) = daemon.sandboxes.all()
    for name, code in (("main", ""), ("side", "PROOF-PORT")):
        proof = ContainerProof(container_id="c", ports=("mlx5_2:1 roce by GID 1",), took_ms=12.5, at=1.0, code=code)
        attachment.containers.remember_proof(name, proof)
    lines = nri_rdma("status", "--state-dir", daemon.settings.state_dir).stdout.splitlines()
    assert "Containers in which RDMA was proven to work before they started" in lines
    assert "default/one  main       mlx5_2:1 roce by GID 1  12 ms" in map(str.strip, lines)
    assert not [line for line in lines if "side" in line]
