"""Draws docs/topology.svg: the node "eight" with pods as docs/topology.md tells of them.

Run `python -m tests.rig.topology_page` after a change of the picture; tests/house/test_topology_page.py fails until
that has been done.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from nri_rdma.commands.picture.positions import drawing_of
from nri_rdma.commands.picture.svg import svg_of
from nri_rdma.commands.picture.view import view_of
from nri_rdma.decide.placement import Holding, Taken
from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.device import Netdev, Node, RdmaNetns
from nri_rdma.model.pci import parse_pci_address
from nri_rdma.model.request import Mode
from tests.rig.node import load
from tests.rig.systree import build_tree

PICTURE = Path(__file__).resolve().parents[2] / "docs/topology.svg"
HELD = {
    "mlx5_0": ("research/llama-pretrain-0", ("0000:18:00.0", "0000:3e:00.0")),
    "mlx5_1": ("research/llama-pretrain-0", ("0000:18:00.0", "0000:3e:00.0")),
    "mlx5_2": ("research/eval", ("0000:61:00.0",)),
    "mlx5_3": ("storage/cache-warmer", ()),
    "mlx5_6": ("research/an-interactive-notebook-of-somebody-7d9f-0", ("0000:80:00.0",)),
}
"""By device: its pod, with that one's GPUs."""
USED = {"mlx5_7": "rail7 has a default route"}


def picture() -> str:
    """The text of the file."""
    node = _node()
    taken: Taken = {
        device.id: frozenset((_holding(*HELD[device.name]),)) for device in node.devices if device.name in HELD
    }
    return svg_of(drawing_of(view_of(node, taken), ("As the daemon (pid 1234) knows it now.",)))


def _node() -> Node:
    with tempfile.TemporaryDirectory() as work:
        build_tree(load("eight"), Path(work))
        found = scan(Path(work), Path(work))
    return Node(
        devices=tuple(
            replace(
                device,
                netdevs=tuple(map(_netdev, found.netdev_names[device.id])),
                in_use=(USED[device.name],) if device.name in USED else (),
            )
            for device in found.devices
        ),
        gpus=found.gpus,
        rdma_cm=found.rdma_cm,
        rdma_netns=RdmaNetns.SHARED,
        rdma_cgroup=True,
    )


def _netdev(name: str) -> Netdev:
    return Netdev(name=name, ifindex=1, mac="", mtu=9000, up=True)


def _holding(pod: str, gpus: tuple[str, ...]) -> Holding:
    addresses = (parse_pci_address(text) for text in gpus)
    return Holding(owner=pod, mode=Mode.EXCLUSIVE, gpus=frozenset(it for it in addresses if it is not None))


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="ascii")
    sys.stdout.write(f"{PICTURE.name}\n")
