"""Where a link is: in namespaces that a mount, a process or only an open file keeps alive."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.netnamespaces import places

pytestmark = pytest.mark.root

MAC = "02:00:00:00:77:01"
NOWHERE = "/no-such-cgroup"


@pytest.fixture
def netns(tmp_path: Path) -> Iterator[Path]:
    """A namespace that a mount keeps, with a link of that address."""
    path = tmp_path / "net"
    path.touch()
    subprocess.run(["unshare", f"--net={path}", "true"], check=True)
    add_link(path)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


def add_link(netns: Path) -> None:
    command = ["ip", "link", "add", "name", "there", "address", MAC, "type", "veth", "peer", "name", "beside"]
    subprocess.run(["nsenter", f"--net={netns}", *command], check=True)


def found() -> tuple[int, ...]:
    return places([MAC], cgroup=NOWHERE, pids=[])[MAC]


def test_a_link_is_found_in_the_namespace_of_a_mount_and_nowhere_without_one(netns: Path) -> None:
    assert found() == (netns.stat().st_ino,)
    subprocess.run(["umount", "--lazy", str(netns)], check=True)
    assert found() == ()


def test_a_namespace_that_only_an_open_file_keeps_is_looked_into(netns: Path) -> None:
    number = netns.stat().st_ino
    held = os.open(netns, os.O_RDONLY)
    try:
        subprocess.run(["umount", "--lazy", str(netns)], check=True)
        assert found() == (number,)
    finally:
        os.close(held)


def test_a_second_link_of_the_address_is_a_second_place(netns: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["unshare", "--net", "sleep", "1000"]) as process:
        try:
            other = Path(f"/proc/{process.pid}/ns/net")
            own = Path("/proc/self/ns/net").stat().st_ino
            while other.stat().st_ino == own:
                pass
            add_link(other)
            both = places([MAC], cgroup=NOWHERE, pids=[process.pid])[MAC]
            assert sorted(both) == sorted((netns.stat().st_ino, other.stat().st_ino))
        finally:
            process.kill()
