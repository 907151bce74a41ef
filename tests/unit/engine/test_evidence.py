"""What is known of a container's CDI devices: who told, what may be guessed, what is not known yet; and what the
container then gets."""

import errno
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.cdi.registry import Registry
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.sources import Sources
from nri_rdma.decide.inject import HINT_VARIABLES
from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import CdiError, ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.host.watch import inotify
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.engine.readings import Rereading
from tests.unit.model.hardware import RDMA_CM, eight, uverbs
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import PREFIX, Daemon, Others
from tests.unit.rigs.engine_with_kubelet import (
    CLAIM_A,
    CLAIM_B,
    FOREIGN,
    MOVE,
    NIC,
    SHARED,
    VENDOR,
    Calls,
    Node,
    container_message,
    daemon_on,
    names,
    node,
    on_host,
    refusal,
    sandbox_message,
    spec,
    world,
)

__all__ = ["node", "world"]

NOT_KNOWN_YET_S = 0.05
"""The deadline of a container that is expected to be told that something is not known yet."""


# What the runtime names before its spec was read


@pytest.fixture
def rereading() -> Rereading:
    return Rereading()


@pytest.fixture
def early(world: World, tmp_path: Path, rereading: Rereading) -> Iterator[Node]:
    """A node that has read a spec of one device, and that containers come to before it has read others."""
    with daemon_on(world, tmp_path, spec(FOREIGN, 1), make_others=rereading.make_others) as made:
        yield made


def assert_not_ready(told: NriRdmaError) -> None:
    assert told.code is ErrorCode.NOT_READY
    assert told.what.startswith("network is not ready")


def test_a_container_with_a_cdi_device_that_no_spec_has_yet_waits_for_another_reading(
    early: Node, rereading: Rereading
) -> None:
    assert_not_ready(refusal(lambda: early.create("trainer", 0, cdi=(NIC,), seconds=NOT_KNOWN_YET_S)))
    assert rereading.asked
    early.specify(spec(FOREIGN, 1), spec(NIC, 0, keys=MOVE))
    rereading.end()
    assert early.create("trainer", 0, cdi=(NIC,)).rdma_max


def test_a_cdi_device_that_the_kubelet_names_before_any_spec_has_it_is_waited_for_too(
    early: Node, rereading: Rereading
) -> None:
    early.engine.specs.read_again()  # now with its kubelet
    early.kubelet.give(make_pod(), "trainer", NIC)
    early.start(annotations={}, seconds=NOT_KNOWN_YET_S)
    assert allocated(early) is not None
    assert_not_ready(refusal(lambda: early.create("trainer", 0, seconds=NOT_KNOWN_YET_S)))
    assert rereading.asked


def test_a_cdi_device_that_no_spec_has_yet_is_waited_for_though_another_explains_the_containers_nodes(
    early: Node, rereading: Rereading
) -> None:
    """It may ask for limits, or for another mode."""
    ready = threading.Timer(0.05, rereading.end)
    ready.start()
    early.create("trainer", 1, cdi=(FOREIGN, NIC))
    assert rereading.asked[0].done()
    ready.join()


def test_nodes_of_other_hardware_that_nothing_explains_have_nothing_read(early: Node, rereading: Rereading) -> None:
    numbers = {node.path: (node.major, node.minor) for node in (uverbs(1), RDMA_CM)}
    container = KnownContainer(
        pod=make_pod(),
        name="main",
        annotations={},
        devices={**numbers, "/dev/nvidia0": (195, 0)},
        cdi_devices=(FOREIGN,),
    )
    early.engine.create_container(container, time.monotonic() + SOON)
    assert rereading.asked == []


def test_a_cdi_device_that_no_later_reading_finds_is_not_ours(early: Node, rereading: Rereading) -> None:
    assert_not_ready(refusal(lambda: early.create("trainer", 0, cdi=(NIC,), seconds=NOT_KNOWN_YET_S)))
    early.engine.specs.read_again()
    rereading.end()
    assert early.create("trainer", 0, cdi=(NIC,)) == ContainerEdits()


def test_a_cdi_device_of_other_hardware_that_a_spec_has_needs_no_other_reading(
    early: Node, rereading: Rereading
) -> None:
    gpu = "gpu.example.com/gpu=0"
    early.specify(spec(FOREIGN, 1), spec(gpu))
    assert early.create("trainer", 1, cdi=(gpu,)) == ContainerEdits()
    assert not rereading.asked


def test_a_cdi_device_that_may_be_in_a_spec_that_cannot_be_read_keeps_its_container_from_starting(
    early: Node, rereading: Rereading
) -> None:
    broken = CdiError(ErrorCode.CDI_SYNTAX, "it is no JSON", file="/cdi/broken.json", hint="mend it")
    early.registry = replace(early.registry, problems=(broken,))
    early.engine.specs.read_again()
    rereading.end()
    assert "/cdi/broken.json" in str(refusal(lambda: early.create("trainer", 0, cdi=(NIC,))))


def allocated(node: Node) -> PodAllocation | None:
    """What is remembered of the kubelet's answer for the pod."""
    sandbox = node.engine.sandboxes.get("sandbox-1")
    return sandbox.allocation if sandbox is not None else None


def test_a_container_that_brings_nothing_does_not_wait_for_the_first_specs(world: World, tmp_path: Path) -> None:
    def unread(_daemon: Daemon) -> Others:
        return Others(specs=SpecCache(node=eight, registry=lambda: Registry(devices={}), prefix=PREFIX, is_ready=False))

    with daemon_on(world, tmp_path, make_others=unread) as node:
        engine = node.engine
        plain = KnownContainer(pod=make_pod(), name="main", annotations={})
        assert engine.create_container(plain, 0.0) == ContainerEdits()
        with_node = replace(plain, devices={"/dev/infiniband/uverbs0": (231, 192)})
        with pytest.raises(NotReadyError, match="CDI specs of the node are still being read"):
            engine.create_container(with_node, 0.0)


def test_nobody_is_ready_while_the_first_specs_are_still_being_read(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    opening, reading, go = threading.Event(), threading.Event(), threading.Event()

    def registry() -> Registry:
        if not opening.is_set():
            return Registry(devices={})
        reading.set()
        assert go.wait(SOON)
        return node.registry

    specs = SpecCache(node=lambda: node.node.current, registry=registry, prefix=PREFIX, is_ready=False)
    opening.set()
    reader = threading.Thread(target=specs.set_ready)
    reader.start()
    try:
        assert reading.wait(SOON)
        assert_not_ready(refusal(lambda: specs.await_ready(make_pod(), time.monotonic())))
    finally:
        go.set()
        reader.join()
    specs.await_ready(make_pod(), time.monotonic())
    assert specs.now.index.is_for_any


def test_where_specs_cannot_be_watched_no_container_starts_without_what_they_ask(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_self: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(inotify.Inotify, "__init__", none_left)
    folder = tmp_path / "cdi"
    folder.mkdir()
    (folder / "x.json").write_text(json.dumps(spec(NIC, 0, keys=MOVE)))
    settings = Settings(annotation_prefix=PREFIX, cdi_dirs=(folder,), kubelet_socket=tmp_path / "none")
    workers, listeners = Workers(1), Listeners()
    opened: list[Sources] = []

    def make_others(daemon: Daemon) -> Others:
        opened.append(Sources(settings, daemon.node, workers, listeners))
        return Others(specs=opened[0].specs, kubelet=opened[0], rereads=opened[0].rereads)

    with daemon_on(world, tmp_path / "state", make_others=make_others) as node:
        opened[0].open_later()
        workers.submit("specs", lambda: None).result(SOON)  # after the opening: it has the same key
        container = container_message("trainer", 0, cdi=(NIC,))
        try:
            made = Calls(node).create(sandbox_message(make_pod()), container, seconds=0.2)
        except NriRdmaError:
            pass  # as good: it does not start
        else:
            assert made.linux.resources.unified["rdma.max"]
        finally:
            workers.close()
            opened[0].close()
            listeners.close()


# Who told, and what is guessed


def test_no_other_cdi_device_is_guessed_for_a_container_whose_runtime_names_one(node: Node, world: World) -> None:
    node.specify(spec(CLAIM_A, 0, keys=MOVE), spec(CLAIM_B, 0))
    assert node.create("main", 0, cdi=(CLAIM_B,)) == ContainerEdits()
    assert "rail0" in on_host(world)
    assert not node.holders


def test_no_other_cdi_device_is_guessed_for_a_container_that_the_kubelet_gave_one(node: Node, world: World) -> None:
    node.specify(spec(CLAIM_A, 0, keys=MOVE), spec(CLAIM_B, 0))
    node.kubelet.give(make_pod(), "main", CLAIM_B)
    node.start(annotations={})
    assert node.create("main", 0) == ContainerEdits()
    assert "rail0" in on_host(world)


def test_what_kubelet_and_runtime_both_name_is_served_beside_a_claim_with_the_same_nodes(node: Node) -> None:
    node.specify(spec(CLAIM_A, 0, keys=SHARED), spec(CLAIM_B, 0, keys=SHARED))
    node.kubelet.give(make_pod(), "main", CLAIM_B)
    node.start(annotations={})
    assert names(node.create("main", 0, cdi=(CLAIM_B,))) == [*HINT_VARIABLES, "RDMA_DEVICES_CLAIM_B"]


@pytest.mark.parametrize("keys", [SHARED, MOVE])
@pytest.mark.parametrize("tells", [True, False], ids=["the runtime names them", "only nodes show them"])
def test_containers_that_share_a_claim_get_the_devices_of_their_own_requests(
    node: Node, world: World, keys: str, tells: bool
) -> None:
    """The kubelet lists each container with all devices of its claims."""
    before = world.snapshot()
    node.specify(spec(CLAIM_A, 0, keys=keys), spec(CLAIM_B, 1, keys=keys))
    for container in ("one", "two", "none"):
        node.kubelet.give(make_pod(), container, CLAIM_A, CLAIM_B)
    node.start(annotations={})
    one = node.create("one", 0, cdi=(CLAIM_A,) if tells else ())
    two = node.create("two", 1, cdi=(CLAIM_B,) if tells else ())
    assert (_claims(one), _claims(two)) == (["RDMA_DEVICES_CLAIM_A"], ["RDMA_DEVICES_CLAIM_B"])
    assert (len(one.rdma_max), len(two.rdma_max)) == (1, 1)
    assert node.create("none", cdi=("other.com/gpu=0",) if tells else ()) == ContainerEdits()
    both = node.create("one", 0, 1, cdi=(CLAIM_A, CLAIM_B) if tells else ())  # made again, and given both
    assert _claims(both) == ["RDMA_DEVICES_CLAIM_A", "RDMA_DEVICES_CLAIM_B"]
    node.stop()
    assert world.snapshot() == before


def _claims(edits: ContainerEdits) -> list[str]:
    """The variables with the devices of each claim."""
    return [name for name in names(edits) if name.startswith("RDMA_DEVICES_")]


def test_what_a_container_was_not_given_of_its_claims_is_told_by_the_runtime_or_else_by_its_nodes(node: Node) -> None:
    pod = make_pod()
    node.specify(spec(CLAIM_A, 0, keys=SHARED), spec(CLAIM_B, 1, keys=SHARED))
    node.kubelet.give(pod, "main", CLAIM_A, CLAIM_B)
    node.start(annotations={})
    first, second = ((it.path, (it.major, it.minor)) for it in map(uverbs, range(2)))
    both = KnownContainer(pod=pod, name="main", annotations={}, devices=dict([first, second]))
    assert node.engine._evidence.read(replace(both, cdi_devices=(CLAIM_A,))).withheld == (CLAIM_B,)
    assert node.engine._evidence.read(replace(both, cdi_devices=(CLAIM_A, CLAIM_B))).withheld == ()
    assert node.engine._evidence.read(both).withheld == ()
    assert node.engine._evidence.read(replace(both, devices=dict([first]))).withheld == (CLAIM_B,)
    assert node.engine._evidence.read(replace(both, devices={}, is_privileged=True)).withheld == ()
    assert node.engine._evidence.read(replace(both, name="other", devices={})).withheld == ()


def test_a_spec_of_every_device_adds_nothing_to_a_claim_of_one(node: Node) -> None:
    node.specify(spec("a.rdma.dev/nic=mlx5_0", 0, keys=SHARED), spec(CLAIM_B, 0, keys=SHARED))
    edits = node.create("main", 0, cdi=(CLAIM_B,))
    assert names(edits) == [*HINT_VARIABLES, "RDMA_DEVICES_CLAIM_B"]
    assert len(edits.rdma_max) == 1


@pytest.mark.parametrize("specs_at_first", [(CLAIM_A, CLAIM_B), (CLAIM_B,)], ids=["there before", "there later"])
def test_a_daemon_that_starts_anew_takes_a_container_for_the_claim_that_it_attached(
    world: World, tmp_path: Path, specs_at_first: tuple[str, ...]
) -> None:
    with daemon_on(world, tmp_path, *(spec(name, 0, keys=SHARED) for name in specs_at_first)) as first:
        first.kubelet.give(make_pod(), "main", CLAIM_B)
        first.start(annotations={})
        edits = first.create("main", 0)
        assert "RDMA_DEVICES_CLAIM_B" in names(edits)
    with daemon_on(world, tmp_path, spec(CLAIM_A, 0, keys=SHARED), spec(CLAIM_B, 0, keys=SHARED)) as second:
        assert second.create("main", 0) == edits


@pytest.mark.parametrize("is_known", [True, False], ids=["known to the kubelet", "not known to the kubelet"])
def test_the_author_of_a_pod_gets_no_cdi_device_by_writing_its_annotation(
    node: Node, world: World, is_known: bool
) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    if is_known:
        node.kubelet.give(make_pod(), "evil")
    calls = Calls(node)
    written = {"cdi.k8s.io/x": NIC}  # CRI-O copies a pod's annotations to its containers
    pod = sandbox_message(make_pod(), written)
    calls.run(pod)
    made = calls.create(pod, container_message("evil", annotations=written))
    assert not made.linux.devices
    assert "rail0" in on_host(world)
    assert not node.holders


def test_another_container_of_a_claim_is_served_while_the_host_does_not_see_its_device(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    first = node.create("trainer", 0)
    node.hidden = frozenset({"mlx5_0"})  # it is in the pod's namespace, and RDMA namespaces are exclusive
    node.node.refresh()
    assert node.create("trainer", 0) == first
    assert node.create("helper", 0) == first


def test_an_init_container_is_served_while_the_host_does_not_see_its_device(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(make_pod(), "trainer", NIC)  # which never tells of init containers
    node.start(annotations={})
    node.hidden = frozenset({"mlx5_0"})
    node.node.refresh()
    assert node.create("init", 0).rdma_max


# What is remembered, and what it costs


def test_what_was_seen_of_a_pod_ends_with_it_also_where_nothing_was_attached(node: Node) -> None:
    node.specify(spec(FOREIGN, 0))
    calls, pod = Calls(node), sandbox_message(make_pod())
    calls.run(pod)
    calls.create(pod, container_message("main", 0))
    assert node.seen()
    calls.end(pod)
    assert not node.seen()


def test_what_the_kubelet_told_of_a_pod_that_runs_outlives_thousands_that_came_and_went(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    calls = Calls(node)
    node.kubelet.give(make_pod(), "trainer", NIC)
    calls.run(sandbox_message(make_pod()))
    assert allocated(node) is not None
    node.kubelet.given.clear()
    node.kubelet.others = PodAllocation()
    for number in range(4097):
        job = sandbox_message(make_pod(f"job-{number}", uid=f"uid-of-job-{number}", path=""))
        calls.run(job)
        calls.end(job)
    assert allocated(node) is not None


def test_a_container_with_cdi_devices_that_are_not_ours_leaves_no_span(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    calls, pod = Calls(node), sandbox_message(make_pod())
    container = container_message("gpu", cdi=("nvidia.com/gpu=0",))
    container.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)
    calls.create(pod, container)
    assert node.rig.spans.recent() == ()


# Several for one container


def test_two_claims_of_one_label_are_one_variable_with_the_devices_of_both(node: Node) -> None:
    one, other = "a.example/nic=claim", "b.example/nic=claim"
    node.specify(spec(one, 0, keys=SHARED), spec(other, 1, keys=SHARED))
    edits = node.create("trainer", 0, 1, cdi=(one, other))
    assert names(edits) == [*HINT_VARIABLES, "RDMA_DEVICES_CLAIM"]
    assert dict(edits.env)["RDMA_DEVICES_CLAIM"] == "mlx5_0,mlx5_1"


def test_a_claim_labelled_as_a_request_of_the_annotation_adds_its_device_to_that_variable(node: Node) -> None:
    node.specify(spec(f"{VENDOR}/nic=rail", 1, keys=SHARED))
    annotations = {f"{PREFIX}/pod": "{name: rail, count: 1, mode: exclusive}"}
    node.start(annotations=annotations)
    edits = node.create("trainer", 1, annotations=annotations)
    assert len(names(edits)) == len(set(names(edits)))
    assert dict(edits.env)["RDMA_DEVICES_RAIL"] == "mlx5_0,mlx5_1"
    assert dict(edits.env)["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"


def test_a_device_in_two_claims_of_one_label_is_named_once(node: Node) -> None:
    one, other = "a.example/nic=claim", "b.example/nic=claim"
    node.specify(spec(one, 0, 1, keys=SHARED), spec(other, 1, keys=SHARED))
    assert dict(node.create("trainer", 0, 1, cdi=(one, other)).env)["RDMA_DEVICES_CLAIM"] == "mlx5_0,mlx5_1"


@pytest.mark.parametrize("told", ["by the kubelet", "by the runtime"])
def test_two_shared_claims_on_one_device_name_it_once_with_the_smaller_limits_of_both(node: Node, told: str) -> None:
    node.specify(
        spec(CLAIM_A, 0, keys=SHARED), spec(CLAIM_B, 0, keys="mode: shared\nlimits: {hcaHandles: 9, hcaObjects: 30}\n")
    )
    if told == "by the kubelet":
        node.kubelet.give(make_pod(), "main", CLAIM_A, CLAIM_B)
    node.start(annotations={})
    edits = node.create("main", 0, cdi=(CLAIM_A, CLAIM_B) if told == "by the runtime" else ())
    env = dict(edits.env)
    assert (env["NCCL_IB_HCA"], env["UCX_NET_DEVICES"]) == ("=mlx5_0", "mlx5_0:1,lo")
    assert (env["RDMA_DEVICES_CLAIM_A"], env["RDMA_DEVICES_CLAIM_B"]) == ("mlx5_0", "mlx5_0")
    assert edits.rdma_max == ("mlx5_0 hca_handle=4 hca_object=30",)


@pytest.mark.parametrize("is_privileged", [False, True])
def test_the_guards_hook_tells_which_of_two_devices_with_the_same_nodes_a_container_has(
    node: Node, world: World, is_privileged: bool
) -> None:
    """Else the guard would ask for that one, and the other would be attached: the container would never start."""
    node.specify(spec(f"{VENDOR}/nic=another", 0, keys="{mode: shared}"), spec(NIC, 0, keys=MOVE))
    calls, pod = Calls(node), sandbox_message(make_pod())
    calls.run(pod)
    container = container_message("trainer", 0)
    container.hooks.create_runtime.add(path="/x/nri-rdma-hook", args=["nri-rdma-hook", "verify", "--device", NIC])
    if is_privileged:
        container.linux.resources.devices.add(allow=True, access="rwm")
    given = {pair.key for pair in calls.create(pod, container).env}
    assert "RDMA_DEVICES_CLAIM_1" in given
    assert "rail0" not in on_host(world)
    calls.end(pod)
