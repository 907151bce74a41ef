"""What doctor reads of PCI, the kernel and GID tables, on a real kernel's files."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.commands.common.local_node import read_local_node
from nri_rdma.commands.doctor import rails
from nri_rdma.commands.doctor.finding import Result
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.config.settings import Settings
from nri_rdma.decide.gpudirect import gpudirect
from nri_rdma.host.gpudirect import read_gpudirect, redirects_peers
from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.gpudirect import GpuDirect, GpuDirectFacts

SYSFS, DEV = Path("/sys"), Path("/dev")
ROOT_PORT = "0000:10:00.0"  # QEMU's root ports have ACS, its switches have not
ACS_CONTROL = "ECAP_ACS+6.w"
REDIRECT, OFF = "001d", "0000"


@pytest.mark.machine("eight")
def test_acs_is_read_as_setpci_writes_it() -> None:
    config = SYSFS / "bus/pci/devices" / ROOT_PORT / "config"
    before = _setpci(ACS_CONTROL)
    try:
        for value, redirects in ((REDIRECT, True), (OFF, False)):
            _setpci(f"{ACS_CONTROL}={value}")
            assert (_setpci(ACS_CONTROL), redirects_peers(config)) == (value, redirects)
    finally:
        _setpci(f"{ACS_CONTROL}={before}")


@pytest.mark.machine("eight")
def test_each_gpu_meets_the_nic_below_its_switch_and_the_kernel_s_configuration_is_found(
    rdma_devices: tuple[str, ...],
) -> None:
    facts, (found,) = _look()
    assert len({it.bridge for it in found.meetings}) == len(found.meetings) == len(rdma_devices)
    assert (found.alone, found.redirecting, found.unread) == ((), (), ())
    assert facts.options is not None
    assert facts.options["DMA_SHARED_BUFFER"], "every kernel of Debian's has it"


def test_ports_of_soft_roce_have_gids_of_roce_v2(rdma_devices: tuple[str, ...]) -> None:
    settings = Settings()
    found = rails.roce_v2(Machine(settings=settings, read_node=lambda: (read_local_node(settings).node, ())))
    assert (found.result, found.found) == (Result.OK, f"{len(rdma_devices)} port has GIDs of RoCE v2")


def _look() -> tuple[GpuDirectFacts, tuple[GpuDirect, ...]]:
    """What the machine shows, and what would follow if its stand-in GPUs were NVIDIA's and each rxe device were the NIC
    that it is on."""
    found = scan(SYSFS, DEV)
    gpus = [replace(gpu, vendor="10de") for gpu in found.gpus]
    devices = [replace(it, pci=it.pci or gpus[0].pci) for it in found.devices]
    facts = read_gpudirect(gpus, devices)
    return facts, gpudirect(gpus, devices, facts)


def _setpci(register: str) -> str:
    done = subprocess.run(["setpci", "-s", ROOT_PORT, register], capture_output=True, text=True, check=True)
    return done.stdout.strip()
