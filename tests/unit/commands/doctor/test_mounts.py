"""The doctor compares the mounts of the daemon with those of the runtime: mountinfo as a kernel wrote it."""

import os
import socket

import pytest

from nri_rdma.commands.doctor.mounts import mounts
from nri_rdma.commands.doctor.visit import Visited
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, WARNING, Bench

RUNTIME = 4711
TREE = "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n237 25 0:83 / /run rw,relatime shared:7 - tmpfs t rw\n"
POD_A = "238 237 0:4 net:[4026532872] /run/netns/a rw shared:8 - nsfs nsfs rw\n"
POD_B = "160 237 0:4 net:[4026532638] /run/netns/b rw shared:9 - nsfs nsfs rw\n"
ROOT = "300 299 0:50 / / rw,relatime - overlay overlay rw\n"
PRIVATE = ROOT + "301 300 0:83 /netns /run/netns rw,relatime - tmpfs t rw\n"
FOLLOWING = ROOT + "301 300 0:83 /netns /run/netns rw,relatime master:7 - tmpfs t rw\n"
WITHOUT_LINK = ROOT + "301 300 0:83 /netns /var/run/netns rw,relatime master:7 - tmpfs t rw\n"
SEEN_A = "302 301 0:4 net:[4026532872] /run/netns/a rw master:8 - nsfs nsfs rw\n"


def process(bench: Bench, name: object, mountinfo: str, namespace: int) -> None:
    """A process with mounts, in a mount namespace."""
    bench.write(f"proc/{name}/mountinfo", mountinfo)
    (bench.proc / str(name) / "ns").mkdir(exist_ok=True)
    (bench.proc / str(name) / "ns/mnt").unlink(missing_ok=True)
    (bench.proc / str(name) / "ns/mnt").symlink_to(f"mnt:[{namespace}]")


def finding(bench: Bench, ours: str, theirs: str, *, pid: int = RUNTIME, namespace: int = 2) -> tuple[object, str, str]:
    process(bench, "self", ours, namespace)
    process(bench, RUNTIME, theirs, 1)
    machine = bench.machine
    vars(machine)["runtime"] = Visited(pid=pid)
    found = mounts(machine)
    return found.result, found.found, found.fix


def test_namespaces_that_are_not_seen_are_a_problem_with_the_folder_to_mount(bench: Bench) -> None:
    result, found, fix = finding(bench, PRIVATE + SEEN_A, TREE + POD_A + POD_B)
    assert result is PROBLEM
    assert found == (
        "this process does not see 1 network namespace of the runtime (pid 4711) in /run/netns: pods whose netdev is "
        "to move are refused"
    )
    assert fix == (
        "mount hostPath /run/netns into the daemon's container with mountPropagation: HostToContainer, and start it"
        " again"
    )


@pytest.mark.parametrize("theirs", [TREE, TREE + POD_A])
def test_a_folder_whose_later_mounts_do_not_arrive_is_a_warning_before_any_pod_is_refused(
    bench: Bench, theirs: str
) -> None:
    result, found, fix = finding(bench, PRIVATE + SEEN_A, theirs)
    assert (result, "new pods" in found) == (WARNING, True)
    assert "HostToContainer" in fix


@pytest.mark.parametrize("ours", [FOLLOWING + SEEN_A, WITHOUT_LINK + SEEN_A.replace("/run", "/var/run")])
def test_mounts_that_arrive_are_well(bench: Bench, ours: str) -> None:
    assert finding(bench, ours, TREE + POD_A)[0] is OK
    assert finding(bench, ours.replace("master", "shared"), TREE + POD_A)[0] is OK


def test_a_runtime_whose_own_mounts_propagate_nowhere_reaches_nobody(bench: Bench) -> None:
    assert finding(bench, FOLLOWING, TREE.replace(" shared:7", ""))[0] is WARNING


def test_one_mount_namespace_needs_no_comparison(bench: Bench) -> None:
    result, found, _ = finding(bench, "", "", namespace=1)
    assert (result, "have the same mounts" in found) == (OK, True)


def test_the_daemons_mounts_count_where_one_runs(bench: Bench) -> None:
    with socket.socket(socket.AF_UNIX) as control:
        bench.settings.control_path.parent.mkdir(parents=True, exist_ok=True)
        control.bind(str(bench.settings.control_path))
        control.listen()
        process(bench, os.getpid(), PRIVATE, 3)
        result, found, _ = finding(bench, FOLLOWING + SEEN_A, TREE + POD_A)
    assert result is PROBLEM
    assert found.startswith(f"the daemon (pid {os.getpid()}) does not see 1 network namespace ")


CONTAINER = ROOT.replace("relatime -", "relatime master:1 -") + "310 300 8:1 /x /etc/hosts rw - ext4 sda rw\n"


@pytest.mark.parametrize("pid", [0, RUNTIME + 1])
@pytest.mark.parametrize(
    ("ours", "result", "words"),
    [
        ("", PROBLEM, "the host's /run/netns is not mounted into this container"),
        (PRIVATE + SEEN_A, PROBLEM, "mounts that the runtime makes in /run/netns do not reach this container"),
        (PRIVATE.replace("/run/netns", "/var/run/netns"), PROBLEM, "do not reach this container"),
        (FOLLOWING + SEEN_A, OK, "this container gets the network namespaces"),
        (WITHOUT_LINK, OK, "this container gets the network namespaces"),
        (FOLLOWING + SEEN_A.replace("/run/netns", "/dev/shm/rig"), OK, "this container gets"),
    ],
)
def test_a_container_that_cannot_see_the_runtime_looks_at_its_own_mounts(
    bench: Bench, pid: int, ours: str, result: object, words: str
) -> None:
    found = finding(bench, CONTAINER + ours, TREE, pid=pid)
    assert (found[0], words in found[1]) == (result, True), found
    assert ("mount hostPath /run/netns into" in found[2], "HostToContainer" in found[2]) == (result is PROBLEM,) * 2


def test_a_runtime_that_cannot_be_seen_is_not_compared(bench: Bench) -> None:
    assert finding(bench, PRIVATE, TREE, pid=0)[0] is NA
    assert finding(bench, PRIVATE, TREE, pid=RUNTIME + 1)[0] is NA
