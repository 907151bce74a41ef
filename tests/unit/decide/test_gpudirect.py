"""Whether GPUDirect RDMA is possible: by which way, what each lacks, and where GPUs and NICs meet."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nri_rdma.decide.gpudirect import fix, gpudirect, sentence
from nri_rdma.model.device import Gpu, RdmaDevice
from nri_rdma.model.gpudirect import GpuDirect, GpuDirectFacts, NvidiaDriver, Verdict
from tests.unit.model.hardware import gpu, nic

POSSIBLE, NOT_POSSIBLE, UNKNOWN = Verdict
OPEN = NvidiaDriver(release=580, is_open=True)
NVIDIA, AMD = "10de", "1002"
ON: Mapping[str, bool] = {"DMA_SHARED_BUFFER": True, "INFINIBAND_USER_MEM": True, "PCI_P2PDMA": True}
FULL = GpuDirectFacts(
    modules=frozenset({"nvidia", "nvidia_peermem", "amdgpu"}),
    peer_clients=frozenset({"amdkfd"}),
    nvidia=OPEN,
    options={**ON, "DMABUF_MOVE_NOTIFY": True},
    has_gdrdrv=True,
)
NO_PEERS = replace(FULL, modules=FULL.modules - {"nvidia_peermem"}, peer_clients=frozenset())
ROOT, UP, DOWN = "pci0000:17", ("0000:17:01.0", "0000:18:00.0"), ("0000:19:00.0", "0000:19:01.0")


def _gpu(vendor: str = NVIDIA) -> Gpu:
    made = gpu(0)
    return replace(made, vendor=vendor, pci_root=ROOT, pci_path=(*UP, DOWN[0], str(made.pci)))


def _nic() -> RdmaDevice:
    made = nic(0)
    return replace(made, pci_root=ROOT, pci_path=(*UP, DOWN[1], str(made.pci)))


def _of(facts: GpuDirectFacts, vendor: str = NVIDIA) -> GpuDirect:
    (found,) = gpudirect([_gpu(vendor)], [_nic()], facts)
    return found


@pytest.mark.parametrize("vendor", [NVIDIA, AMD])
def test_it_is_possible_by_each_way_that_lacks_nothing(vendor: str) -> None:
    assert _of(FULL, vendor).verdict is POSSIBLE
    assert "by peer memory and by dma-buf, as far as the machine shows" in sentence(_of(FULL, vendor))
    assert "possible for the GPUs of" in sentence(_of(NO_PEERS, vendor))
    assert "by dma-buf, as" in sentence(_of(NO_PEERS, vendor))
    assert fix(_of(NO_PEERS, vendor)) == ""
    without_dmabuf = replace(FULL, options={})
    assert "by peer memory, as" in sentence(_of(without_dmabuf, vendor))


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (NvidiaDriver(release=580, is_open=False), "the proprietary module 580"),
        (NvidiaDriver(release=510, is_open=True), "the open module 510"),
        (NvidiaDriver(release=0, is_open=False), "the proprietary module;"),
    ],
)
def test_nvidia_s_dma_buf_needs_the_open_module_since_515(driver: NvidiaDriver, words: str) -> None:
    found = _of(replace(NO_PEERS, nvidia=driver))
    assert (found.verdict, words in f"{sentence(found)};".replace(")", ";")) == (NOT_POSSIBLE, True)
    assert fix(found) == (
        "`modprobe nvidia_peermem`, which needs the RDMA drivers of DOCA-OFED (MLNX_OFED);"
        " or install the open kernel module of the driver, 515 or newer"
    )


@pytest.mark.parametrize(
    ("facts", "vendor", "words"),
    [
        (replace(FULL, modules=frozenset()), NVIDIA, "(NVIDIA's driver is not loaded)"),
        (replace(FULL, modules=frozenset()), AMD, "(AMD's driver is not loaded)"),
        (replace(FULL, nvidia_denies=True), NVIDIA, "(NVIDIA's driver denies it (GrdmaPciTopoCheckOverride is 2))"),
    ],
)
def test_a_driver_that_is_not_there_or_denies_it_closes_both_ways_and_is_said_once(
    facts: GpuDirectFacts, vendor: str, words: str
) -> None:
    found = _of(facts, vendor)
    assert (found.verdict, words in sentence(found)) == (NOT_POSSIBLE, True)
    assert "; or" not in fix(found)


@pytest.mark.parametrize("option", ["DMA_SHARED_BUFFER", "INFINIBAND_USER_MEM"])
@pytest.mark.parametrize("vendor", [NVIDIA, AMD])
def test_a_kernel_without_dma_buf_or_without_users_memory_closes_that_way(vendor: str, option: str) -> None:
    found = _of(replace(NO_PEERS, options={**ON, option: False}), vendor)
    assert (found.verdict, f"without CONFIG_{option}" in sentence(found)) == (NOT_POSSIBLE, True)


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({**ON, "DMABUF_MOVE_NOTIFY": False}, NOT_POSSIBLE),
        ({**ON, "PCI_P2PDMA": False, "DMABUF_MOVE_NOTIFY": True}, NOT_POSSIBLE),
        ({**ON, "DMABUF_MOVE_NOTIFY": True}, POSSIBLE),
        (ON, POSSIBLE),  # Linux 7.1 and newer
        (None, UNKNOWN),
    ],
)
def test_amd_s_dma_buf_needs_two_options_more(options: Mapping[str, bool] | None, verdict: Verdict) -> None:
    assert _of(replace(NO_PEERS, options=options), AMD).verdict is verdict


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(NO_PEERS, options=None), "the kernel's configuration cannot be read here"),
        (replace(NO_PEERS, nvidia=None), "does not say here whether it is the open module"),
        (replace(NO_PEERS, options={**ON, "PCI_P2PDMA": False}), "does not know which PCIe paths carry peer traffic"),
        (
            replace(FULL, nvidia=replace(OPEN, is_open=False), iommu={_gpu().pci: "DMA-FQ"}),
            "the IOMMU translates the addresses of 0001:10:00.0 (type DMA-FQ)",
        ),
    ],
)
def test_what_cannot_be_seen_or_is_not_certain_is_said_to_be_so(facts: GpuDirectFacts, words: str) -> None:
    found = _of(facts)
    assert (found.verdict, words in sentence(found), fix(found) != "") == (UNKNOWN, True, True)


def test_an_iommu_that_passes_addresses_through_is_no_doubt() -> None:
    assert _of(replace(FULL, options={}, iommu={_gpu().pci: "identity"})).verdict is POSSIBLE


def test_a_gpu_and_its_nearest_nic_are_named_with_the_bridge_where_they_meet() -> None:
    far = nic(3, root=9)
    (found,) = gpudirect([_gpu()], [far, _nic()], FULL)
    (meeting,) = found.meetings
    assert (meeting.device, meeting.distance, meeting.bridge, found.alone) == ("mlx5_0", "PIX", UP[1], ())
    assert "nearest: 0001:10:00.0 with mlx5_0 below 0000:18:00.0 (PIX)" in sentence(found)
    (found,) = gpudirect([gpu(0)], [nic(0)], FULL)
    assert "nearest: 0001:10:00.0 with mlx5_0 at pci0000:00 (PHB)" in sentence(found)
    (found,) = gpudirect([gpu(0)], [far], FULL)
    assert (found.meetings, "no NIC is below the root complex of 0001:10:00.0" in sentence(found)) == ((), True)


def test_acs_between_them_is_named_with_the_word_of_the_kernel_that_switches_it_off() -> None:
    found = _of(replace(FULL, acs_redirects={DOWN[0]: True, DOWN[1]: False, UP[0]: True}))
    assert (found.verdict, found.redirecting) == (POSSIBLE, (DOWN[0],))
    assert f"ACS of {DOWN[0]} sends what passes there up to the root complex" in sentence(found)
    assert f"pci=disable_acs_redir={DOWN[0]}" in fix(found)
    found = _of(replace(FULL, acs_redirects={DOWN[0]: None, DOWN[1]: False}))
    assert (found.unread, f"only root may read the ACS of {DOWN[0]}" in sentence(found)) == ((DOWN[0],), True)
    assert fix(found) == ""


def test_gdrcopy_is_missed_where_the_rest_is_there() -> None:
    bare = replace(FULL, has_gdrdrv=False)
    assert "/dev/gdrdrv" in sentence(_of(bare))
    assert "/dev/gdrdrv" not in sentence(_of(FULL)) + sentence(_of(bare, AMD))
    assert "/dev/gdrdrv" not in sentence(_of(replace(bare, modules=frozenset())))


def test_nothing_is_said_without_a_gpu_of_a_known_maker_or_a_nic_of_hardware() -> None:
    soft = replace(nic(0), pci=None, pci_root="", pci_path=(), driver="")
    assert gpudirect([_gpu("8086")], [_nic()], FULL) == ()
    assert gpudirect([_gpu()], [soft], FULL) == ()
    assert [it.maker for it in gpudirect(iter([_gpu(), _gpu(AMD)]), [_nic()], FULL)] == ["NVIDIA", "AMD"]
