"""The root of a container that was made: that of its bundle before it is the process's own, then the process's."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from nri_rdma.host.images import Images
from nri_rdma.model.userspace import Made
from tests.unit.host.test_userspace import HOME, VERBS, put

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in {"x86_64", "aarch64"}, reason="needs openat2"
)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "cgroup", tmp_path / "sys", proc=tmp_path / "proc")


def bundle(tmp_path: Path, root: str, env: list[str]) -> Made:
    """A container whose process 7 still has the host's root."""
    place = tmp_path / "proc/7/root/run/bundle"
    place.mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("0::/kubepods/pod1/ab12\n")
    place.joinpath("config.json").write_text(json.dumps({"root": {"path": root}, "process": {"env": env}}))
    return Made(container_id="ab12", pid=7, bundle="/run/bundle")


@pytest.mark.parametrize("root", ["rootfs", "/run/bundle/rootfs"])
def test_the_bundle_says_where_the_root_is(tmp_path: Path, images: Images, root: str) -> None:
    made = bundle(tmp_path, root, ["PATH=/bin"])
    put(tmp_path / "proc/7/root/run/bundle/rootfs", f"{HOME}/libibverbs.so.1", VERBS)
    assert images.read(made, ()).path == f"{HOME}/libibverbs.so.1"


def test_the_bundle_says_the_library_path(tmp_path: Path, images: Images) -> None:
    made = bundle(tmp_path, "rootfs", ["LD_LIBRARY_PATH=/none", "LD_LIBRARY_PATH=/opt/lib"])
    put(tmp_path / "proc/7/root/run/bundle/rootfs", "/opt/lib/libibverbs.so.1", VERBS)
    assert images.read(made, ()).path == "/opt/lib/libibverbs.so.1"


def test_a_container_that_starts_has_the_root_of_the_first_process_of_its_cgroup(
    tmp_path: Path, images: Images
) -> None:
    put(tmp_path / "proc/9/root", "/opt/lib/libibverbs.so.1", VERBS)
    (tmp_path / "proc/9/cgroup").write_text("0::/pod/main\n")
    (tmp_path / "cgroup/pod/main").mkdir(parents=True)
    (tmp_path / "cgroup/pod/main/cgroup.procs").write_text("9\n10\n")
    made = Made(cgroups_path="/pod/main", library_path="/opt/lib")
    assert images.read(made, ()).path == "/opt/lib/libibverbs.so.1"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Made(pid=8), "the daemon does not see the container's process: "),
        (
            Made(container_id="cd34", pid=7, bundle="/run/bundle"),
            "the container's process is not in the container's cgroup: ",
        ),
        (Made(cgroups_path="/gone"), "the container's root cannot be opened: "),
        (Made(cgroups_path="/elsewhere"), "the daemon does not see the container's process: "),
        (Made(pid=7, bundle="/run/none"), "the container's root cannot be opened: "),
    ],
)
def test_what_cannot_be_seen_is_said(tmp_path: Path, images: Images, made: Made, why: str) -> None:
    bundle(tmp_path, "rootfs", [])
    (tmp_path / "cgroup/elsewhere").mkdir(parents=True)
    (tmp_path / "cgroup/elsewhere/cgroup.procs").write_text("0\n")
    assert images.read(made, ()).unseen.startswith(why)


def test_the_kernel_says_the_version_of_its_interface(tmp_path: Path, images: Images) -> None:
    place = tmp_path / "sys/class/infiniband_verbs/uverbs0"
    place.mkdir(parents=True)
    place.joinpath("abi_version").write_text("6\n")
    assert images.abi("uverbs0") == 6
    assert images.abi("uverbs1") is None
