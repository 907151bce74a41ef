"""What a pod gets: one decision, made with what others have at that moment, and reserved in the same step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.cdi.grants import CdiGrant, Origin
from nri_rdma.cdi.meaning import CdiMeaning
from nri_rdma.decide.decision import Decision, MemlockBounds, decide
from nri_rdma.decide.gpus import KnownGpus, PodGpus
from nri_rdma.decide.placement import Holding
from nri_rdma.decide.policy import offer
from nri_rdma.errors import ErrorCode
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.device import LinkLayer, NumaNode, RdmaNetns
from nri_rdma.model.pool import Asker
from nri_rdma.model.request import Align, AlignTo, DeviceRequest, InterfaceConfig, Match, Mode, PodRequest, Scope
from tests.unit.decide.questions import ONE, POLICY, names, question
from tests.unit.model.hardware import eight, gpu_address, nic, node, tied


def test_a_refusal_is_an_answer_and_says_what_was_admitted_before_it() -> None:
    taken = {nic(0).id: frozenset({Holding(owner="ns/other", mode=Mode.EXCLUSIVE)})}
    decision = decide(question(), taken)
    assert decision.refusal is not None
    assert decision.refusal.code is ErrorCode.DEVICES_EXHAUSTED
    assert ([item.request.name for item in decision.admitted], decision.placed) == (["0"], ())


def test_a_limit_that_the_runtime_may_not_set_is_refused_before_anything_is_admitted() -> None:
    asked = DeviceRequest(name="0", where="HERE[0]", count=1, mode=Mode.EXCLUSIVE, memlock=1 << 20)
    decision = decide(question(asked, memlock=MemlockBounds(ceiling=4096)), {})
    assert decision.refusal is not None
    assert (decision.refusal.code, decision.admitted) == (ErrorCode.MEMLOCK_LIMIT, ())


SANDBOXED = replace(POLICY, sandboxed_handlers=("kata*", "runsc"))


@pytest.mark.parametrize("handler", ["kata", "kata-qemu", "runsc"])
def test_a_pod_whose_containers_have_a_kernel_of_their_own_is_refused_before_anything_is_admitted(handler: str) -> None:
    asked = replace(question(), policy=SANDBOXED, asker=Asker(runtime_handler=handler))
    decision = decide(asked, {})
    assert decision.refusal is not None
    assert (decision.refusal.code, decision.admitted) == (ErrorCode.POLICY_HANDLER, ())
    assert f"runtime handler {handler} have a kernel of their own" in str(decision.refusal)
    assert decide(replace(asked, policy=POLICY), {}).refusal is None
    assert decide(replace(asked, request=PodRequest(requests=())), {}).refusal is None


@pytest.mark.parametrize(
    ("adopt", "refusal"),
    [(Adopt.OBSERVE, None), (Adopt.COMPLETE, ErrorCode.POLICY_HANDLER), (Adopt.ENFORCE, ErrorCode.POLICY_HANDLER)],
)
def test_another_drivers_device_is_refused_to_such_a_pod_where_it_would_be_completed(
    adopt: Adopt, refusal: ErrorCode | None
) -> None:
    asked = question()
    meaning = CdiMeaning(name="a.example.com/nic=0", devices=asked.node.devices)
    grant = CdiGrant(container="main", name=meaning.name, origin=Origin.KUBELET, meaning=meaning)
    given = replace(
        asked,
        request=PodRequest(requests=()),
        policy=SANDBOXED,
        asker=Asker(runtime_handler="kata"),
        grants=(grant,),
        adoption=Adoption(others=VendorAdoption(adopt=adopt)),
    )
    decision = decide(given, {})
    assert (decision.refusal and decision.refusal.code) == refusal
    assert decision.placed == ()


def test_the_author_reads_that_the_own_pod_holds_the_device_by_a_claim() -> None:
    asked = question(DeviceRequest(name="0", where="HERE", count=1, mode=Mode.SHARED, match=Match(device="mlx5_0")))
    meaning = CdiMeaning(name="a.example.com/nic=0", devices=asked.node.devices[:1])
    grant = CdiGrant(container="main", name=meaning.name, origin=Origin.KUBELET, meaning=meaning)
    adoption = Adoption(others=VendorAdoption(adopt=Adopt.COMPLETE))
    refusal = decide(replace(asked, grants=(grant,), adoption=adoption), {}).refusal
    assert refusal is not None
    assert f"mlx5_0 is held by pod {asked.owner} (CDI device a.example.com/nic=0)" in refusal.for_author


@pytest.mark.parametrize("handler", ["", "runc", "crun", "nvidia", "my-kata", "runsc-like"])
def test_other_handlers_are_served(handler: str) -> None:
    decision = decide(replace(question(), policy=SANDBOXED, asker=Asker(runtime_handler=handler)), {})
    assert (decision.refusal, names(decision)) == (None, ["mlx5_0"])


def test_a_word_is_narrowed_to_the_containers_that_the_kubelet_gave_devices() -> None:
    word = DeviceRequest(name="0", where="HERE", count=1, mode=Mode.EXCLUSIVE, word=True)
    given = ContainerAllocation(name="main", resources=(DeviceIds(resource="nvidia.com/gpu", ids=("0",)),))
    decision = decide(question(word, allocation=PodAllocation(containers=(given,))), {})
    assert decision.request.requests[0].scope.only == frozenset({"main"})
    assert names(decision) == ["mlx5_0"]


def test_a_reading_helps_where_a_gpu_is_not_known_or_a_device_is_tied() -> None:
    late = PodGpus(unanswered="the kubelet answers too late")
    assert not decide(question(gpus=late), {}).reading_helps
    assert decide(question(gpus=late, allocation=PodAllocation()), {}).reading_helps
    on = node((tied(nic(0)), nic(1)))
    assert decide(question(on=on, has_ties=True), {}).reading_helps
    assert not decide(question(on=on, has_ties=False), {}).reading_helps


IB = replace(nic(0, link_layer=LinkLayer.INFINIBAND), netdevs=(replace(nic(0).netdevs[0], name="ib0", kind="ipoib"),))


@pytest.mark.parametrize("netns", RdmaNetns)
def test_the_netdev_of_ipoib_is_not_moved_where_the_kernel_removes_it_with_the_rdma_device(netns: RdmaNetns) -> None:
    on = replace(node((IB,)), rdma_netns=netns)
    (item,) = decide(question(on=on), {}).placed
    assert [it.name for it in item.devices[0].netdevs] == ([] if netns is RdmaNetns.EXCLUSIVE else ["ib0"])
    configured = decide(question(replace(ONE, interface=InterfaceConfig(mtu=4092)), on=on), {})
    if netns is RdmaNetns.EXCLUSIVE:
        assert configured.refusal is not None
        assert str(configured.refusal).startswith("nri-rdma: INTERFACE-UNFIT: ib0 of mlx5_0 does not go into the pod")
    else:
        assert configured.refusal is None


def test_so_many_devices_for_each_gpu_are_counted_when_the_gpus_are_known() -> None:
    hardware = eight()
    each = DeviceRequest(name="0", where="HERE[0]", count=None, per_gpu=2)
    asked = replace(question(each), node=hardware, offer=offer(POLICY, hardware))
    gpus = {"main": KnownGpus(gpus=(hardware.gpus[0].pci, hardware.gpus[1].pci), source="the kubelet")}
    decision = decide(replace(asked, gpus=PodGpus(by_container=gpus)), {})
    assert (decision.refusal, len(names(decision))) == (None, 4)
    half = {"main": replace(gpus["main"], problem="MIG-1 names no GPU")}
    refusal = decide(replace(asked, gpus=PodGpus(by_container=half)), {}).refusal
    assert refusal is not None
    assert refusal.what == "perGPU counts the GPUs of the containers: MIG-1 names no GPU"
    assert refusal.hint == "write count instead, or name the right GPUs in gpus"
    unknown = decide(asked, {}).refusal
    assert unknown is not None
    assert (unknown.code, unknown.where) == (ErrorCode.NOT_ALIGNED, "HERE[0].perGPU")
    assert unknown.what == "perGPU counts the GPUs of the containers: no GPU is known"
    assert unknown.hint == "give the containers GPUs, name the GPUs in gpus, or write count instead"


TWO_SOCKETS = replace(
    eight(),
    numa_nodes=(NumaNode(number=0, cpus=((0, 15), (32, 47))), NumaNode(number=1, cpus=((16, 31), (48, 63)))),
)


def near_cpus(*cpus: int, strict: bool = True, gpus: PodGpus | None = None) -> Decision:
    """The decision for a pod with a container that has these CPUs alone, beside a sidecar whose CPUs do not count."""
    align = Align(to=AlignTo.NUMA, strict=strict)
    request = replace(ONE, count=2, align=align, scope=Scope(only=frozenset({"main"})))
    main, sidecar = ContainerAllocation(name="main", cpus=cpus), ContainerAllocation(name="sidecar", cpus=(0,))
    told = PodAllocation(containers=(main, sidecar))
    return decide(question(request, on=TWO_SOCKETS, allocation=told, gpus=gpus), {})


@pytest.mark.parametrize(("cpus", "names_of"), [((20, 50), ["mlx5_4", "mlx5_5"]), ((3, 40), ["mlx5_0", "mlx5_1"])])
def test_a_pod_near_a_numa_node_gets_the_devices_of_that_of_its_own_cpus(
    cpus: tuple[int, ...], names_of: list[str]
) -> None:
    decision = near_cpus(*cpus)
    assert names(decision) == names_of
    home = "NUMA node 1" if cpus[0] == 20 else "NUMA node 0"
    assert {reason.partition(": ")[2] for reason in decision.placed[0].reasons} == {f"on {home}, as the pod's CPUs"}


def test_the_gpus_of_a_pod_count_before_its_cpus() -> None:
    known = KnownGpus(gpus=(gpu_address(6),), source="the kubelet")
    assert names(near_cpus(3, gpus=PodGpus(by_container={"main": known}))) == ["mlx5_4", "mlx5_6"]


def test_a_pod_without_cpus_of_its_own_is_near_to_nothing() -> None:
    refusal = near_cpus().refusal
    assert refusal is not None
    assert refusal.code is ErrorCode.NOT_ALIGNED
    assert names(near_cpus(strict=False)) == ["mlx5_0", "mlx5_1"]
