"""A node that only files describe: one RDMA device on a NIC that the machine really has."""

import json
import os
import subprocess
from pathlib import Path

from tests.rig.node import CharDevice, Function, Netdev, Node, Port, RdmaDevice
from tests.rig.systree import build_tree

DEVICE = "mlx5_0"
NUMBER = (231, 250)  # of a minor that no driver here has
_GUID = "0200:5eff:fe00:0001"


def describe(netdev: str) -> Node:
    """The description; the kernel need not have an RDMA subsystem."""
    shown = subprocess.run(["ip", "-j", "link", "show", netdev], capture_output=True, text=True, check=True)
    (link,) = json.loads(shown.stdout)
    place = Path(os.path.realpath(f"/sys/class/net/{netdev}/device")).parts
    address, root = place[-1], next(part for part in place if part.startswith("pci"))
    path = place[place.index(root) + 1 :]
    parents = [root, *path[:-1]]
    functions = tuple(
        Function(
            address=name,
            under=parent,
            pci_class="0x020000" if name == address else "0x060400",
            vendor="0x15b3",
            device="0x1021",
            driver="mlx5_core" if name == address else "pcieport",
        )
        for name, parent in zip(path, parents, strict=True)
    )
    device = RdmaDevice(
        name=DEVICE,
        node_guid=_GUID,
        sys_image_guid=_GUID,
        node_type="1: CA",
        fw_ver="",
        hca_type="",
        node_desc="described",
        function=address,
        uverbs=CharDevice(name="uverbs0", dev=f"{NUMBER[0]}:{NUMBER[1]}"),
        ports=(
            Port(
                number=1, link_layer="Ethernet", state="4: ACTIVE", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)"
            ),
        ),
    )
    return Node(
        name="described",
        summary="one RDMA device on the machine's NIC",
        sockets=1,
        cpus_per_socket=2,
        functions=functions,
        rdma=(device,),
        rdma_cm=CharDevice(name="rdma_cm", dev="10:250"),
        netdevs=(Netdev(name=netdev, mac=link["address"], mtu=link["mtu"], function=address),),
    )


def write(netdev: str, root: Path) -> None:
    """The tree of that description, with the NIC's present number."""
    build_tree(describe(netdev), root, {netdev: int(Path(f"/sys/class/net/{netdev}/ifindex").read_text())})
