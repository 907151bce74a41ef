"""Which devices are looked at, and how much memory they may register."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_rdma.commands.verify.given import GivenPorts, given, memory_max
from nri_rdma.decide.proof import LEAST_REGISTERED, MOST_REGISTERED, bytes_to_register
from nri_rdma.errors import ProofError

NULL = Path("/dev/null").stat().st_rdev
MIB = 1 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two devices, of which the second has three ports; the node of the first is here, as /dev/null."""
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").symlink_to("/dev/null")
    (tmp_path / "dev/infiniband/uverbs7").touch()
    for number, (name, numbers) in enumerate({"mlx5_0": f"{os.major(NULL)}:{os.minor(NULL)}", "mlx5_1": "0:1"}.items()):
        folder = tmp_path / f"sys/class/infiniband_verbs/uverbs{number}"
        folder.mkdir(parents=True)
        (folder / "dev").write_text(f"{numbers}\n")
        (folder / "ibdev").write_text(f"{name}\n")
    for number, state in enumerate(("1: DOWN", "4: ACTIVE", "4: ACTIVE"), 1):
        folder = tmp_path / f"sys/class/infiniband/mlx5_1/ports/{number}"
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
    return tmp_path


def found(tree: Path, *names: str, **environment: str) -> GivenPorts:
    return given(names, environment, tree / "sys", tree / "dev")


def ports(told: GivenPorts) -> list[tuple[str, int]]:
    return [(it.device, it.port) for it in told.ports]


def test_without_names_the_devices_whose_nodes_are_here_are_looked_at(tree: Path) -> None:
    assert ports(found(tree)) == [("mlx5_0", 1)]


def test_the_pods_variables_count_before_the_nodes(tree: Path) -> None:
    told = found(tree, RDMA_DEVICES_RAILS="mlx5_1,mlx5_0", RDMA_DEVICES_STORAGE="mlx5_1")
    assert ports(told) == [("mlx5_1", 2), ("mlx5_1", 3), ("mlx5_0", 1)]
    assert told.origin == "the variables RDMA_DEVICES_*"


def test_names_that_are_given_count_before_all(tree: Path) -> None:
    assert ports(found(tree, "rxe9", RDMA_DEVICES_RAILS="mlx5_1")) == [("rxe9", 1)]


def test_a_container_without_devices_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ProofError, match="no RDMA device was given to this container"):
        found(tmp_path)


def test_nodes_that_belong_to_no_device_are_named(tree: Path) -> None:
    (tree / "sys/class/infiniband_verbs/uverbs0/dev").write_text("231:199\n")
    with pytest.raises(ProofError, match="no RDMA device of this node has the numbers of uverbs0, uverbs7 in "):
        found(tree)


def test_a_device_that_is_named_needs_no_look_at_the_nodes_of_others(tree: Path) -> None:
    (tree / "sys/class/infiniband_verbs/uverbs1/dev").unlink()  # it is just being removed
    assert ports(found(tree, "mlx5_0")) == [("mlx5_0", 1)]


def test_memory_is_bounded_by_memlock_and_a_quarter_of_the_containers_memory() -> None:
    assert bytes_to_register(None, None) == MOST_REGISTERED
    assert bytes_to_register(None, 40 * MIB) == 10 * MIB
    assert bytes_to_register(8 * MIB, None) == 8 * MIB - (256 << 10)
    assert bytes_to_register(64 << 10, None) == LEAST_REGISTERED


@pytest.mark.parametrize(("text", "most"), [("max\n", None), ("1048576\n", 1048576)])
def test_the_limit_of_memory_is_that_of_the_own_cgroup(tmp_path: Path, text: str, most: int | None) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/main\n")
    (tmp_path / "cgroup/pod/main").mkdir(parents=True)
    (tmp_path / "cgroup/pod/main/memory.max").write_text(text)
    assert memory_max(tmp_path / "proc", tmp_path / "cgroup") == most
    assert memory_max(tmp_path / "none", tmp_path) is None
