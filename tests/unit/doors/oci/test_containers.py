"""A container that asks by a hook gets its devices as a pod does, and whatever ends it brings them home."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from nri_rdma.attach.record import Phase
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.oci import containers
from nri_rdma.doors.oci.containers import Containers
from nri_rdma.doors.oci.questions import Given, HookQuestion, Prepared, Verb, Wish
from nri_rdma.engine.image_check import ImageCheck
from nri_rdma.errors import ErrorCode, LimitsError, NotReadyError, NriRdmaError
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.proof import ProofStep
from nri_rdma.model.request import UNLIMITED
from nri_rdma.model.userspace import Made
from nri_rdma.tasks.workers import Workers
from tests.unit.engine.test_image_check import Shelf
from tests.unit.rigs.inside_daemon import InsideDaemon

PID, START = 4711, 100
NODES = {"/dev/infiniband/uverbs2": (231, 194), "/dev/infiniband/rdma_cm": (10, 122)}
DEFAULT = Given(memlock=8 << 20, must=True)
ONE = Wish(device="mlx5_2", mode="exclusive", netdev="rail2")


@dataclass
class Handing:
    """Who opens namespaces by descriptors: what is handed over now, and what ever was."""

    now: dict[str, int] = field(default_factory=dict)
    ever: list[tuple[str, int]] = field(default_factory=list)

    def hand(self, path: str, fd: int) -> None:
        self.now[path] = fd
        self.ever.append((path, fd))

    def withdraw(self, path: str) -> None:
        self.now.pop(path, None)


class Door:
    """The door with all that is behind it."""

    def __init__(self, inside: InsideDaemon) -> None:
        self.inside = inside
        self.handing = Handing()
        self.running = {PID: START}
        self.containers = Containers(
            inside.engine, self.handing, {8: "", 9: "eth0"}.__getitem__, self._start_of, inside.spans, DEFAULT, 3.0
        )

    def add_container(self, pid: int = PID, start: int = START) -> None:
        """A process in a network namespace of its own."""
        self.running[pid] = start
        namespace = self.inside.world.add_namespace(f"/proc/{pid}/ns/net")
        self.inside.world.add_link(namespace, "lo")

    def links_of(self, pid: int) -> set[str]:
        """The names of the links in a process's namespace."""
        namespace = self.inside.world.namespace(f"/proc/{pid}/ns/net")
        assert namespace is not None
        return {link.name for link in namespace.links.values()}

    def state(self, container: str = "box") -> Phase | None:
        """How far the container's attachment is; None: it has none."""
        self.inside.await_releases()
        found = self.inside.sandboxes.get(container)
        return found.state if found is not None else None

    def _start_of(self, pid: int) -> int:
        if pid not in self.running:
            raise ProcessLookupError(pid)
        return self.running[pid]


@pytest.fixture
def door(daemon: InsideDaemon) -> Door:
    made = Door(daemon)
    made.add_container()
    return made


def asks(*wishes: Wish, container: str = "box", pid: int = PID) -> HookQuestion:
    return HookQuestion(verb=Verb.ATTACH, container_id=container, pid=pid, wishes=wishes or (ONE,), nodes=NODES)


def refusal(door: Door, question: HookQuestion) -> NriRdmaError:
    with pytest.raises(NriRdmaError) as caught:
        door.containers.attach(question, 9)
    return caught.value


def test_a_container_gets_its_netdev_and_the_nodes_limit(door: Door) -> None:
    assert door.containers.attach(asks(), 9) == DEFAULT
    assert "rail2" in door.links_of(PID)
    assert door.state() is Phase.ATTACHED
    assert door.handing.ever == [(f"/proc/{PID}/ns/net", 9)]
    assert door.handing.now == {}, "the path leads where it led"


def test_its_end_brings_home_what_it_has_and_is_no_error_twice(door: Door) -> None:
    before = door.inside.world.snapshot()
    door.containers.attach(asks(), 9)
    for _ in range(2):
        assert door.containers.give_back(HookQuestion(verb=Verb.RETURN, container_id="box")) == Given()
    assert (door.inside.world.snapshot(), door.state()) == (before, None)


def test_asking_again_changes_nothing(door: Door) -> None:
    first = door.containers.attach(asks(), 9)
    after = door.inside.world.snapshot()
    assert door.containers.attach(asks(), 9) == first
    assert door.inside.world.snapshot() == after


def test_a_container_that_starts_again_gets_its_device_again_although_nobody_told_its_end(door: Door) -> None:
    door.containers.attach(asks(), 9)
    del door.running[PID]
    door.add_container(pid=4712, start=200)
    door.containers.attach(asks(pid=4712), 9)
    assert ("rail2" in door.links_of(4712), "rail2" in door.links_of(PID)) == (True, False)


def test_what_another_container_has_is_refused_and_stays_with_it(door: Door) -> None:
    door.containers.attach(asks(), 9)
    door.add_container(pid=4712, start=200)
    refused = refusal(door, asks(container="other", pid=4712))
    assert refused.code is ErrorCode.DEVICE_IN_USE
    assert "oci/box" in refused.what
    assert (door.state("other"), door.state()) == (None, Phase.ATTACHED)


def test_after_a_refusal_nothing_of_the_container_is_left(door: Door) -> None:
    before = door.inside.world.snapshot()
    refused = refusal(door, replace(asks(), nodes={**NODES, "/dev/infiniband/uverbs2": (231, 199)}))
    assert refused.code is ErrorCode.PATH_CONFLICT
    assert "231:199 at /dev/infiniband/uverbs2, which is 231:194" in refused.what
    assert (door.inside.world.snapshot(), door.state(), door.handing.now) == (before, None, {})


def test_after_a_bug_nothing_of_the_container_is_left_either(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    before = door.inside.world.snapshot()
    monkeypatch.setattr(door.inside.engine, "create_container", fail)  # the devices are attached by then
    with pytest.raises(RuntimeError, match="a bug"):
        door.containers.attach(asks(), 9)
    assert (door.inside.world.snapshot(), door.state(), door.handing.now) == (before, None, {})


def test_a_refusal_comes_before_the_hook_gives_up(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook waits 10 s in all for its answer."""
    now, ends = [1000.0], list[float]()

    def hang(_start: object, deadline: float) -> None:
        now[0] = deadline
        raise NotReadyError(ErrorCode.NOT_READY, "the driver hangs", hint="wait")

    monkeypatch.setattr(containers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(door.inside.engine, "run_pod", hang)
    monkeypatch.setattr(door.inside.engine, "stop_pod", lambda _sandbox, deadline: ends.append(deadline))
    assert refusal(door, asks()).code is ErrorCode.NOT_READY
    assert 1000.0 + 8.0 < ends[0] < 1000.0 + 10.0


def test_status_shows_each_refusal_once(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    refusal(door, replace(asks(), nodes={}))
    refusal(door, asks(Wish(device="mlx5_77", mode="exclusive")))
    rows = [(row.call, row.pod, row.code, row.count) for row in door.inside.engine.refused.rows()]
    assert sorted(rows) == [
        ("createRuntime", "oci/box", "DEVICE-UNKNOWN", 1),
        ("createRuntime", "oci/box", "PATH-CONFLICT", 1),
    ]
    assert [record.message for record in caplog.records].count("refused") == 2


def test_a_container_without_the_node_of_its_device_is_refused(door: Door) -> None:
    refused = refusal(door, replace(asks(), nodes={}))
    assert "no node at /dev/infiniband/" in refused.what


def test_of_a_process_that_is_not_there_nothing_is_attached(door: Door) -> None:
    before = door.inside.world.snapshot()
    del door.running[PID]
    refused = refusal(door, asks())
    assert refused.code is ErrorCode.NO_NETWORK_NAMESPACE
    assert "PID namespace" in refused.hint
    assert door.inside.world.snapshot() == before


def test_a_container_on_the_hosts_network_is_refused_in_its_own_words(door: Door) -> None:
    door.running[4712] = 200
    door.inside.world.host.paths.add("/proc/4712/ns/net")
    refused = refusal(door, asks(pid=4712))
    assert refused.code is ErrorCode.HOST_NETWORK
    assert "--network host" in refused.hint


def test_no_refusal_promises_that_a_kubelet_tries_again(door: Door) -> None:
    door.running[4712] = 200  # a process whose namespace cannot be opened
    refused = refusal(door, asks(pid=4712))
    assert refused.code is ErrorCode.ATTACH_FAILED
    assert "kubelet" not in str(refused)


def test_the_limit_is_what_the_devices_ask_for(door: Door) -> None:
    more = Wish(device="mlx5_3", mode="shared", memlock="4096")
    nodes = {**NODES, "/dev/infiniband/uverbs3": (231, 195)}
    given = door.containers.attach(replace(asks(replace(ONE, memlock="1024"), more), nodes=nodes), 9)
    assert given == Given(memlock=4096, must=True)


def test_a_shared_device_stays_on_the_host_and_serves_several(door: Door) -> None:
    before = door.inside.world.snapshot()
    door.add_container(pid=4712, start=200)
    shared = Wish(device="mlx5_2", mode="shared", netdev="rail2")
    door.containers.attach(asks(shared), 9)
    door.containers.attach(asks(shared, container="other", pid=4712), 9)
    assert door.inside.world.snapshot() == before
    assert (door.state(), door.state("other")) == (Phase.ATTACHED, Phase.ATTACHED)


def test_a_container_stands_for_a_pod_that_no_runtime_lists(door: Door) -> None:
    door.containers.attach(asks(container="0123456789abcdef"), 9)
    (attachment,) = door.inside.sandboxes.all()
    assert str(attachment.pod) == "oci/0123456789ab"
    assert (attachment.pod.sandbox_id, attachment.pod.pid, attachment.pod.is_listed) == ("0123456789abcdef", PID, False)
    door.inside.engine.synchronize(()).result(30)
    assert attachment.state is Phase.ATTACHED, "a runtime that does not list it does not end it"


# Annotations

ASKED = {"name": "fast", "match": {"device": "mlx5_2"}, "mode": "exclusive"}
PREFIX = "rdma.noderesource.dev"


def prepares(container: str = "box", **fields: object) -> HookQuestion:
    """What a container asks before it is made."""
    question = HookQuestion(
        verb=Verb.PREPARE, container_id=container, annotations={f"{PREFIX}/pod": json.dumps([ASKED])}
    )
    return replace(question, **fields)  # type: ignore[arg-type]  # fields of a question


def starts(prepared: Prepared, asked: HookQuestion, pid: int = PID) -> HookQuestion:
    """What the same container asks when it is made with what it was told."""
    nodes = {it.path: (it.major, it.minor) for it in prepared.nodes}
    return replace(asked, verb=Verb.ATTACH, pid=pid, nodes=nodes, prepared=dict(prepared.env))


def not_prepared(door: Door, question: HookQuestion) -> NriRdmaError:
    with pytest.raises(NriRdmaError) as caught:
        door.containers.prepare(question)
    return caught.value


def test_a_container_is_told_what_it_is_to_be_made_with_and_then_gets_it(door: Door) -> None:
    before = door.inside.world.snapshot()
    prepared = door.containers.prepare(prepares())
    assert {it.path: (it.major, it.minor) for it in prepared.nodes} == NODES
    assert dict(prepared.env)["RDMA_NETDEVS_FAST"] == "rdma0"
    assert (door.inside.world.snapshot(), door.state()) == (before, None), "nothing is attached yet"
    assert door.containers.attach(starts(prepared, prepares()), 9) == DEFAULT
    assert ("rdma0" in door.links_of(PID), door.state()) == (True, Phase.ATTACHED)
    door.containers.give_back(HookQuestion(verb=Verb.RETURN, container_id="box"))
    assert door.inside.world.snapshot() == before


def test_a_device_that_became_better_meanwhile_does_not_change_what_was_promised(door: Door) -> None:
    first = door.containers.prepare(prepares("other", annotations={PREFIX: "1"}))
    second = door.containers.prepare(prepares(annotations={PREFIX: "1"}))
    assert {it.path for it in first.nodes} != {it.path for it in second.nodes}
    door.containers.give_back(HookQuestion(verb=Verb.RETURN, container_id="other"))  # the first one is free again
    door.containers.attach(starts(second, prepares(annotations={PREFIX: "1"})), 9)
    assert door.state() is Phase.ATTACHED


def test_a_container_of_whose_promise_nothing_is_known_is_decided_about_anew(door: Door) -> None:
    prepared = door.containers.prepare(prepares())
    door.inside.engine.stop_pod("box", time.monotonic() + 1)  # as after a restart of the daemon
    assert door.containers.attach(starts(prepared, prepares()), 9) == DEFAULT


def test_a_container_that_was_made_for_another_device_is_refused_and_leaves_nothing(door: Door) -> None:
    before = door.inside.world.snapshot()
    prepared = door.containers.prepare(prepares())
    wrong = replace(starts(prepared, prepares()), prepared={**dict(prepared.env), "RDMA_NETDEVS_FAST": "rdma7"})
    refused = refusal(door, wrong)
    assert refused.code is ErrorCode.NAME_CONFLICT
    assert "RDMA_NETDEVS_FAST" in refused.what
    assert (door.inside.world.snapshot(), door.state()) == (before, None)


def test_its_interface_is_not_known_before_it_has_a_network_and_is_no_difference(door: Door) -> None:
    prepared = door.containers.prepare(prepares())
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & dict(prepared.env).keys()
    namespace = door.inside.world.namespace(f"/proc/{PID}/ns/net")
    assert namespace is not None
    door.inside.world.add_link(namespace, "eth0", up=True)
    assert door.containers.attach(starts(prepared, prepares()), 9) == DEFAULT


def test_the_interface_of_a_network_that_is_made_is_told(door: Door) -> None:
    prepared = door.containers.prepare(prepares(), 9)
    assert dict(prepared.env)["NCCL_SOCKET_IFNAME"] == "=eth0"
    namespace = door.inside.world.namespace(f"/proc/{PID}/ns/net")
    assert namespace is not None
    door.inside.world.add_link(namespace, "eth0", up=True)
    assert door.containers.attach(starts(prepared, prepares()), 9) == DEFAULT


def test_a_network_without_an_interface_may_get_one_later_and_nothing_is_told(door: Door) -> None:
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & dict(door.containers.prepare(prepares(), 8).env).keys()


def test_a_variable_that_the_container_sets_itself_is_no_difference(door: Door) -> None:
    own = prepares(variables=frozenset({"NCCL_IB_HCA"}))
    prepared = door.containers.prepare(own)
    assert "NCCL_IB_HCA" not in dict(prepared.env)
    assert door.containers.attach(starts(prepared, own), 9) == DEFAULT


def test_the_memlock_of_the_request_must_be_set(door: Door) -> None:
    asked = prepares(annotations={f"{PREFIX}/pod": json.dumps([{**ASKED, "memlock": 4096}])})
    prepared = door.containers.prepare(asked)
    assert door.containers.attach(starts(prepared, asked), 9) == Given(memlock=4096, must=True)


def test_without_one_in_the_request_the_door_says_it_and_no_runtime(door: Door) -> None:
    soft = Given(memlock=1 << 10)
    assert soft.memlock != door.inside.engine.offering.memlock.default, "what a runtime would be told"
    own = Containers(door.inside.engine, door.handing, str, lambda pid: door.running[pid], door.inside.spans, soft, 3.0)
    assert own.attach(starts(own.prepare(prepares()), prepares()), 9) == soft


def test_a_container_that_is_to_be_proven_is_proven_once_with_the_limit_that_must_be_set(door: Door) -> None:
    soft = Given(memlock=1 << 10)
    own = Containers(door.inside.engine, door.handing, str, lambda pid: door.running[pid], door.inside.spans, soft, 3.0)
    asked = prepares(annotations={f"{PREFIX}/pod": json.dumps([{**ASKED, "prove": True}])})
    question = replace(
        starts(own.prepare(asked), asked), cgroups_path="/machine/box", indexes={"UCX_IB_GID_INDEX": "2"}
    )
    for _ in range(2):
        assert own.attach(question, 9) == Given(memlock=1 << 10, must=True)
    ((task, within_s),) = door.inside.prover.asked
    assert (task.where, task.pid, task.cgroups_path, task.memlock) == ("oci/box", PID, "/machine/box", 1 << 10)
    assert [(it.device, it.gid_index) for it in task.devices] == [("mlx5_2", 2)]
    assert within_s == pytest.approx(3.0, abs=1.5)


def test_the_image_of_a_container_is_checked_before_it_is_answered(door: Door) -> None:
    shelf, readers = Shelf(), Workers(1, name="image-reader")
    starts = door.inside.engine.starts
    sandboxes = door.inside.engine.sandboxes
    starts.images = starts.gate.images = ImageCheck(shelf, sandboxes, door.inside.spans, readers)
    assert door.containers.attach(replace(asks(), bundle="/run/bundle"), 9) == DEFAULT
    assert shelf.asked == [(Made(container_id="box", pid=PID, bundle="/run/bundle"), frozenset({"mlx5"}))]
    (told,) = ask_status(door.inside.settings.control_path)["images"]
    assert (told["pod"], told["container"], told["code"]) == ("oci/box", "box", "USERSPACE-MISSING")
    readers.close()


def test_a_container_with_the_right_to_lock_is_proven_without_a_limit(door: Door) -> None:
    asked = prepares(annotations={f"{PREFIX}/pod": json.dumps([{**ASKED, "prove": True}])})
    question = replace(starts(door.containers.prepare(asked), asked), may_lock=True)
    assert door.containers.attach(question, 9) == DEFAULT
    ((task, _),) = door.inside.prover.asked
    assert task.memlock == UNLIMITED


def test_a_container_that_cannot_be_proven_is_refused_and_leaves_nothing(door: Door) -> None:
    before = door.inside.world.snapshot()
    door.inside.prover.fail(ProofStep.GID, "there is no entry 7")
    offering = door.inside.engine.offering
    (pool,) = offering.policy.pools.values()
    offering.policy = replace(offering.policy, pools={pool.name: replace(pool, prove=True)})
    refused = refusal(door, asks())
    assert (refused.code, "there is no entry 7" in refused.what) == (ErrorCode.PROOF_GID, True)
    assert (door.inside.world.snapshot(), door.state()) == (before, None)
    (row,) = door.inside.engine.refused.rows()
    assert (row.call, row.code, row.count) == ("createRuntime", "PROOF-GID", 1)


def test_the_end_of_a_container_that_was_not_made_frees_what_it_was_promised(door: Door) -> None:
    door.containers.prepare(prepares())
    assert not_prepared(door, prepares("other")).code is ErrorCode.DEVICE_IN_USE
    door.containers.give_back(HookQuestion(verb=Verb.RETURN, container_id="box"))
    assert {it.path for it in door.containers.prepare(prepares("other")).nodes} == set(NODES)


def test_an_annotation_that_asks_for_nothing_gives_nothing(door: Door) -> None:
    asked = prepares(annotations={PREFIX: "[]"})
    assert door.containers.prepare(asked) == Prepared()
    assert door.containers.attach(starts(Prepared(), asked), 9) == Given()
    assert door.state() is None


def test_a_container_with_another_device_s_node_in_its_device_s_place_is_refused_before_it_is_made(door: Door) -> None:
    refused = not_prepared(door, prepares(nodes={"/dev/infiniband/uverbs2": (231, 195)}))
    assert refused.code is ErrorCode.PATH_CONFLICT


def test_nothing_is_promised_while_an_earlier_start_still_has_its_device(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise, had = door.inside.engine.promise, list[bool]()

    def looked_at(*asked: Any) -> ContainerEdits:
        had.append("rdma0" in door.links_of(PID))
        return promise(*asked)

    prepared = door.containers.prepare(prepares())
    door.containers.attach(starts(prepared, prepares()), 9)
    monkeypatch.setattr(door.inside.engine, "promise", looked_at)
    door.containers.prepare(prepares())
    assert had == [False]


def test_devices_in_two_ways_are_refused(door: Door) -> None:
    for refused in (not_prepared(door, prepares(wishes=(ONE,))), refusal(door, prepares(wishes=(ONE,), pid=PID))):
        assert refused.code is ErrorCode.ANNOTATION_PLACE
    assert door.state() is None


def test_annotations_of_another_prefix_are_no_reason_to_start_bare(door: Door) -> None:
    other = prepares(annotations={"rdma.example/pod": "1"})
    for refused in (not_prepared(door, other), refusal(door, replace(other, pid=PID))):
        assert (refused.code, PREFIX in refused.what) == (ErrorCode.SETTING, True)


def test_on_the_hosts_network_it_is_refused_before_it_is_made(door: Door) -> None:
    refused = not_prepared(door, prepares(has_network=False))
    assert refused.code is ErrorCode.HOST_NETWORK
    assert "--network host" in refused.hint
    assert [(row.call, row.code) for row in door.inside.engine.refused.rows()] == [("precreate", "HOST-NETWORK")]


# Limits of the rdma cgroup

FEW = replace(ONE, hca_handles="2", hca_objects="30")
CGROUP = "/machine/box"


def asks_limited() -> HookQuestion:
    return replace(asks(FEW), cgroups_path=CGROUP)


@pytest.fixture
def limiting(door: Door) -> Door:
    """A door on a host that can limit the container, which is in its cgroup."""
    door.inside.make_cgroups(CGROUP)
    door.inside.cgroup_file(CGROUP, "cgroup.procs").write_text(f"{PID}\n")
    return door


def test_a_container_is_limited_before_the_hook_gets_its_answer(limiting: Door) -> None:
    assert limiting.containers.attach(asks_limited(), 9) == DEFAULT
    assert limiting.inside.cgroup_file(CGROUP, "rdma.max").read_text() == "mlx5_2 hca_handle=2 hca_object=30\n"


def test_a_container_that_cannot_be_limited_does_not_start_and_leaves_nothing(limiting: Door) -> None:
    before = limiting.inside.world.snapshot()
    limiting.inside.cgroup_file(CGROUP, "cgroup.procs").write_text("1\n")
    refused = refusal(limiting, asks_limited())
    assert isinstance(refused, LimitsError)
    assert f"its process {PID} is not in " in str(refused)
    assert (limiting.inside.world.snapshot(), limiting.state(), limiting.handing.now) == (before, None, {})


def test_on_a_host_that_cannot_limit_a_container_with_limits_is_refused(door: Door) -> None:
    before = door.inside.world.snapshot()
    refused = refusal(door, asks_limited())
    assert refused.code is ErrorCode.LIMITS_UNSUPPORTED
    assert (door.inside.world.snapshot(), door.state()) == (before, None)


def test_a_hook_that_names_no_cgroup_gets_no_limited_device(limiting: Door) -> None:
    refused = refusal(limiting, asks(FEW))
    assert "LIMITS-NOT-SET: it has no cgroup of its own, oci/box." in str(refused)


@pytest.mark.parametrize("verb", list(Verb))
def test_the_id_of_a_pods_sandbox_takes_a_running_pod_nothing(door: Door, verb: Verb) -> None:
    """Containers of engines have ids of their own; who asks with another one is refused."""
    pod = door.inside.start_pod("running", {"rdma.noderesource.dev": "1"})
    before = door.inside.world.snapshot()
    annotations = {"rdma.noderesource.dev": "1"} if verb is Verb.PREPARE else {}
    question = replace(asks(container=pod.sandbox_id), verb=verb, annotations=annotations)
    calls = {
        Verb.PREPARE: lambda asked: door.containers.prepare(asked, 9),
        Verb.ATTACH: lambda asked: door.containers.attach(asked, 9),
        Verb.RETURN: door.containers.give_back,
    }
    with pytest.raises(NriRdmaError) as caught:
        calls[verb](question)
    assert caught.value.code is ErrorCode.OCI_STATE
    assert door.inside.world.snapshot() == before
    assert door.state(pod.sandbox_id) is Phase.ATTACHED
