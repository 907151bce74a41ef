"""What a machine shows of GPUDirect RDMA, read from made trees."""

import gzip
from pathlib import Path

import pytest

from nri_rdma.host.gpudirect import read_gpudirect
from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.gpudirect import GpuDirectFacts, NvidiaDriver
from nri_rdma.model.pci import PciAddress
from tests.rig.node import load
from tests.rig.systree import build_tree

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 13\n"
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
CONFIG = "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_INFINIBAND_USER_MEM=m\n# CONFIG_PCI_P2PDMA is not set\nCONFIG_PCI=y\n"
OPTIONS = {"DMA_SHARED_BUFFER": True, "INFINIBAND_USER_MEM": True, "PCI_P2PDMA": False}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_tree(load("switch"), tmp_path / "sys")
    return tmp_path


def _write(root: Path, path: str, content: str | bytes) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def _facts(root: Path) -> GpuDirectFacts:
    found = scan(root / "sys", root / "dev")
    places = {"sysfs_root": root / "sys", "proc_root": root / "proc", "dev_root": root / "dev", "boot": root / "boot"}
    return read_gpudirect(found.gpus, found.devices, **places)


def test_the_bridges_between_gpus_and_nics_are_known_with_their_acs_and_the_types_of_iommu_groups(root: Path) -> None:
    facts = _facts(root)
    bridges = {"0000:19:00.0": False, "0000:19:01.0": False, "0000:19:02.0": False, "0000:19:03.0": True}
    assert facts.acs_redirects == bridges
    assert facts.iommu == {PciAddress(0, bus, 0, 0): "identity" for bus in (0x1A, 0x1B, 0x1C, 0x1D, 0x5E)}


def test_acs_that_is_not_shown_is_not_known_and_a_configuration_without_it_redirects_nothing(root: Path) -> None:
    config = root / "sys/bus/pci/devices/0000:19:03.0/config"
    whole = config.read_bytes()
    for content, redirects in ((whole[:64], None), (whole[:256], False), (whole[:0x100] + bytes(3840), False)):
        config.write_bytes(content)
        assert _facts(root).acs_redirects["0000:19:03.0"] is redirects
    looped = bytearray(whole)
    looped[0x148:0x14C] = (0x100 << 20 | 1 << 16 | 0x0003).to_bytes(4, "little")
    config.write_bytes(looped)
    assert _facts(root).acs_redirects["0000:19:03.0"] is False
    config.unlink()
    assert _facts(root).acs_redirects["0000:19:03.0"] is None


def test_a_machine_that_shows_nothing_lacks_everything_and_its_kernel_s_options_are_not_known(root: Path) -> None:
    facts = _facts(root)
    assert (facts.modules, facts.peer_clients, facts.nvidia, facts.options) == (frozenset(), frozenset(), None, None)
    assert not facts.has_gdrdrv
    assert not facts.nvidia_denies


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (OPEN, NvidiaDriver(release=580, is_open=True)),
        (PROPRIETARY, NvidiaDriver(release=535, is_open=False)),
        ("NVRM version: something else\n", NvidiaDriver(release=0, is_open=False)),
    ],
)
def test_nvidia_s_driver_is_known_by_its_own_words(root: Path, text: str, driver: NvidiaDriver) -> None:
    _write(root, "proc/driver/nvidia/version", text)
    assert _facts(root).nvidia == driver


@pytest.mark.parametrize("value", [0, 2])
def test_a_driver_that_denies_all_access_is_known_by_its_parameter(root: Path, value: int) -> None:
    _write(root, "proc/driver/nvidia/params", f"EnableGpuFirmware: 18\nGrdmaPciTopoCheckOverride: {value}\n")
    assert _facts(root).nvidia_denies is (value == 2)


def test_modules_peer_memory_clients_and_gdrcopy_are_known_by_their_folders(root: Path) -> None:
    for name in ("nvidia", "nvidia_peermem", "ext4"):
        (root / "sys/module" / name).mkdir(parents=True)
    for name in ("sys/kernel/mm/memory_peers/nv_mem", "sys/memory_peers/amdkfd"):
        (root / name).mkdir(parents=True)
    _write(root, "dev/gdrdrv", "")
    facts = _facts(root)
    assert facts.modules == {"nvidia", "nvidia_peermem"}
    assert facts.peer_clients == {"nv_mem", "amdkfd"}
    assert facts.has_gdrdrv


def test_the_kernel_s_options_are_read_from_procfs_else_from_boot(root: Path) -> None:
    _write(root, "proc/sys/kernel/osrelease", "6.12.57+deb13-amd64\n")
    _write(root, "boot/config-6.12.57+deb13-amd64", CONFIG)
    assert _facts(root).options == OPTIONS
    broken = gzip.compress(b"CONFIG_PCI_P2PDMA=y\n")
    _write(root, "proc/config.gz", broken[:-9])
    assert _facts(root).options == OPTIONS
    _write(root, "proc/config.gz", gzip.compress(b"CONFIG_PCI_P2PDMA=y\n"))
    assert _facts(root).options == {"PCI_P2PDMA": True}
