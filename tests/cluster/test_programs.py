"""A ResourceSlice tells which eBPF programs are on a device's netdev, as DRANET's does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.test_claims import CONFIG, DRIVER, NAMES, slices
from tests.rig import ebpf
from tests.rig.deadline import wait_until
from tests.rig.railnode import in_netns

__all__ = ["CONFIG"]
SEEN_S = 30
"""They are looked for every 10 s."""


@pytest.fixture
def classifier(tmp_path: Path) -> Iterator[Path]:
    """A program that is pinned."""
    subprocess.run(["mount", "-t", "bpf", "bpf", str(tmp_path)], check=True)
    program = ebpf.load("classifier")
    try:
        ebpf.pin(program, str(tmp_path / "classifier"))
        yield tmp_path / "classifier"
    finally:
        os.close(program)
        subprocess.run(["umount", str(tmp_path)], check=True)


def told(cluster: Cluster, number: int) -> dict[str, Any]:
    """What the slice says of the programs on the netdev of that device."""
    (device,) = [it for one in slices(cluster) for it in one["spec"]["devices"] if NAMES[it["name"]] == number]
    attributes = {name.removeprefix(f"{DRIVER}/"): value for name, value in device["attributes"].items()}
    return {name: attributes[name] for name in ("ebpf", "tcFilterNames", "tcxProgramNames") if name in attributes}


def test_programs_of_tcx_and_of_filters_are_attributes_for_as_long_as_they_are_there(
    cluster: Cluster, classifier: Path
) -> None:
    netns = Path(f"/proc/{cluster.nodes['n1'].machine.pid}/ns/net")

    def tc(*words: str) -> None:
        subprocess.run(["nsenter", f"--net={netns}", "tc", *words], check=True)

    wait_until(lambda: len(slices(cluster)) == 1, "the slice", SEEN_S)
    assert [told(cluster, number) for number in (2, 3)] == [{"ebpf": {"bool": False}}] * 2
    program = ebpf.load("handle_ingress")
    ifindex = int(cluster.nodes["n1"].machine.run("cat", "/sys/class/net/rail2/ifindex"))
    in_netns(netns, lambda: ebpf.attach_tcx(ifindex, program))
    tc("qdisc", "add", "dev", "rail3", "clsact")
    tc("filter", "add", "dev", "rail3", "ingress", "bpf", "direct-action", "object-pinned", str(classifier))
    by_tcx = {"ebpf": {"bool": True}, "tcxProgramNames": {"string": "handle_ingress"}}
    wait_until(lambda: told(cluster, 2) == by_tcx, "the program of TCX", SEEN_S)
    wait_until(lambda: told(cluster, 3).keys() == {"ebpf", "tcFilterNames"}, "the filter", SEEN_S)
    assert "classifier" in told(cluster, 3)["tcFilterNames"]["string"]
    assert told(cluster, 4) == {"ebpf": {"bool": False}}
    in_netns(netns, lambda: ebpf.detach_tcx(ifindex, program))
    os.close(program)
    tc("qdisc", "delete", "dev", "rail3", "clsact")
    for number in (2, 3):
        wait_until(lambda: told(cluster, number) == {"ebpf": {"bool": False}}, "no program", SEEN_S)  # noqa: B023
