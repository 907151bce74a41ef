"""The node as lspci, ip, rdma and realpath tell it: what `inventory` is held to, without a line of the product."""

import functools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

LINK_LAYERS = {"ib": "InfiniBand", "roce": "Ethernet", "iwarp": "Ethernet"}


@functools.cache
def functions() -> dict[str, dict[str, str]]:
    """PCI functions by address, in lspci's words."""
    records = (dict(re.findall(r"(\w+):\t(.*)", text)) for text in _run("lspci", "-Dvmmnk").split("\n\n"))
    return {record["Slot"]: record for record in records if record}


def place(device: str) -> tuple[str, list[str], int | None]:
    """Root, bridges with the function, and NUMA node of a device folder of sysfs."""
    root, *path = re.findall(r"(?<=/)(?:pci)?[0-9a-f]{4}:[0-9a-f.:]+", os.path.realpath(device)) or [""]
    numa = functions()[path[-1]].get("NUMANode") if path else None
    return root, path, int(numa) if numa else None


def node() -> dict[str, Any]:
    """RDMA devices by name, and GPUs. The kernel has soft devices in the order in which they came."""
    links = {link["ifname"]: link for link in json.loads(_run("ip", "-j", "-d", "link"))}
    routes = [route for family in ("-4", "-6") for route in json.loads(_run("ip", "-j", family, "route") or "[]")]
    used = {route["dev"] for route in routes if route["dst"] == "default"} | {it.get("link") for it in links.values()}
    used |= {name for name, link in links.items() if "master" in link or "xdp" in link}
    netdevs = {port["ifname"]: links[port["netdev"]] for port in json.loads(_run("rdma", "-j", "link"))}
    devices = json.loads(_run("rdma", "-j", "-d", "dev"))
    gpus = sorted(slot for slot, record in functions().items() if record["Class"] in ("0302", "0380", "1200"))
    described = (_device(it, netdevs[it["ifname"]], netdevs[it["ifname"]]["ifname"] in used) for it in devices)
    return {
        "devices": sorted(described, key=lambda it: it["name"]),
        "gpus": {slot: place(f"/sys/bus/pci/devices/{slot}") for slot in gpus},
    }


def _device(device: dict[str, Any], netdev: dict[str, Any], used: bool) -> dict[str, Any]:
    name, folders = device["ifname"], Path("/sys/class").glob("infiniband_*/[uvi]*")
    nodes = [Path("/dev/infiniband", it.name) for it in folders if (it / "ibdev").read_text().strip() == name]
    own = Path(f"/sys/class/infiniband/{name}/device/driver")
    return {
        "name": name,
        "guid": device["node_guid"],
        "link_layer": LINK_LAYERS[device["protocol"]],
        "driver": own.resolve().name if own.exists() else "",
        "place": place(f"/sys/class/net/{netdev['ifname']}/device"),
        "netdev": (netdev["ifname"], netdev["ifindex"], netdev["address"], netdev["mtu"]),
        "nodes": {str(it): (os.major(it.stat().st_rdev), os.minor(it.stat().st_rdev)) for it in nodes},
        "in_use": used,
    }


def _run(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
