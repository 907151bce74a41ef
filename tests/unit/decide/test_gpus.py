"""Which GPUs a container has, by every form in which somebody says so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import ResolvedDevice, SpecFile, resolve
from nri_rdma.decide.gpus import (
    NOBODY_TOLD,
    GpuEvidence,
    GpuNames,
    KnownGpus,
    PodGpus,
    informed,
    is_gpu_resource,
    of_cdi_device,
    of_shown,
    pod_gpus,
)
from nri_rdma.model.allocation import ClaimDevice, ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.device import Gpu
from nri_rdma.model.pci import PciAddress, parse_pci_address
from nri_rdma.model.request import Align, AlignTo, DeviceRequest, Scope

UUIDS = tuple(f"GPU-{number}2345678-1234-1234-1234-123456789abc" for number in range(4))


def _pci(text: str) -> PciAddress:
    address = parse_pci_address(text)
    assert address is not None
    return address


def _gpu(pci: str, vendor: str, *nodes: tuple[str, tuple[int, int]], uuid: str = "") -> Gpu:
    return Gpu(
        pci=_pci(pci),
        pci_root="",
        pci_path=(),
        numa_node=0,
        vendor=vendor,
        uuid=uuid,
        node_names=tuple(name for name, _ in nodes),
        nodes=tuple(number for _, number in nodes),
    )


# Device numbers of NVIDIA's driver are against PCI order here.
N0 = _gpu("0000:18:00.0", "10de", ("nvidia1", (195, 1)), ("card1", (226, 1)), uuid=UUIDS[0])
N1 = _gpu("0000:3e:00.0", "10de", ("nvidia0", (195, 0)), ("card2", (226, 2)), uuid=UUIDS[1])
A0 = _gpu("0000:61:00.0", "1002", ("card3", (226, 3)), ("renderD130", (226, 130)))
I0 = _gpu("0000:80:00.0", "8086", ("card4", (226, 4)), ("renderD131", (226, 131)))
NAMES = GpuNames.of((I0, A0, N1, N0))


@pytest.mark.parametrize(
    ("resource", "device_id", "gpu"),
    [
        ("nvidia.com/gpu", UUIDS[1], N1),
        ("nvidia.com/gpu", UUIDS[1].replace("abc", "ABC"), N1),
        ("nvidia.com/gpu-h800", UUIDS[0], N0),
        ("nvidia.com/gpu.shared", f"{UUIDS[1]}::3", N1),
        ("nvidia.com/gpu", f"{UUIDS[1]}-7", N1),
        ("nvidia.com/gpu", "0", N0),
        ("nvidia.com/gpu", "1", N1),
        ("nvidia.com/mig-1g.10gb", "0:1", N0),
        ("nvidia.com/mig-1g.10gb", f"MIG-{UUIDS[1]}/1/0", N1),
        ("nvidia.com/gpu", "nvidia0", N1),
        ("nvidia.com/gpu", "nvidia0/gi3", N1),
        ("nvidia.com/gpu", "nvidia1/vgpu0", N0),
        ("nvidia.com/gpu", "nvidia1/gi3/vgpu0", N0),
        ("amd.com/gpu", "0000:61:00.0", A0),
        ("amd.com/gpu", "card3", A0),
        ("amd.com/gpu", "renderD130", A0),
        ("gpu.intel.com/i915", "card4-0", I0),
        ("gpu.intel.com/xe", "card4-12", I0),
        ("cloud.example.com/gpu-slice", f"{UUIDS[0]}-_-2", N0),
        ("kubevirt.example.com/passthrough", "0000:3e:00.0", N1),
    ],
)
def test_an_id_of_a_device_plugin_is_a_gpu(resource: str, device_id: str, gpu: Gpu) -> None:
    assert _told(DeviceIds(resource=resource, ids=(device_id,))) == KnownGpus(gpus=(gpu.pci,), source="the kubelet")


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        ("nvidia.com/gpu", "GPU-92345678-1234-1234-1234-123456789abc"),
        ("nvidia.com/gpu", f"{UUIDS[0]}d"),
        ("nvidia.com/gpu", "2"),
        ("nvidia.com/gpu", "nvidia7"),
        ("nvidia.com/gpu", "nvidia"),
        ("nvidia.com/gpu", ""),
        ("nvidia.com/mig-1g.10gb", "MIG-12345678-1234-1234-1234-123456789abc"),
        ("amd.com/gpu", "0000:99:00.0"),
        ("amd.com/gpu", "amdgpu_xcp_1"),
        ("gpu.intel.com/i915", "card40-1"),
    ],
)
def test_an_id_of_a_gpu_resource_that_names_none_of_the_node_is_a_problem(resource: str, device_id: str) -> None:
    known = _told(DeviceIds(resource=resource, ids=(device_id,)))
    assert known.gpus == ()
    assert known.problem == f"{resource} {device_id} of container main is no GPU that this node is known to have"


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        ("rdma/hca_shared", "0"),
        ("rdma/hca_shared", "card3"),
        ("intel.com/sriov", "0000:19:00.0"),
        ("gpu.intel.com/i915_monitoring", "all"),
        ("nvidia.com/sriov_rdma", "1"),
        ("smarter-devices/kvm", "nvidia0"),
    ],
)
def test_ids_of_other_resources_say_nothing(resource: str, device_id: str) -> None:
    assert _allocated(DeviceIds(resource=resource, ids=(device_id,))) == PodGpus()


def test_what_is_known_stays_known_beside_what_is_not() -> None:
    known = _told(DeviceIds(resource="nvidia.com/gpu", ids=("9", UUIDS[1], "8", UUIDS[0])))
    assert known.gpus == (N0.pci, N1.pci)
    assert known.problem == "nvidia.com/gpu 9 and 1 more of container main is no GPU that this node is known to have"


def test_an_index_counts_the_gpus_that_nvidias_driver_serves() -> None:
    """One that is bound to vfio-pci for a virtual machine has no device file, and no index."""
    passed_through = _gpu("0000:01:00.0", "10de")
    names = GpuNames.of((passed_through, N0, N1))
    assert (names.named("0"), names.named("2")) == (N0, None)
    assert GpuNames.of((passed_through,)).named("0") == passed_through  # nobody tells more


@pytest.mark.parametrize(
    ("resource", "is_gpu"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu-h800", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/gpumem", False),
        ("nvidia.com/gpumem-percentage", False),
        ("nvidia.com/gpucores", False),
        ("amd.com/gpumem", False),
        ("amd.com/gpu", True),
        ("gpu.intel.com/xe", True),
        ("gpu.intel.com/xe_monitoring", False),
        ("example.com/nvidia.com/gpu", False),
        ("rdma/rdma_shared_device_a", False),
    ],
)
def test_resources_of_gpus_are_known_by_their_names(resource: str, is_gpu: bool) -> None:
    assert is_gpu_resource(resource) is is_gpu


def _allocated(*resources: DeviceIds, claims: tuple[ClaimDevice, ...] = (), specs: object = None) -> PodGpus:
    container = ContainerAllocation(name="main", resources=resources, claims=claims)
    return pod_gpus(PodAllocation(containers=(container,)), NAMES, _specs() if specs is None else {})


def _told(*resources: DeviceIds, claims: tuple[ClaimDevice, ...] = (), specs: object = None) -> KnownGpus:
    return _allocated(*resources, claims=claims, specs=specs).by_container["main"]


# CDI


def _specs() -> dict[str, ResolvedDevice]:
    devices = [
        _cdi("k8s.gpu.nvidia.com/claim", "c1-gpu-1", {"path": "/dev/nvidia0"}, {"path": "/dev/nvidiactl"}),
        _cdi("vendor.example.com/gpu", "numbered", {"path": "/dev/x", "type": "c", "major": 226, "minor": 130}),
        _cdi("vendor.example.com/gpu", "renamed", {"path": "/dev/accel0", "hostPath": "/dev/dri/card3"}),
        _cdi("vendor.example.com/gpu", "elsewhere", {"path": "/opt/card3"}),
        _cdi("nvidia.com/gpu", "1", {"path": "/dev/nvidia1"}),
        _cdi("nic.example.com/nic", "n1", {"path": "/dev/infiniband/uverbs0"}),
    ]
    return dict(resolve(devices).devices)


def _cdi(kind: str, name: str, *nodes: dict[str, object]) -> SpecFile:
    file = f"/cdi/{kind.replace('/', '-')}-{name}.json"
    document = {
        "cdiVersion": "0.6.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": {"deviceNodes": nodes}}],
    }
    return SpecFile(file=file, priority=0, spec=parse(json.dumps(document).encode(), file))


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("k8s.gpu.nvidia.com/claim=c1-gpu-1", (N1,)),
        ("vendor.example.com/gpu=numbered", (A0,)),
        ("vendor.example.com/gpu=renamed", (A0,)),
        ("vendor.example.com/gpu=elsewhere", ()),
        ("nvidia.com/gpu=1", (N0,)),  # by its node, which is surer than its name
        ("nvidia.com/gpu=0", (N0,)),  # no spec has it
        (f"k8s.device-plugin.nvidia.com/gpu={UUIDS[1]}", (N1,)),
        ("nvidia.com/gpu=all", (N0, N1)),
        ("nvidia.com/gpu=7", ()),
        ("notnvidia.com/gpu=0", ()),
        ("amd.com/gpu=0", ()),
        ("nic.example.com/nic=n1", ()),
        ("no name", ()),
    ],
)
def test_a_cdi_device_is_the_gpus_of_its_nodes_or_of_its_name(name: str, gpus: tuple[Gpu, ...]) -> None:
    assert of_cdi_device(name, NAMES, _specs()) == gpus


def _claim(driver: str, *cdi: str) -> ClaimDevice:
    return ClaimDevice(namespace="ml", claim="c", driver=driver, pool="node", device="gpu-1", cdi_devices=cdi)


def test_a_claim_is_the_gpus_of_its_cdi_devices() -> None:
    claim = _claim("gpu.nvidia.com", "k8s.gpu.nvidia.com/claim=c1-gpu-1")
    assert _told(claims=(claim,)) == KnownGpus(gpus=(N1.pci,), source="the kubelet")


def test_a_claim_of_a_gpu_driver_that_nobody_can_read_is_a_problem() -> None:
    claim = _claim("gpu.nvidia.com", "k8s.gpu.nvidia.com/claim=c1-gpu-1")
    known = _told(claims=(claim,), specs="none")
    assert known.problem == "gpu.nvidia.com gpu-1 of container main is no GPU that this node is known to have"
    assert _allocated(claims=(_claim("nic.example.com", "nic.example.com/nic=n1"),)) == PodGpus()


# A container that is made


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (UUIDS[1], (N1,)),
        (f"{UUIDS[1]},{UUIDS[0]}", (N1, N0)),
        ("0,1", (N0, N1)),
        ("0:2", (N0,)),
        ("GPU-12345678", (N1,)),
        (f"MIG-{UUIDS[0]}/1/0", (N0,)),
    ],
)
def test_visible_devices_name_gpus(visible: str, gpus: tuple[Gpu, ...]) -> None:
    known = of_shown(GpuEvidence(visible=visible), NAMES, {})
    assert known == KnownGpus(gpus=tuple(gpu.pci for gpu in gpus), source="NVIDIA_VISIBLE_DEVICES")


@pytest.mark.parametrize("visible", [None, "", "none", "void", "/var/run/nvidia-container-devices"])
def test_visible_devices_that_name_none_say_nothing(visible: str | None) -> None:
    assert of_shown(GpuEvidence(visible=visible), NAMES, {}) == NOBODY_TOLD


def test_all_visible_devices_may_be_the_word_of_an_image() -> None:
    known = of_shown(GpuEvidence(visible="all"), NAMES, {})
    assert (known.gpus, known.is_default) == ((N0.pci, N1.pci), True)


@pytest.mark.parametrize("visible", ["MIG-12345678-1234-1234-1234-123456789abc", "GPU-", "GPU-x", "12", "0,9"])
def test_a_visible_device_that_the_node_does_not_have_is_a_problem(visible: str) -> None:
    named = visible.rpartition(",")[2]
    known = of_shown(GpuEvidence(visible=visible), NAMES, {})
    assert known.problem == f"NVIDIA_VISIBLE_DEVICES names {named}, no GPU that this node is known to have"


def test_a_beginning_that_two_gpus_share_names_neither() -> None:
    twin = replace(N0, pci=_pci("0000:19:00.0"), uuid=UUIDS[0][:-1] + "0")
    assert GpuNames.of((N0, twin)).abbreviated(UUIDS[0][:12]) is None


def test_cdi_devices_are_surer_than_nodes_and_nodes_than_visible_devices() -> None:
    shown = GpuEvidence(
        nodes=((195, 255), (195, 1), (226, 2)), cdi_devices=("vendor.example.com/gpu=numbered",), visible="1"
    )
    assert of_shown(shown, NAMES, _specs()) == KnownGpus(gpus=(A0.pci,), source="its CDI devices")
    by_nodes = replace(shown, cdi_devices=("nic.example.com/nic=n1",))
    assert of_shown(by_nodes, NAMES, _specs()) == KnownGpus(gpus=(N0.pci, N1.pci), source="its device nodes")
    only_visible = replace(by_nodes, nodes=((195, 255), (10, 58)))
    assert of_shown(only_visible, NAMES, _specs()).gpus == (N1.pci,)


def test_the_nodes_of_a_privileged_container_say_nothing() -> None:
    shown = GpuEvidence(nodes=((195, 0), (195, 1)), is_privileged=True)
    assert of_shown(shown, NAMES, {}) == NOBODY_TOLD
    assert of_shown(replace(shown, visible=UUIDS[0]), NAMES, {}).gpus == (N0.pci,)


# What a request knows by it

STRICT = Align(to=AlignTo.GPU, strict=True)
PLAIN = DeviceRequest(name="0", where="pod[0]")
BOTH = PodGpus(
    by_container={
        "a": KnownGpus(gpus=(N1.pci,), source="the kubelet"),
        "b": KnownGpus(gpus=(N0.pci, N1.pci), source="the kubelet"),
    }
)
LATE = PodGpus(unanswered="no answer (KUBELET-LATE)")
UNKNOWN = PodGpus(unanswered="the kubelet does not know this pod", is_unknown_pod=True)


def _gpus(request: DeviceRequest, told: PodGpus | None) -> tuple[tuple[PciAddress, ...], str, str]:
    found = informed(request, told)
    return found.gpus, found.gpus_from, found.gpus_problem


def test_a_request_is_for_the_gpus_of_the_containers_that_it_covers() -> None:
    only_a = replace(PLAIN, scope=Scope(only=frozenset({"a", "sidecar"})))
    assert _gpus(only_a, BOTH) == ((N1.pci,), "the kubelet", "")
    assert _gpus(PLAIN, BOTH) == ((N1.pci, N0.pci), "the kubelet", "")
    assert _gpus(replace(PLAIN, scope=Scope(but=frozenset({"b"}))), BOTH) == ((N1.pci,), "the kubelet", "")
    assert _gpus(replace(PLAIN, scope=Scope(only=frozenset({"sidecar"}))), BOTH) == ((), "", "")


def test_a_request_for_some_of_the_pods_gpus_is_for_these() -> None:
    assert _gpus(replace(PLAIN, gpus=(N0.pci,)), BOTH) == ((N0.pci,), "the kubelet", "")


def test_a_variable_that_nobody_needs_so_long_is_not_read() -> None:
    found = of_shown(GpuEvidence(visible="0," * 500_000), NAMES, {})
    assert (found.gpus, found.problem) == ((), "NVIDIA_VISIBLE_DEVICES has 1000000 characters")
    assert of_shown(GpuEvidence(visible="0".ljust(4096)), NAMES, {}).gpus == (N0.pci,)
    assert of_shown(GpuEvidence(visible="0".ljust(4097)), NAMES, {}).gpus == ()


def test_a_request_that_is_not_for_gpus_does_not_change() -> None:
    request = replace(PLAIN, align=Align(to=AlignTo.NONE))
    assert informed(request, BOTH) is request
    assert informed(request, LATE) is request


def test_without_a_kubelet_a_request_knows_what_it_says_itself() -> None:
    request = replace(PLAIN, gpus=(N0.pci,), align=STRICT)
    assert informed(request, None) is request


def test_the_same_gpus_stay_in_the_order_of_the_request() -> None:
    request = replace(PLAIN, gpus=(N0.pci, N1.pci))
    assert _gpus(request, BOTH) == ((N0.pci, N1.pci), "the kubelet", "")


def test_other_gpus_than_the_requests_are_a_contradiction_and_the_kubelets_count() -> None:
    gpus, source, problem = _gpus(replace(PLAIN, gpus=(A0.pci,), scope=Scope(only=frozenset({"a"}))), BOTH)
    assert (gpus, source) == ((N1.pci,), "the kubelet")
    assert problem == "the kubelet says that the pod has GPU 0000:3e:00.0, the request says 0000:61:00.0"


def test_a_kubelet_that_knows_of_no_gpu_leaves_the_requests_own() -> None:
    request = replace(PLAIN, gpus=(A0.pci,))
    assert informed(request, PodGpus()) is request


def test_an_unanswered_question_is_a_problem_of_every_request_for_gpus() -> None:
    for request in (PLAIN, replace(PLAIN, align=STRICT), replace(PLAIN, gpus=(A0.pci,))):
        assert _gpus(request, LATE) == (request.gpus, "", "no answer (KUBELET-LATE)")


def test_a_pod_that_the_kubelet_does_not_know_is_a_problem_of_who_asks_for_gpus_and_names_none() -> None:
    assert informed(PLAIN, UNKNOWN) is PLAIN
    named = replace(PLAIN, align=STRICT, gpus=(A0.pci,))
    assert informed(named, UNKNOWN) is named
    assert _gpus(replace(PLAIN, align=STRICT), UNKNOWN) == ((), "", "the kubelet does not know this pod")


def test_a_gpu_that_nobody_knows_is_a_problem_beside_those_that_are_known() -> None:
    told = PodGpus(by_container={"a": KnownGpus(gpus=(N0.pci,), source="the kubelet", problem="MIG-1 is no GPU")})
    assert _gpus(PLAIN, told) == ((N0.pci,), "the kubelet", "MIG-1 is no GPU")
    nothing = PodGpus(by_container={"a": KnownGpus(problem="MIG-1 is no GPU")})
    assert _gpus(replace(PLAIN, gpus=(A0.pci,)), nothing) == ((A0.pci,), "", "MIG-1 is no GPU")


def test_a_gpu_without_a_uuid_has_no_such_name() -> None:
    gpus = (_gpu("0000:01:00.0", "10de"), _gpu("0000:02:00.0", "10de", uuid=UUIDS[0]))
    assert set(GpuNames.of(gpus).by_uuid) == {UUIDS[0].lower()}
