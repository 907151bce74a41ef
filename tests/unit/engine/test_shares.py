"""Shares on the walk of a pod: the kubelet is asked only while something is pending, and no container goes without."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.holdings import Holdings
from nri_rdma.commands.status.cli import attention
from nri_rdma.commands.status.device_holders import taken_from
from nri_rdma.commands.status.driver_line import UNSERVED_S
from nri_rdma.decide.inject import HINT_VARIABLES
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.engine.guard import Subject, refuse_incomplete
from nri_rdma.engine.shares import NOT_TRIED, PENDING_S, Guarding, ShareBook
from nri_rdma.errors import NotReadyError, NriRdmaError
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.pool import GUARD_POOL, Pool, PoolDoor, Rule, ShareGives
from nri_rdma.model.request import Mode
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from nri_rdma.text.share_annotations import guarded_annotation, share_annotation
from tests.rig.deadline import wait_until
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.attach.sandbox_life import occupy
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.doors.deviceplugin.pools import RESOURCE, pool, pool_of_devices
from tests.unit.rigs.engine_with_kubelet import Kubelet
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import NOTHING, Got, Handlers

MAIN = ContainerManifest(name="main")
DENIES = Rule(name="nobody", where="rules[0]", allow=False)


def test_a_share_is_pending_until_a_pod_is_told_to_have_it() -> None:
    book = ShareBook([pool()])
    seen = [book.is_pending]
    book.allocated(RESOURCE, ["hcas-00", "hcas-01"])
    for told in (allocation("hcas-00"), allocation("hcas-01", resource="rdma/other"), allocation("hcas-01")):
        seen.append(book.is_pending)
        book.matched(told)
    assert [*seen, book.is_pending] == [False, True, True, True, False]


def test_while_nothing_is_pending_an_event_costs_no_look_at_the_clock() -> None:
    def asked() -> float:
        raise AssertionError("the clock was asked")

    assert not ShareBook([pool()], clock=asked).is_pending


def test_an_allocation_whose_pod_never_comes_is_not_asked_about_for_ever() -> None:
    now = [100.0]
    book = ShareBook([pool()], clock=lambda: now[0])
    book.allocated(RESOURCE, ["hcas-00"])
    seen = []
    for later in (0.0, PENDING_S - 1.0, 1.0):
        now[0] += later
        seen.append(book.is_pending)
    book.allocated(RESOURCE, ["hcas-01"])
    assert [*seen, book.is_pending] == [True, True, False, True]
    now[0] += PENDING_S - 1.0
    book.allocated(RESOURCE, ["hcas-02"])  # which does not keep the one before
    book.matched(allocation("hcas-02"))
    assert book.is_pending
    now[0] += 1.0
    assert not book.is_pending


def allocation(*shares: str, resource: str = RESOURCE) -> PodAllocation:
    given = DeviceIds(resource=resource, ids=shares)
    return PodAllocation(containers=(ContainerAllocation(name="main", resources=(given,)),))


class Node:
    """The node "eight" with a pool of shares, a kubelet and a runtime."""

    def __init__(self, inside: InsideDaemon) -> None:
        self.kubelet, self.inside = Kubelet(), inside
        inside.engine.kubelet.kubelet = self.kubelet
        inside.engine.kubelet.shares = self.shares = ShareBook([pool()])
        inside.engine.offering.policy = policy_of([pool()], (), allow_default_pool=False)
        self.handlers = Handlers(inside)

    def start(self, name: str, *shares: str) -> nri.PodSandbox:
        """A pod whose container has these shares: Allocate, then RunPodSandbox."""
        if shares:
            self.shares.allocated(RESOURCE, shares)
            self.kubelet.give_ids(f"default/{name}", "main", RESOURCE, *shares)
        manifest = PodManifest(kind="Pod", namespace="default", name=name, annotations={}, containers=(MAIN,))
        return self.handlers.run_pod(manifest)

    def create(
        self, pod: nri.PodSandbox, *shares: str, guard: str = "", hook: tuple[str, ...] = (), container: str = "main"
    ) -> Got:
        """A container of it, with the annotations of Allocate (`guard` is the pool whose guard was given), and a
        createRuntime hook (path and arguments)."""
        told = dict([share_annotation(RESOURCE, shares)]) if shares else {}
        told |= dict([guarded_annotation(RESOURCE, guard)]) if guard else {}
        return self.handlers.create(pod, ContainerManifest(name=container), annotations=told, hook=hook)


@pytest.fixture
def node(tmp_path: Path, eight: Path) -> Iterator[Node]:
    with InsideDaemon(tmp_path, eight) as inside:
        yield Node(inside)


def test_the_container_that_has_a_share_gets_a_device_and_the_kubelet_is_asked_once(node: Node) -> None:
    pod = node.start("a", "hcas-05")
    got = node.create(pod, "hcas-05")
    assert got.names == ["uverbs0", "rdma_cm"]
    assert got.env["RDMA_DEVICES_HCA_SHARED"] == "mlx5_0"
    assert (node.kubelet.asked, node.shares.is_pending) == (1, False)


def test_a_plain_pod_costs_no_question_while_nothing_is_pending(node: Node) -> None:
    assert node.create(node.start("plain")) == NOTHING
    assert node.kubelet.asked == 0
    node.shares.allocated(RESOURCE, ["hcas-00"])
    assert node.create(node.start("another")) == NOTHING
    assert (node.kubelet.asked, node.shares.is_pending) == (1, True)


def test_where_the_kubelet_is_late_the_container_itself_tells_what_it_has(node: Node) -> None:
    node.kubelet.is_late = True
    pod = node.start("a", "hcas-05")
    assert not node.inside.engine.knows(pod.id)
    assert node.create(pod, "hcas-05").names == ["uverbs0", "rdma_cm"]
    held = {share for holders in node.inside.reservations.taken().values() for it in holders for share in it.shares}
    assert held == {"hcas-05"}


def test_a_daemon_that_did_not_hear_of_the_allocation_learns_it_from_the_container(node: Node) -> None:
    """It was not there at Allocate, nor at RunPodSandbox."""
    pod = node.start("a")
    node.kubelet.give_ids("default/a", "main", RESOURCE, "hcas-05")
    assert node.create(pod, "hcas-05").names == ["uverbs0", "rdma_cm"]


def test_a_share_that_only_the_container_tells_of_is_on_a_device_next_to_its_gpu(node: Node) -> None:
    node.kubelet.is_late = True
    pod = node.start("a", "hcas-05")
    node.kubelet.is_late = False
    node.kubelet.give_ids("default/a", "main", "nvidia.com/gpu", load("eight").gpus[6].uuid)
    assert node.create(pod, "hcas-05").names == ["uverbs6", "rdma_cm"]


def test_on_a_node_without_gpus_the_kubelet_is_not_asked_about_them_when_a_container_tells_of_its_share(
    tmp_path: Path,
) -> None:
    """CreateContainer would wait for the answer."""
    build_tree(load("small"), tmp_path / "sys")
    with InsideDaemon(tmp_path, tmp_path / "sys", "small") as inside:
        node = Node(inside)
        assert node.create(node.start("a"), "hcas-05").names == ["uverbs0", "rdma_cm"]
        assert node.kubelet.asked == 0


def test_a_share_that_the_kubelet_did_not_tell_is_attached_beside_those_that_it_told(node: Node) -> None:
    pod = node.start("a", "hcas-05")
    assert node.create(pod, "hcas-05", "hcas-06").names == ["uverbs0", "rdma_cm", "uverbs1"]


def test_a_share_that_a_pod_has_stays_on_its_device_though_a_device_before_it_has_fewer_shares(node: Node) -> None:
    other = node.start("b", "hcas-00")
    pod = node.start("a", "hcas-05")
    assert node.create(pod, "hcas-05").names == ["uverbs1", "rdma_cm"]
    node.handlers.stop_pod(other)
    assert node.create(pod, "hcas-05", container="first").names == ["uverbs1", "rdma_cm"]


def test_an_init_container_has_the_device_of_the_share_that_the_kubelet_gives_to_the_next_one(node: Node) -> None:
    """The kubelet reports no init containers, and gives their shares to other containers again."""
    pod = node.start("a", "hcas-05")
    assert node.create(pod, "hcas-05", container="first").names == ["uverbs0", "rdma_cm"]
    assert node.create(pod, "hcas-05").names == ["uverbs0", "rdma_cm"]
    assert [len(holders) for holders in node.inside.reservations.taken().values()] == [1]
    other = node.start("b", *(f"hcas-{number:02}" for number in range(6, 16)))
    assert len(node.create(other, *(f"hcas-{number:02}" for number in range(6, 16))).names) == 9
    node.handlers.stop_pod(pod)
    node.handlers.stop_pod(other)
    assert not node.inside.reservations.taken()


def test_an_init_container_with_fewer_shares_than_the_next_one_has_fewer_devices(node: Node) -> None:
    pod = node.start("a", "hcas-05", "hcas-06")
    assert node.create(pod, "hcas-05", container="first").names == ["uverbs0", "rdma_cm"]
    assert node.create(pod, "hcas-05", "hcas-06").names == ["uverbs0", "uverbs1", "rdma_cm"]


def test_a_share_of_all_devices_that_an_init_container_had_before_is_all_devices(node: Node) -> None:
    every = pool(gives=ShareGives.ALL)
    node.inside.engine.kubelet.shares = node.shares = ShareBook([every])
    node.inside.engine.offering.policy = policy_of([every], (), allow_default_pool=False)
    pod = node.start("a", "hcas-05")
    names = node.create(pod, "hcas-05", container="first").names
    assert sorted(names) == ["rdma_cm", *(f"uverbs{number}" for number in range(8))]


def test_a_pool_that_is_not_asked_by_a_resource_is_none_that_the_kubelet_knows_or_not() -> None:
    claimed = Pool(name="claimed", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS)
    book = ShareBook([pool(), claimed, pool_of_devices()])
    assert set(book.registrations) == set(book.pools) == {"hcas", "nics"}
    both = ShareBook([pool()], guard_resource="a.example/guard")
    assert list(both.registrations) == ["hcas", GUARD_POOL]
    assert set(both.pools) == {"hcas"}
    assert book.pools_by_id == {"nics"}


def test_a_share_whose_attach_has_not_been_planned_yet_is_not_attached_again(node: Node) -> None:
    go_on = occupy(node.inside.workers, *"abcd")
    starting = threading.Thread(target=node.start, args=("a", "hcas-05"))
    starting.start()
    wait_until(lambda: node.inside.sandboxes.knows("sandbox-a"), "the pod's start")
    soon = threading.Timer(0.05, go_on)
    soon.start()
    pod = nri.PodSandbox(id="sandbox-a", uid="uid-a", name="a", namespace="default")
    assert node.create(pod, "hcas-05").names == ["uverbs0", "rdma_cm"]
    starting.join()
    soon.join()
    assert len(node.inside.sandboxes.of("sandbox-a")) == 1


def test_a_container_of_an_attached_pod_passes_no_barrier(node: Node) -> None:
    pod = node.start("a", "hcas-05")
    node.inside.sandboxes.of(pod.id)[0].attach_done.result(10)
    node.create(pod, "hcas-05")
    assert [it.name for it in node.inside.spans.recent() if it.name == "barrier"] == []


def test_an_init_container_that_alone_has_a_share_gets_its_device_and_the_others_none(node: Node) -> None:
    pod = node.start("a")
    assert node.create(pod, "hcas-05", container="first").names == ["uverbs0", "rdma_cm"]
    assert node.create(pod) == NOTHING


def test_status_says_whether_a_resource_is_registered_and_a_check_ends_with_1_when_it_is_not_for_long(
    node: Node,
) -> None:
    state = ("--state-dir", str(node.inside.settings.state_dir))

    def told() -> str:
        return re.sub(r"\b\d s\b", "N s", nri_rdma("status", *state, columns=160).stdout)

    def attention_words(since: float) -> list[str]:
        document = ask_status(node.inside.settings.control_path)
        (known,) = [pool["registration"] for pool in document["pools"]]
        known["since"] -= since
        return [line for line in attention(document) if "kubelet" in line]

    assert f"WARNING, the kubelet does not know it, for N s: {NOT_TRIED}" in told()
    node.shares.registered("hcas", "RESOURCE-TAKEN: by another")
    assert "the kubelet does not know it, for" in told()
    assert "RESOURCE-TAKEN: by another" in told()
    assert attention_words(since=UNSERVED_S - 30) == []
    (line,) = attention_words(since=UNSERVED_S + 1)
    assert line == f"the kubelet does not know {RESOURCE} of pool hcas: RESOURCE-TAKEN: by another"
    node.shares.registered("hcas")
    assert "registered with the kubelet N s ago" in told()
    assert attention_words(since=UNSERVED_S + 1) == []


def test_the_time_of_a_registration_is_that_of_the_last_change() -> None:
    book = ShareBook([pool()])
    first = book.registrations["hcas"]
    book.registered("hcas", "no kubelet")
    assert (book.registrations["hcas"].error, book.registrations["hcas"].since) == ("no kubelet", first.since)
    book.registered("hcas")
    known = book.registrations["hcas"]
    assert known.since > first.since
    book.registered("hcas")
    assert book.registrations["hcas"] == known


def test_shares_that_the_pods_author_writes_are_refused(node: Node) -> None:
    """CRI-O gives the pod's annotations to its containers, too."""
    key, value = share_annotation(RESOURCE, [f"hcas-{number:02}" for number in range(16)])
    manifest = PodManifest(kind="Pod", namespace="default", name="forger", annotations={key: value}, containers=(MAIN,))
    pod = node.handlers.run_pod(manifest)
    with pytest.raises(NotReadyError, match=r"the pod of container main has the annotation shares\.rdma"):
        node.handlers.create(pod, MAIN, annotations={key: value})
    assert not node.inside.reservations.taken()
    made = nri.Container(id="c", pod_sandbox_id=pod.id, name="main")
    made.annotations[key] = value
    node.handlers.tell([pod], [made])
    assert node.inside.engine.unserved == ()


def test_a_share_of_a_resource_that_no_pool_has_any_more_is_refused(node: Node) -> None:
    pod = node.start("a")
    told = dict([share_annotation("rdma/older", ["older-1"])])
    with pytest.raises(NotReadyError, match="has shares of rdma/older, which is the resource of no pool"):
        node.handlers.create(pod, MAIN, annotations=told)


@pytest.mark.parametrize(
    "share", ["hcas-99", "hcas-16", "hcas-5", "hcas-005", "hcas-0\u0665", "hcas", "", "\x1b]0;\x07", "x" * 9999]
)
def test_a_share_that_its_pool_does_not_have_is_refused(node: Node, share: str) -> None:
    pod = node.start("a")
    with pytest.raises(NotReadyError, match=r"NOT-ATTACHED: container main has .* which is no share of") as caught:
        node.create(pod, "hcas-05", share)
    assert str(caught.value).isprintable()
    assert not node.inside.reservations.taken()


def test_a_share_that_the_kubelet_tells_of_and_its_pool_does_not_have_gives_no_device(node: Node) -> None:
    pod = node.start("a", "hcas-05", "hcas-99")
    held = [holding.shares for holders in node.inside.reservations.taken().values() for holding in holders]
    assert [set(it) for it in held] == [{"hcas-05"}]
    assert node.create(pod, "hcas-05").names == ["uverbs0", "rdma_cm"]


def test_of_a_pod_that_was_refused_the_next_sandbox_is_asked_about_too(node: Node) -> None:
    placing = node.inside.engine.offering
    placing.policy = policy_of([pool()], (DENIES,), allow_default_pool=False)
    with pytest.raises(NriRdmaError, match="POLICY-DENIED"):
        node.start("a", "hcas-05")
    assert node.shares.is_pending
    placing.policy = policy_of([pool()], (), allow_default_pool=False)
    pod = node.start("a")
    assert node.inside.engine.knows(pod.id)
    assert not node.shares.is_pending


def test_a_share_that_a_container_told_of_is_not_asked_about_any_more(node: Node) -> None:
    pod = node.start("a")
    node.shares.allocated(RESOURCE, ["hcas-05"])
    node.create(pod, "hcas-05", container="first")
    assert not node.shares.is_pending


def test_a_container_whose_share_cannot_be_attached_is_refused_with_the_reason(node: Node) -> None:
    pod = node.start("a")
    node.inside.engine.offering.policy = policy_of([pool()], (DENIES,), allow_default_pool=False)
    with pytest.raises(NriRdmaError, match=r"POLICY-DENIED: rule nobody .* refuses pool hcas"):
        node.create(pod, "hcas-05")


def test_status_counts_the_shares_that_pods_have_and_warns_where_they_have_no_guard(node: Node) -> None:
    for number in range(3):
        node.start(f"p{number}", f"hcas-{number:02}")
    socket = node.inside.settings.control_path
    (told,) = ask_status(socket)["pools"]
    assert (told["resource"], told["shares"], told["given"], told["gives"]) == (RESOURCE, 16, 3, "one")
    assert taken_from(ask_status(socket)) == node.inside.reservations.taken()
    printed = nri_rdma("status", "--state-dir", node.inside.settings.state_dir, columns=120).stdout
    assert "rdma/hca_shared: 3 of 16 shares given, each one device" in printed
    assert "WARNING, its containers have no guard" in printed
    node.shares.guarding = Guarding.ON
    printed = nri_rdma("status", "--state-dir", node.inside.settings.state_dir, columns=120).stdout
    assert "its containers have no guard" not in printed


def test_a_container_whose_runtime_left_the_guard_out_is_refused(node: Node) -> None:
    node.shares.guarding = Guarding.ON
    pod = node.start("a", "hcas-05")
    with pytest.raises(NotReadyError, match=r"GUARD-MISSING: container main has shares of rdma/hca_shared without"):
        node.create(pod, "hcas-05", guard="hcas")
    for other in ([], ["verify"], ["verify", "--pool"], ["verify", "--pool", "another"]):
        with pytest.raises(NotReadyError, match="GUARD-MISSING"):
            node.create(pod, "hcas-05", guard="hcas", hook=("/usr/local/lib/nri-rdma/nri-rdma-hook", *other))
    with pytest.raises(NotReadyError, match="GUARD-MISSING"):
        node.create(pod, "hcas-05", guard="hcas", hook=("/bin/true", "verify", "--pool", "hcas"))
    got = node.create(pod, "hcas-05", guard="hcas", hook=("/opt/nri-rdma-hook", "verify", "--pool", "hcas"))
    assert got.names == ["uverbs0", "rdma_cm"]


def test_a_container_with_the_guard_resource_is_remembered_as_answered_and_a_plain_one_is_not(node: Node) -> None:
    hook = ("/opt/nri-rdma-hook", "verify", "--resource", "a.example/guard")
    pod = node.start("asks-nothing")
    assert node.create(pod) == NOTHING
    assert node.inside.engine.sandboxes.get(pod.id) is None
    assert node.create(pod, hook=hook) == NOTHING
    known = node.inside.engine.sandboxes.get(pod.id)
    assert known is not None
    assert list(known.answered) == ["main"]


def test_where_the_kubelet_gives_no_guard_any_more_none_is_asked_for(node: Node) -> None:
    node.shares.guarding = Guarding.NO_HOOK
    assert node.create(node.start("a", "hcas-05"), "hcas-05", guard="hcas").names == ["uverbs0", "rdma_cm"]


def test_a_container_whose_shares_are_older_than_the_guard_has_its_devices(node: Node) -> None:
    """The kubelet keeps what Allocate answered for as long as the pod lives, and it was given no guard then."""
    node.shares.guarding = Guarding.ON
    assert node.create(node.start("a", "hcas-05"), "hcas-05").names == ["uverbs0", "rdma_cm"]


def test_a_guard_of_a_pool_that_is_gone_is_not_asked_for(node: Node) -> None:
    node.shares.guarding = Guarding.ON
    assert node.create(node.start("a", "hcas-05"), "hcas-05", guard="older").names == ["uverbs0", "rdma_cm"]


def test_the_guard_lets_no_container_start_that_has_shares_and_no_device_for_them(node: Node) -> None:
    pod = node.start("a", "hcas-05")
    parts = node.inside.sandboxes.of(pod.id)
    edits = {f"/dev/infiniband/{name}": (major, minor) for name, major, minor in named(node.create(pod, "hcas-05"))}
    env = frozenset({*HINT_VARIABLES, "RDMA_DEVICES_HCA_SHARED", "RDMA_NETDEVS_HCA_SHARED"})
    made = Subject(
        sandbox_id=pod.id,
        pod="default/a",
        container="main",
        container_id="c",
        annotations={},
        devices=edits,
        env=env,
        pool="hcas",
    )
    refuse_incomplete(made, parts, "rdma.noderesource.dev", lambda _sandbox, _pod: ())
    for lacking, what in (
        (replace(made, container="side"), "NOT-ATTACHED: this container has shares of pool hcas"),
        (replace(made, pool="others"), "NOT-ATTACHED: this container has shares of pool others"),
        (replace(made, devices={}), "NOT-SERVED: the container was made without"),
    ):
        with pytest.raises(NotReadyError, match=what):
            refuse_incomplete(lacking, parts, "rdma.noderesource.dev", lambda _sandbox, _pod: ())
    with pytest.raises(NotReadyError, match="NOT-ATTACHED"):
        refuse_incomplete(made, Holdings(), "rdma.noderesource.dev", lambda _sandbox, _pod: ())


def named(got: Got) -> list[tuple[str, int, int]]:
    """The nodes by their names."""
    return [(path.rpartition("/")[2], major, minor) for path, major, minor in got.nodes]


def test_a_container_with_a_share_that_started_while_the_daemon_was_away_is_reported(node: Node) -> None:
    """It has no guard, and its pod was not heard of at all."""
    pods = {name: node.start(name, share) for name, share in (("served", "hcas-01"), ("half", "hcas-02"))}
    pods["bare"] = nri.PodSandbox(id="sandbox-bare", uid="u", name="bare", namespace="default")
    got = node.create(pods["served"], "hcas-01")
    containers = []
    for name, share in (("served", "hcas-01"), ("half", "hcas-09"), ("bare", "hcas-03")):
        made = nri.Container(id=name, pod_sandbox_id=pods[name].id, name="main")
        made.annotations.update(dict([share_annotation(RESOURCE, [share])]))
        made.env.extend(f"{key}={value}" for key, value in got.env.items())
        for path, major, minor in got.nodes:
            made.linux.devices.add(path=path, type="c", major=major, minor=minor)
        containers.append(made)
    node.handlers.tell(list(pods.values()), containers)
    wait_until(lambda: len(node.inside.engine.unserved) == 2, "the report")
    told = {str(it.pod): it.why for it in node.inside.engine.unserved}
    why = "container main has shares and was made while nri-rdma was away"
    assert told == {"default/half": why, "default/bare": why}


def test_the_end_of_a_pod_gives_its_share_back(node: Node) -> None:
    pods = [node.start(f"p{number}", f"hcas-{number:02}") for number in range(16)]
    held = [len(holders) for holders in node.inside.reservations.taken().values()]
    assert held == [2] * 8
    for pod in pods:
        node.handlers.stop_pod(pod)
    assert not node.inside.reservations.taken()
