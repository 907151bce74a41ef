"""Containers' cgroups: where they are, what is written there and what is read."""

import errno
import signal
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, LimitsError
from nri_rdma.host.cgroup import (
    Counted,
    RdmaUse,
    cgroup_of,
    enable_rdma,
    joined_by,
    kill_all,
    memory_max,
    rdma_use,
    read_rdma_use,
    runtime_enables_rdma,
    write_rdma_max,
)

LINES = ("mlx5_0 hca_handle=2 hca_object=max", "mlx5_1 hca_handle=max hca_object=30")
WHERE = "ml/train, container main"


@pytest.mark.parametrize(
    ("cgroups_path", "folder"),
    [
        ("/k8s.io/467f34b0", "k8s.io/467f34b0"),
        ("/kubepods/burstable/pod8d4c//c1/", "kubepods/burstable/pod8d4c/c1"),
        ("/kubepods/crio-467f34b0", "kubepods/crio-467f34b0"),
        (
            "kubepods-besteffort-pod8d4c_7d1e.slice:cri-containerd:467f34b0",
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod8d4c_7d1e.slice"
            "/cri-containerd-467f34b0.scope",
        ),
        ("system.slice:crio:467f34b0", "system.slice/crio-467f34b0.scope"),
        (":cri-containerd:467f34b0", "system.slice/cri-containerd-467f34b0.scope"),
        ("-.slice:cri-containerd:467f34b0", "cri-containerd-467f34b0.scope"),
        ("a.slice:cri-containerd:a-b.slice", "a.slice/a-b.slice"),
    ],
)
def test_a_cgroup_is_where_the_oci_runtime_makes_it(cgroups_path: str, folder: str) -> None:
    assert cgroup_of(cgroups_path) == PurePosixPath(folder)


@pytest.mark.parametrize(
    "cgroups_path",
    [
        *("", "/", "//", "/..", "/a/../b", "/a/./b", "a", "a/b", "../a", "/a\0b"),
        *("a.slice:b", "a.slice:b:c:d", "a:b:c", "-a.slice:b:c", "a--b.slice:b:c", ".slice:b:c"),
        *("../a.slice:b:c", "a.slice:../../b:c", "a.slice:b:../../c", "a.slice:/b:c", "-.slice:a:/../b.slice"),
    ],
)
def test_a_path_that_is_none_or_leaves_the_root_is_refused(cgroups_path: str) -> None:
    with pytest.raises(ValueError, match=r"path|slice"):
        cgroup_of(cgroups_path)


@given(st.text() | st.text(alphabet="/.:-abslice\0"))
def test_no_path_leads_out_of_the_root(cgroups_path: str) -> None:
    try:
        found = cgroup_of(cgroups_path)
    except ValueError:
        return
    assert not found.is_absolute()
    assert found.parts
    assert not {".", ".."} & set(found.parts)


def test_limits_are_read_beside_what_is_used() -> None:
    limits = "mlx5_0 hca_handle=max hca_object=30 \nmlx5_1 hca_handle=2 hca_object=max \n"
    current = "mlx5_0 hca_handle=1 hca_object=4 \nmlx5_1 hca_handle=0 hca_object=0 \n"
    assert rdma_use(limits, current) == (
        RdmaUse(device="mlx5_0", hca_handle=Counted(used=1, limit=None), hca_object=Counted(used=4, limit=30)),
        RdmaUse(device="mlx5_1", hca_handle=Counted(used=0, limit=2), hca_object=Counted(used=0, limit=None)),
    )


def test_resources_of_a_later_kernel_do_not_disturb() -> None:
    (use,) = rdma_use("a hca_handle=1 hca_mr=max:7 hca_object=2", "a hca_handle=0 hca_mr=3 x hca_object=1")
    assert use == RdmaUse(device="a", hca_handle=Counted(used=0, limit=1), hca_object=Counted(used=1, limit=2))


def test_a_device_that_comes_between_the_two_readings_is_left_out() -> None:
    assert rdma_use("", "a hca_handle=0 hca_object=0") == rdma_use("a hca_handle=0 hca_object=0", "") == ()


def test_a_container_that_is_gone_uses_nothing(tmp_path: Path) -> None:
    assert read_rdma_use(tmp_path, "/pod/main") == read_rdma_use(tmp_path, "../pod") == ()


@pytest.mark.parametrize(
    ("cgroups_path", "folder"),
    [
        ("/pod/main", "pod/main"),
        ("a.slice:cri-containerd:c1", "a.slice/cri-containerd-c1.scope"),
        ("a.slice:crio:c1", "a.slice/crio-c1.scope/container"),  # as crun makes it
    ],
)
def test_what_is_written_is_what_is_read(cgroups_path: str, folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "rdma.max").write_text("")
    write_rdma_max(tmp_path, cgroups_path, LINES, WHERE)
    assert (tmp_path / folder / "rdma.max").read_text() == "\n".join([*LINES, ""])
    (tmp_path / folder / "rdma.current").write_text("mlx5_1 hca_handle=1 hca_object=8 \n")
    (use,) = read_rdma_use(tmp_path, cgroups_path)
    assert use == RdmaUse(device="mlx5_1", hca_handle=Counted(used=1, limit=None), hca_object=Counted(used=8, limit=30))


def test_a_cgroup_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    with pytest.raises(LimitsError) as caught:
        write_rdma_max(tmp_path, "/pod", LINES, WHERE)
    assert str(caught.value) == (
        "nri-rdma: LIMITS-NOT-SET: mlx5_0 cannot be limited: No such file or directory,"
        f" {WHERE}, {tmp_path}/pod/rdma.max."
        " Next: the daemon needs the host's cgroups at --cgroup-root, with the rdma controller enabled for the"
        " container's cgroup."
    )
    assert list((tmp_path / "pod").iterdir()) == []


def test_a_path_that_leaves_the_root_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "rdma.max").write_text("")
    with pytest.raises(LimitsError, match="LIMITS-NOT-SET: the runtime names no cgroup") as caught:
        write_rdma_max(tmp_path / "root", "/..", LINES, WHERE)
    assert caught.value.code is ErrorCode.LIMITS_NOT_SET
    assert (tmp_path / "rdma.max").read_text() == ""


# The controller. A real kernel answers in the lab (tests/lab/guest/test_podman.py, test_systemd_podman.py).

PID = 4711
SCOPE = "machine.slice:libpod:c1"


@pytest.fixture
def scope(tmp_path: Path) -> Path:
    """The cgroup of a container as crun has it made: with its process, below cgroups of which the first alone has the
    controller."""
    folder = tmp_path / "machine.slice/libpod-c1.scope/container"
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(f"{PID}\n")
    controls(tmp_path)[0].write_text("cpu memory rdma\n")
    for control in controls(tmp_path)[1:]:
        control.write_text("cpu memory\n")
    return folder


def controls(root: Path) -> list[Path]:
    """What says which controllers the cgroups below get, from the root down."""
    folders = (root, root / "machine.slice", root / "machine.slice/libpod-c1.scope")
    return [folder / "cgroup.subtree_control" for folder in folders]


def test_the_controller_is_enabled_in_the_cgroups_above_that_lack_it(scope: Path, tmp_path: Path) -> None:
    enable_rdma(tmp_path, SCOPE, PID, WHERE)
    assert [control.read_text() for control in controls(tmp_path)] == ["cpu memory rdma\n", "+rdma", "+rdma"]
    assert not (scope / "cgroup.subtree_control").exists(), "the container's own is its own business"


def test_nothing_is_enabled_for_a_cgroup_that_has_the_controller(scope: Path, tmp_path: Path) -> None:
    (scope / "rdma.max").write_text("")
    enable_rdma(tmp_path, SCOPE, PID, WHERE)
    assert [control.read_text() for control in controls(tmp_path)[1:]] == ["cpu memory\n"] * 2


def test_a_container_whose_process_is_elsewhere_is_refused_and_nothing_is_enabled(scope: Path, tmp_path: Path) -> None:
    with pytest.raises(
        LimitsError, match=rf"its process 12 is not in {scope}, .* Next: start it in a cgroup of its own"
    ):
        enable_rdma(tmp_path, SCOPE, 12, WHERE)
    assert [control.read_text() for control in controls(tmp_path)[1:]] == ["cpu memory\n"] * 2


def test_a_container_of_which_no_process_is_known_is_refused_where_none_is_in_its_cgroup(
    scope: Path, tmp_path: Path
) -> None:
    enable_rdma(tmp_path, SCOPE, None, WHERE)
    assert controls(tmp_path)[2].read_text() == "+rdma"
    (scope / "cgroup.procs").write_text("")
    with pytest.raises(LimitsError, match=rf"no process is in {scope}, ") as caught:
        enable_rdma(tmp_path, SCOPE, None, WHERE)
    assert caught.value.errno == errno.ESRCH


def test_all_processes_of_a_scope_are_killed(scope: Path, tmp_path: Path) -> None:
    kill_all(tmp_path, SCOPE)
    assert (scope.parent / "cgroup.kill").read_text() == "1"
    with pytest.raises(ValueError, match="is not below the root"):
        kill_all(tmp_path, "/..")


def test_the_processes_of_a_container_on_cgroup_v1_are_killed_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "devices/kubepods/pod1/abc"
    folder.mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"]) as process:
        (folder / "cgroup.procs").write_text(f"{process.pid}\n0\n")  # 0: one that is not seen from here
        kill_all(tmp_path, "/kubepods/pod1/abc")
        assert process.wait(10) == -signal.SIGKILL


# Which OCI runtime it is shows in the cgroup of the pod's own process.


@pytest.mark.parametrize(
    ("pods", "processes", "has_rdma", "enables"),
    [
        ("pod.slice/cri-containerd-POD.scope", "12\n", True, True),  # runc
        ("pod.slice/cri-containerd-POD.scope", "12\n", False, False),  # runc makes none such
        ("pod.slice/cri-containerd-POD.scope/container", "12\n", False, False),  # crun
        ("pod.slice/cri-containerd-POD.scope", "", True, False),  # CRI-O makes it for a pod without a process
        ("pod.slice/other", "12\n", True, False),  # the pod has no process
    ],
)
def test_an_oci_runtime_that_enables_the_controller_did_so_for_the_pods_process(
    pods: str, processes: str, has_rdma: bool, enables: bool, tmp_path: Path
) -> None:
    folder = tmp_path / pods
    folder.mkdir(parents=True)
    if folder.name == "container":
        (folder.parent / "cgroup.procs").write_text("")
    (folder / "cgroup.procs").write_text(processes)
    if has_rdma:
        (folder / "rdma.max").write_text("")
    assert runtime_enables_rdma(tmp_path, "pod.slice:cri-containerd:c1", "c1", "POD") == enables


def test_so_it_is_where_the_runtime_makes_the_cgroups(tmp_path: Path) -> None:
    for name in ("crio-POD", "crio-OTHER"):
        (tmp_path / "kubepods/pod1" / name).mkdir(parents=True)
        (tmp_path / "kubepods/pod1" / name / "cgroup.procs").write_text("12\n")
    (tmp_path / "kubepods/pod1/crio-POD/rdma.max").write_text("")
    assert runtime_enables_rdma(tmp_path, "/kubepods/pod1/crio-c1", "c1", "POD")
    assert not runtime_enables_rdma(tmp_path, "/kubepods/pod1/crio-c1", "c1", "OTHER")


@pytest.mark.parametrize("cgroups_path", ["/unseen/pod1/c1", "", "/../c1"])
def test_limits_are_left_to_the_runtime_where_nothing_can_be_seen(cgroups_path: str, tmp_path: Path) -> None:
    assert runtime_enables_rdma(tmp_path, cgroups_path, "c1", "POD")


def test_a_container_without_a_cgroup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LimitsError, match="LIMITS-NOT-SET: it has no cgroup of its own"):
        enable_rdma(tmp_path, "", PID, WHERE)


def test_a_controller_that_cannot_be_enabled_is_told_with_its_file(scope: Path, tmp_path: Path) -> None:
    controls(tmp_path)[1].unlink()
    with pytest.raises(LimitsError) as caught:
        enable_rdma(tmp_path, SCOPE, PID, WHERE)
    assert str(caught.value) == (
        "nri-rdma: LIMITS-NOT-SET: the rdma controller cannot be enabled for it: No such file or directory,"
        f" {WHERE}, {controls(tmp_path)[1]}. Next: the daemon needs the host's cgroups (v2) at --cgroup-root."
    )


@pytest.mark.parametrize(
    ("hierarchies", "name", "no_limit"),
    [(("",), "memory.max", "max"), (("devices", "memory"), "memory.limit_in_bytes", "9223372036854771712")],
)
def test_the_lowest_limit_of_memory_holds_a_container(
    hierarchies: tuple[str, ...], name: str, no_limit: str, tmp_path: Path
) -> None:
    for hierarchy in hierarchies:
        (tmp_path / hierarchy / "pod/c1").mkdir(parents=True)
        (tmp_path / hierarchy / "pod/c1/cgroup.procs").write_text("7\n")
    if hierarchies == ("",):
        (tmp_path / "cgroup.controllers").touch()
    joined = joined_by(tmp_path, "/pod/c1", 7)
    assert memory_max(joined, tmp_path) is None
    (tmp_path / hierarchies[-1] / "pod/c1" / name).write_text(f"{no_limit}\n")
    assert memory_max(joined, tmp_path) is None
    (tmp_path / hierarchies[-1] / "pod" / name).write_text("67108864\n")
    assert memory_max(joined, tmp_path) == 67108864
    (tmp_path / hierarchies[-1] / "pod/c1" / name).write_text("134217728\n")
    assert memory_max(joined, tmp_path) == 67108864
