"""On a node with eight roots, a pod that names its GPU gets the RDMA device beside it."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.lab.guest import lspci, verbs
from tests.lab.guest.process import Server
from tests.rig.cri import Cri

GPU_OF_FIRST_NODE, GPU_OF_SECOND_NODE = "0000:23:00.0", "0000:73:00.0"


@pytest.mark.machine("eight")
@pytest.mark.parametrize(("gpu", "numa"), [(GPU_OF_FIRST_NODE, 0), (GPU_OF_SECOND_NODE, 1)])
def test_a_pod_opens_the_device_under_the_root_of_its_gpu(cri: Cri, daemon: Server, gpu: str, numa: int) -> None:
    root, _, gpus_numa = lspci.place(f"/sys/bus/pci/devices/{gpu}")
    (near,) = (device for device, place in places().items() if place == (root, gpus_numa))
    assert gpus_numa == numa
    with verbs.pod(cri, "aligned", verbs.asks(f'gpus: ["{gpu}"], mode: shared')) as sandbox:
        container = verbs.start(cri, sandbox, "main")
        nodes = cri.exec(container, ["ls", "/dev/infiniband"]).stdout.split()
        opened = cri.exec(container, ["ibv_devinfo", "-d", near])
    assert [ibdev(node) for node in nodes if node != "rdma_cm"] == [near]
    assert opened.exit_code == 0, opened.stderr
    assert re.search(rf"^hca_id:\s+{near}$", opened.stdout, re.MULTILINE)


def places() -> dict[str, tuple[str, int | None]]:
    """Root and NUMA node of each RDMA device, as its netdev has them."""
    shown = subprocess.run(["rdma", "-j", "link"], capture_output=True, text=True, check=True).stdout
    found = {port["ifname"]: lspci.place(f"/sys/class/net/{port['netdev']}/device") for port in json.loads(shown)}
    return {device: (root, numa) for device, (root, _, numa) in found.items()}


def ibdev(node: str) -> str:
    """The RDMA device of a verbs node."""
    return Path(f"/sys/class/infiniband_verbs/{node}/ibdev").read_text().strip()
