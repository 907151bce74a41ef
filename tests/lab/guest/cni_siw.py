#!/usr/bin/python3 -IS
"""A chained CNI plugin that gives pods called `siw...` a soft iWARP device on their own interface.

It stands for a network operator's driver: the device is in place before the runtime tells NRI of the sandbox.
The device has the pod's name, and goes with the interface.
"""

import json
import os
import subprocess
import sys

VERSIONS = {"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}


def main() -> None:
    command = os.environ["CNI_COMMAND"]
    if command == "VERSION":
        json.dump(VERSIONS, sys.stdout)
    elif command == "ADD":
        words = dict(pair.split("=", 1) for pair in os.environ["CNI_ARGS"].split(";"))
        add(words["K8S_POD_NAME"], os.environ["CNI_NETNS"], os.environ["CNI_IFNAME"])
        json.dump(json.load(sys.stdin)["prevResult"], sys.stdout)


def add(pod: str, namespace: str, interface: str) -> None:
    if pod.startswith("siw"):
        link = ["rdma", "link", "add", pod, "type", "siw", "netdev", interface]
        subprocess.run(["nsenter", f"--net={namespace}", *link], stdout=sys.stderr, check=True)


main()
