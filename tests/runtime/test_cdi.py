"""A spec that we generate, in a real containerd: it gives a container the nodes, and no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from nri_rdma.cdi.reading import parse
from nri_rdma.host.cdi.write import write_spec
from tests.rig import private_dev
from tests.rig.containerd import Containerd
from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.deadline import wait_until
from tests.rig.expect import assert_no_nodes
from tests.rig.node import Node, load
from tests.rig.systree import build_tree
from tests.unit.commands.cli.program import nri_rdma

pytestmark = [pytest.mark.root, pytest.mark.runtime]

NIC = "rdma.noderesource.dev/nic="


class WithNodes(Containerd):
    """A containerd that has a folder of the test as /dev/infiniband, whatever this machine has there."""

    @property
    def nodes(self) -> Path:
        """That folder."""
        return self.work / "infiniband"

    def command(self) -> tuple[str, ...]:
        return private_dev.wrapped(self.nodes, super().command())


@pytest.fixture(scope="module")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithNodes]:
    """The runtime of this module."""
    runtime = WithNodes(tmp_path_factory.mktemp("with-nodes"))
    runtime.nodes.mkdir()
    with runtime:
        yield runtime


@pytest.fixture
def cri(containerd: WithNodes) -> Iterator[Cri]:
    """Its CRI; what a test leaves of pods is removed after it."""
    yield containerd.cri
    for pod in containerd.cri.pods():
        containerd.cri.delete_pod(pod)


@pytest.fixture
def folder(containerd: WithNodes) -> Path:
    """What containerd has as /dev/infiniband."""
    return containerd.nodes


@pytest.fixture
def nodes(folder: Path) -> Iterator[Node]:
    """The character devices of the node "eight" where the runtime looks for them."""
    node = load("eight")
    for device in node.char_devices:
        make(folder / device.name, device.major, device.minor)
    yield node
    for path in folder.iterdir():
        path.unlink()


@pytest.fixture
def generated(containerd: WithNodes, nodes: Node, tmp_path: Path) -> Iterator[Path]:
    """The spec of that node, where containerd reads specs."""
    build_tree(nodes, tmp_path / "sys")
    done = nri_rdma("cdi", "generate", "--sysfs-root", tmp_path / "sys", "--output", containerd.cdi_dir)
    assert done.returncode == 0, done.stderr
    (path,) = containerd.cdi_dir.iterdir()
    yield path
    path.unlink()


def make(path: Path, major: int, minor: int) -> None:
    os.mknod(path, 0o020666, os.makedev(major, minor))


def run(cri: Cri, pod: Sandbox, name: str, *devices: str) -> Container:
    """A container with these CDI devices of ours."""
    container = cri.create_container(pod, name, cdi_devices=[f"{NIC}{device}" for device in devices])
    cri.start(container)
    return container


def numbers(cri: Cri, container: Container) -> dict[str, str]:
    """The nodes that the container has in /dev/infiniband, with major:minor."""
    told = cri.exec(container, ["/bin/sh", "-c", "cd /dev/infiniband && stat -c '%n %t %T' *"]).stdout
    return {name: f"{int(major, 16)}:{int(minor, 16)}" for name, major, minor in map(str.split, told.splitlines())}


def test_a_container_has_the_nodes_of_the_devices_it_asks_for_and_another_has_none(
    cri: Cri, generated: Path, nodes: Node
) -> None:
    expected = {device.name: device.dev for device in nodes.char_devices}
    pod = cri.run_pod("cdi")
    one = run(cri, pod, "one", "mlx5_2")
    two = run(cri, pod, "two", "mlx5_2", "mlx5_5")
    none = run(cri, pod, "none")
    assert numbers(cri, one) == {name: expected[name] for name in ("rdma_cm", "uverbs2")}
    assert numbers(cri, two) == {name: expected[name] for name in ("rdma_cm", "uverbs2", "uverbs5")}
    assert_no_nodes(cri, none)


def test_a_node_may_be_opened_and_another_of_the_same_driver_may_not(cri: Cri, generated: Path, nodes: Node) -> None:
    """No driver is behind the nodes here: what is allowed fails later, and with other words."""
    other = next(device for device in nodes.char_devices if device.name == "uverbs3")
    container = run(cri, cri.run_pod("opened"), "main", "mlx5_2")
    script = (
        f"mknod /tmp/other c {other.major} {other.minor}; exec 2>&1; "
        "(: <>/dev/infiniband/uverbs2); (: <>/dev/infiniband/rdma_cm); (: <>/tmp/other)"
    )
    told = cri.exec(container, ["/bin/sh", "-c", script]).stdout.splitlines()
    assert ["Operation not permitted" in line for line in told] == [False, False, True], told


def test_a_device_that_has_another_number_comes_with_that_once_the_spec_is_written_anew(
    cri: Cri, folder: Path, generated: Path
) -> None:
    """As after its return from a network namespace. containerd looks at the host's node at the first injection, and
    remembers the number until a file of the folder changes: the library fills it into the spec that it keeps."""
    pod = cri.run_pod("moved")
    assert numbers(cri, run(cri, pod, "before", "mlx5_2"))["uverbs2"] != "231:250"
    (folder / "uverbs2").unlink()
    make(folder / "uverbs2", 231, 250)
    remembered = numbers(cri, run(cri, pod, "remembered", "mlx5_2"))["uverbs2"]
    assert remembered != "231:250", "containerd looks each time by now: docs/cdi.md says it does not"

    write_spec(parse(generated.read_bytes(), str(generated)), generated.parent, generated.name)
    names = (f"after-{number}" for number in count())
    wait_until(
        lambda: numbers(cri, run(cri, pod, next(names), "mlx5_2"))["uverbs2"] == "231:250",
        "containerd to see that the file was written",
    )


def test_a_device_that_is_gone_is_refused_not_left_out(cri: Cri, folder: Path, generated: Path) -> None:
    (folder / "uverbs2").unlink()
    pod = cri.run_pod("gone")
    with pytest.raises(CriError, match="/dev/infiniband/uverbs2"):
        run(cri, pod, "main", "mlx5_2")
    (folder / "uverbs2").touch()
    with pytest.raises(CriError, match="not a device node"):
        run(cri, pod, "main", "mlx5_2")
