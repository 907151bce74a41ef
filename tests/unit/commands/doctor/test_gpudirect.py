"""The doctor on GPUDirect RDMA, on a made machine with GPUs and NICs below one PCIe switch."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.commands.common.local_node import read_local_node
from nri_rdma.commands.doctor import gpudirect
from nri_rdma.errors import ErrorCode, InventoryError
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.commands.doctor.bench import NA, OK, WARNING, Bench

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)\n"
CONFIG = "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_INFINIBAND_USER_MEM=y\nCONFIG_PCI_P2PDMA=y\n"
SECOND_PORT = "0000:19:03.0"


@pytest.fixture
def switched(bench: Bench) -> Bench:
    """The node "switch", with NVIDIA's open driver and a kernel that has dma-buf."""
    build_tree(load("switch"), bench.folder / "sys")
    bench.settings = replace(bench.settings, sysfs_root=bench.folder / "sys", proc_root=bench.proc)
    bench.node = read_local_node(bench.settings).node
    (bench.folder / "sys/module/nvidia").mkdir(parents=True)
    bench.write("proc/driver/nvidia/version", OPEN)
    bench.write("boot/config-6.12.57+deb13-amd64", CONFIG)
    return bench


def test_possible_with_the_place_where_each_gpu_meets_its_nics(switched: Bench) -> None:
    _config(switched, SECOND_PORT).write_bytes(_config(switched, "0000:19:01.0").read_bytes())
    found = switched.finds(gpudirect.gpudirect)
    assert (found.result, found.found) == (
        OK,
        "possible for the GPUs of NVIDIA by dma-buf, as far as the machine shows; nearest: 0000:1a:00.0 and"
        " 0000:1c:00.0 with mlx5_0 and mlx5_1 below 0000:18:00.0 (PIX); no NIC is below the root complex of"
        " 0000:5e:00.0; without /dev/gdrdrv (GDRCopy) UCX and NVSHMEM are slower with small messages",
    )


def test_acs_on_the_way_is_a_warning_with_the_bridge(switched: Bench) -> None:
    found = switched.finds(gpudirect.gpudirect)
    assert (found.result, f"ACS of {SECOND_PORT} sends" in found.found) == (WARNING, True)
    assert f"pci=disable_acs_redir={SECOND_PORT}" in found.fix


def test_what_is_lacking_is_a_warning_with_the_next_step_for_each_way(switched: Bench) -> None:
    switched.write("proc/driver/nvidia/version", OPEN.replace("Open ", "").replace("580", "535"))
    found = switched.finds(gpudirect.gpudirect)
    assert found.result is WARNING
    assert found.found.startswith(
        "not possible for the GPUs of NVIDIA (peer memory: the module nvidia_peermem is not loaded; dma-buf: NVIDIA's"
        " driver is the proprietary module 535)"
    )
    assert "modprobe nvidia_peermem" in found.fix
    assert "open kernel module" in found.fix
    (switched.folder / "sys/module/nvidia_peermem").mkdir()
    assert switched.finds(gpudirect.gpudirect).found.startswith("possible for the GPUs of NVIDIA by peer memory")


def test_a_kernel_whose_configuration_is_nowhere_is_said_to_be_so(switched: Bench) -> None:
    (switched.folder / "boot/config-6.12.57+deb13-amd64").unlink()
    found = switched.finds(gpudirect.gpudirect)
    assert (found.result, found.found.startswith("cannot be told for the GPUs of NVIDIA")) == (WARNING, True)
    assert "/boot/config-$(uname -r)" in found.fix


def test_without_gpus_or_without_hardware_there_is_nothing_to_say(switched: Bench) -> None:
    switched.change_node(gpus=())
    assert switched.finds(gpudirect.gpudirect).result is NA
    switched.node = InventoryError(ErrorCode.INVENTORY, "there is no sysfs", where="/nowhere", hint="mount it")
    assert switched.finds(gpudirect.gpudirect).result is NA


def _config(bench: Bench, bridge: str) -> Path:
    return bench.folder / "sys/bus/pci/devices" / bridge / "config"
