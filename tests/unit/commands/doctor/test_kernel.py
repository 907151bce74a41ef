"""The doctor on the kernel: its release, privileges, the RDMA network namespace mode and the cgroup hierarchy."""

from dataclasses import replace
from pathlib import Path

from nri_rdma.commands.doctor import kernel
from nri_rdma.commands.doctor.finding import Finding
from nri_rdma.model.device import RdmaNetns
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode
from tests.unit.commands.doctor.bench import NA, NET_ADMIN_ONLY, NO_CAPABILITY, OK, PROBLEM, WARNING, Bench


def test_the_kernels_release(bench: Bench) -> None:
    assert bench.finds(kernel.release).result is OK
    bench.write("proc/sys/kernel/osrelease", "5.10.0-32-amd64\n")
    found = bench.finds(kernel.release)
    assert (found.result, "5.14" in found.found) == (PROBLEM, True)
    (bench.proc / "sys/kernel/osrelease").unlink()
    assert bench.finds(kernel.release).result is NA


def test_roots_missing_capability_is_a_problem_and_another_users_is_not_applicable(bench: Bench) -> None:
    assert bench.finds(kernel.privileges).result is OK
    bench.capabilities(NET_ADMIN_ONLY)
    found = bench.finds(kernel.privileges)
    assert (found.result, found.found.startswith("CAP_SYS_ADMIN is missing")) == (PROBLEM, True)
    bench.user = 1000
    bench.capabilities(NO_CAPABILITY)
    found = bench.finds(kernel.privileges)
    assert (found.result, found.found.startswith("this user is not root")) == (NA, True)


def test_sysctls_that_cannot_be_written_are_a_problem(bench: Bench) -> None:
    bench.writable_net = Path("/proc/sys/net")
    assert bench.finds(kernel.sysctls).found == "/proc/sys/net takes writes"
    bench.writable_net = Path("/proc/self/fd/9/sys/net")
    found = bench.finds(kernel.sysctls)
    assert (found.result, "a procfs of its own" in found.found) == (OK, True)
    bench.writable_net = None
    found = bench.finds(kernel.sysctls)
    assert (found.result, "fsmount" in found.fix) == (PROBLEM, True)
    (bench.proc / "sys").rename(bench.proc / "gone")
    assert bench.finds(kernel.sysctls).found == f"no procfs is at {bench.proc}: the daemon does not start"
    bench.user = 1000
    assert bench.finds(kernel.sysctls).result is NA


def test_what_the_rdma_netns_mode_means_is_told(bench: Bench) -> None:
    found = bench.finds(kernel.rdma_netns)
    assert (found.result, "isolation soft" in found.found) == (OK, True)
    bench.change_node(rdma_netns=RdmaNetns.EXCLUSIVE)
    found = bench.finds(kernel.rdma_netns)
    assert (found.result, "mode shared" in found.found) == (WARNING, True)
    bench.settings = replace(
        bench.settings, allow_default_pool=False, pools=(Pool(name="gold", modes=(Mode.EXCLUSIVE,)),)
    )
    found = bench.finds(kernel.rdma_netns)
    assert (found.result, "isolation hard" in found.found) == (OK, True)


def test_a_kernel_without_rdma_is_a_problem_and_one_that_hides_its_mode_a_warning(bench: Bench) -> None:
    bench.change_node(rdma_netns=RdmaNetns.NONE)
    assert bench.finds(kernel.rdma_netns).result is WARNING
    bench.change_node(devices=())
    found = bench.finds(kernel.rdma_netns)
    assert (found.result, "modprobe" in found.fix) == (PROBLEM, True)


def test_a_hierarchy_that_cannot_limit_is_a_warning(bench: Bench) -> None:
    assert bench.finds(kernel.rdma_cgroup) == Finding(
        check="rdma cgroup", result=OK, found="v2, with the rdma controller"
    )
    bench.write("cgroup/cgroup.controllers", "cpu memory\n")
    assert "no rdma controller" in bench.finds(kernel.rdma_cgroup).found
    (bench.cgroup / "cgroup.controllers").unlink()
    found = bench.finds(kernel.rdma_cgroup)
    assert (found.result, "no unified (v2) hierarchy" in found.found) == (WARNING, True)


def test_a_kernel_that_keeps_limits_of_removed_cgroups_is_told_by_its_missing_rdma_peak(bench: Bench) -> None:
    bench.write("cgroup/system.slice/rdma.max", "")
    assert "keeps limits of a removed cgroup" in bench.finds(kernel.rdma_cgroup).found
    bench.write("cgroup/system.slice/rdma.peak", "")
    assert "keeps limits" not in bench.finds(kernel.rdma_cgroup).found
