#!/usr/bin/python3 -IS
"""A CNI plugin that makes soft RDMA devices on interfaces inside a pod, as the pod's name asks.

At the end of a chain it takes the pod's interface as it is; alone it makes one that leads nowhere, with an address.

`siw...`: an iWARP device on the pod's interface. `rxe3...`: three RoCE devices, the first on the pod's interface, the
others on veths of their own, with addresses. It stands for a network operator's driver: the devices are in place before
the runtime tells NRI of the sandbox. They are called like the pod, and go with the interfaces.

What the host sees of the RoCE devices at ADD and at DEL is kept in FACTS, for the tests to compare: DEL comes after NRI
has heard that the sandbox stops.

Three times for each pod, imports take longest under emulation (pathlib, subprocess, json 0.2 s each): it has few, and
its facts are Python literals.
"""

# ruff: noqa: PTH103, PTH108, PTH110, PTH123

import os
import sys

# The runtime says DEL twice for every pod, and the second time there is nothing to do.
if os.environ["CNI_COMMAND"] == "DEL":
    asked = os.environ["CNI_ARGS"].partition("K8S_POD_NAME=")[2].partition(";")[0]
    if not asked.startswith("rxe") or os.path.exists(f"/run/lab/cni/{asked}.del"):
        sys.exit()

import time

VERSION = "1.0.0"
VERSIONS = f'{{"cniVersion": "{VERSION}", "supportedVersions": ["0.4.0", "{VERSION}", "1.1.0"]}}'
FACTS = "/run/lab/cni"
DEVICES = "/sys/class/infiniband"
GIDS_SEEN = 8  # of 1024, which take a second to read under emulation
GIDS_EACH = 2  # the default one, and that of the IPv4 address; the kernel fills the table in its own time


def main() -> None:
    command = os.environ["CNI_COMMAND"]
    if command == "VERSION":
        print(VERSIONS)
        return
    words = dict(pair.split("=", 1) for pair in os.environ["CNI_ARGS"].split(";"))
    pod = words["K8S_POD_NAME"]
    if command == "ADD":
        namespace, interface = os.environ["CNI_NETNS"], os.environ["CNI_IFNAME"]
        result = previous_result(sys.stdin.read())
        add(pod, namespace, interface, is_there=bool(result))
        print(result or result_of(namespace, interface))
    elif command == "DEL":
        keep(pod, "del", [seen(name) for name in roce_names(pod)])


def previous_result(configuration: str) -> str:
    """That of the chain; empty where this plugin is alone, which takes no parser to see."""
    if '"prevResult"' not in configuration:
        return ""
    import json

    return json.dumps(json.loads(configuration)["prevResult"])


def add(pod: str, namespace: str, interface: str, *, is_there: bool) -> None:
    names = roce_names(pod)
    if is_there and not names and not pod.startswith("siw"):
        return
    # /sys still is the host's afterwards: its mount decides that.
    os.setns(os.open(namespace, os.O_RDONLY), os.CLONE_NEWNET)  # type: ignore[attr-defined]  # of 3.12; the guest's is newer
    netdevs = [interface, *(f"extra{number}" for number in range(1, len(names)))]
    if missing := [(netdev, number) for number, netdev in enumerate(netdevs) if number or not is_there]:
        tell("ip", *(line for netdev, number in missing for line in made(netdev, number)))
    if pod.startswith("siw"):
        tell("rdma", f"link add {pod} type siw netdev {interface}")
    if names:
        pairs = zip(names, netdevs, strict=True)
        tell("rdma", *(f"link add {name} type rxe netdev {netdev}" for name, netdev in pairs))
        if os.path.exists(f"{FACTS}/{pod}.del"):
            os.unlink(f"{FACTS}/{pod}.del")
        keep(pod, "add", [when_ready(name) for name in names])


def roce_names(pod: str) -> list[str]:
    kind, _, _ = pod.partition("-")
    return [f"{pod}.{number}" for number in range(int(kind[3:]))] if kind.startswith("rxe") else []


def made(netdev: str, number: int) -> list[str]:
    return [
        f"link add {netdev} up type veth peer name {netdev}p",
        f"link set {netdev}p up",
        f"address add {address(number)} dev {netdev}",
    ]


def address(number: int) -> str:
    return f"198.19.{number}.1/24"


def result_of(namespace: str, interface: str) -> str:
    interfaces = f'[{{"name": "{interface}", "sandbox": "{namespace}"}}]'
    ips = f'[{{"address": "{address(0)}", "interface": 0}}]'
    return f'{{"cniVersion": "{VERSION}", "interfaces": {interfaces}, "ips": {ips}}}'


def tell(program: str, *lines: str) -> None:
    read, write = os.pipe()
    os.write(write, "\n".join(lines).encode())  # a pipe holds 64 KiB
    os.close(write)
    redirect = [(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
    child = os.posix_spawnp(program, [program, "-b", "-"], os.environ, file_actions=redirect)
    os.close(read)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(f"{program} ended with {code}; it was told {lines}")


def when_ready(name: str) -> dict[str, object]:
    end = time.monotonic() + 10
    while len((facts := seen(name)).get("gids", [])) < GIDS_EACH and time.monotonic() < end:  # type: ignore[arg-type]  # a list
        time.sleep(0.05)
    return facts


def seen(name: str) -> dict[str, object]:
    """A device as the host's sysfs shows it; nothing but the name where it does not."""
    folder = f"{DEVICES}/{name}"
    if not os.path.exists(folder):
        return {"name": name}
    gids = [
        (gid, text(f"{folder}/ports/1/gid_attrs/ndevs/{number}"))
        for number in range(GIDS_SEEN)
        if (gid := text(f"{folder}/ports/1/gids/{number}")).replace(":", "").strip("0")
    ]
    return {
        "name": name,
        "node_guid": text(f"{folder}/node_guid"),
        "state": text(f"{folder}/ports/1/state"),
        "gids": gids,
    }


def text(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def keep(pod: str, when: str, devices: list[dict[str, object]]) -> None:
    os.makedirs(FACTS, exist_ok=True)
    with open(f"{FACTS}/{pod}.{when}", "w") as file:
        file.write(repr(devices))


main()
