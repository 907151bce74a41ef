"""The doctor on what a container keeps from the daemon: the host's network, and folders of the runtime and the kubelet.

tests/runtime/test_daemons_container.py runs it in real containers.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.commands.doctor import daemon_container, kernel, runtime, service
from nri_rdma.commands.doctor.visit import Visited
from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, InventoryError
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode
from tests.fakes.runtime import FakeRuntime
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, WARNING, Bench, served

SHARES = Pool(name="shares", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/hca", shares=4)
NICS = Pool(name="nics", modes=(Mode.EXCLUSIVE,), door=PoolDoor.CLAIMS)
KUBELET = "var/lib/kubelet"
FOLDERS = (KUBELET, f"{KUBELET}/plugins", f"{KUBELET}/device-plugins", f"{KUBELET}/pod-resources", "etc/cdi")


@pytest.fixture
def node(bench: Bench) -> Bench:
    """A machine whose pools are asked by a resource and by claims, with a kubelet."""
    kubelet = bench.folder / KUBELET
    for name in ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock", "plugins/x", "plugins_registry/x"):
        bench.write(f"{KUBELET}/{name}", "")
    (bench.etc / "cdi").mkdir(parents=True)
    bench.settings = replace(
        bench.settings,
        allow_default_pool=False,
        pools=(SHARES, NICS),
        guard_hook=bench.write("hook", ""),
        device_plugin_dir=kubelet / "device-plugins",
        kubelet_plugins_dir=kubelet / "plugins",
        kubelet_socket=kubelet / "pod-resources/kubelet.sock",
    )
    return bench


CHECKS = (
    daemon_container.cdi_folder,
    daemon_container.device_plugins,
    daemon_container.claims,
    daemon_container.pod_resources,
)


def test_a_host_with_a_kubelet_is_well(node: Bench) -> None:
    assert [node.finds(check).result for check in CHECKS] == [OK] * 4


def test_a_container_with_all_of_the_hosts_folders_is_well(node: Bench) -> None:
    node.contain(*FOLDERS, "hook", groups="master:7 ")
    assert [node.finds(check).result for check in CHECKS] == [OK] * 4


def test_folders_of_the_image_are_not_the_hosts(node: Bench) -> None:
    node.contain()
    found = [node.finds(check) for check in CHECKS]
    assert [it.result for it in found] == [PROBLEM, PROBLEM, PROBLEM, WARNING]
    kubelet = node.settings.kubelet_plugins_dir.parent
    assert found[0].found == (
        f"the host's {node.etc}/cdi is not mounted into this container: pods with claims of pool nics do not start and"
        " pods that ask for rdma/hca stay Pending"
    )
    assert found[0].fix == f"if the daemon is in a container, mount hostPath {node.etc}/cdi there, writable"
    assert found[1].fix.endswith(f"mount hostPath {kubelet}/device-plugins there, writable")
    assert found[2].fix.endswith(f"hostPath {kubelet} there, writable, with mountPropagation: HostToContainer")
    assert found[3].fix.endswith(f"mount hostPath {kubelet}/pod-resources there, readOnly")


def test_the_kubelets_folder_in_parts_hides_who_has_claims(node: Bench) -> None:
    node.contain(*(it for it in FOLDERS if it != KUBELET))
    found = node.finds(daemon_container.claims)
    assert (found.result, "as a whole" in found.found) == (PROBLEM, True)


def test_the_kubelets_folder_without_propagation_is_a_warning(node: Bench) -> None:
    node.contain(*FOLDERS)
    found = node.finds(daemon_container.claims)
    assert (found.result, "HostToContainer" in found.fix) == (WARNING, True)


def test_folders_that_are_not_there_are_named(node: Bench) -> None:
    shutil.rmtree(node.settings.kubelet_plugins_dir.parent / "plugins_registry")
    shutil.rmtree(node.settings.device_plugin_dir)
    assert (
        "plugins_registry is not there: the kubelet does not find the driver"
        in node.finds(daemon_container.claims).found
    )
    assert (
        "device-plugins is not there: rdma/hca cannot be registered with the kubelet"
        in node.finds(daemon_container.device_plugins).found
    )


def test_a_folder_of_device_plugins_without_the_kubelets_socket_is_a_problem(node: Bench) -> None:
    (node.settings.device_plugin_dir / "kubelet.sock").unlink()
    found = node.finds(daemon_container.device_plugins)
    assert (found.result, found.found.startswith("there is no kubelet.sock in ")) == (PROBLEM, True)


def test_a_hook_that_is_not_the_hosts_is_a_warning(node: Bench) -> None:
    node.contain(*FOLDERS)
    assert "hook is not mounted from the host into this container" in node.finds(daemon_container.device_plugins).found
    node.contain(*FOLDERS, "hook")
    assert node.finds(daemon_container.device_plugins).result is OK
    assert node.settings.guard_hook is not None
    node.settings.guard_hook.unlink()
    found = node.finds(daemon_container.device_plugins)
    assert (found.result, "hook is not there: containers with rdma/hca" in found.found) == (WARNING, True)


def test_a_cdi_folder_that_is_not_there_is_made_where_its_parent_is_a_folder(node: Bench) -> None:
    (node.etc / "cdi").rmdir()
    assert node.finds(daemon_container.cdi_folder).result is OK
    node.settings = replace(node.settings, cdi_dirs=(node.write("file", "") / "cdi",))
    assert node.finds(daemon_container.cdi_folder).result is PROBLEM
    node.user = 1000
    found = node.finds(daemon_container.cdi_folder)
    assert (found.result, found.fix) == (NA, "run `nri-rdma doctor` as root")


def test_only_what_the_configuration_needs_is_looked_for(node: Bench) -> None:
    node.contain()
    node.settings = replace(node.settings, guard_hook=None)
    assert "rdma/hca" not in node.finds(daemon_container.cdi_folder).found
    node.settings = replace(node.settings, pools=())
    assert [node.finds(check).result for check in CHECKS] == [NA, NA, NA, WARNING]
    node.settings = replace(node.settings, guard_resource="rdma.noderesource.dev/guard")
    assert "rdma.noderesource.dev/guard" in node.finds(daemon_container.device_plugins).found


def test_nobody_misses_a_kubelet_on_a_host_that_needs_none(bench: Bench) -> None:
    bench.settings = replace(bench.settings, kubelet_socket=Path("/nowhere/kubelet.sock"))
    assert bench.finds(daemon_container.pod_resources).result is NA


def test_a_container_off_the_hosts_network_is_a_problem(bench: Bench) -> None:
    assert bench.finds(daemon_container.host_network).result is OK
    (bench.proc / "sys/net/core/netdev_max_backlog").unlink()
    assert bench.finds(daemon_container.host_network).result is NA
    bench.contain()
    found = bench.finds(daemon_container.host_network)
    assert (found.result, found.fix) == (PROBLEM, "hostNetwork: true in the daemon's pod")
    assert found.found.startswith(
        "this container is not in the host's network namespace, where the netdevs of mlx5_0, "
    )
    bench.links = frozenset(f"rail{number}" for number in range(8))
    assert bench.finds(daemon_container.host_network).result is NA
    bench.node = InventoryError(ErrorCode.INVENTORY, "no sysfs")
    assert bench.finds(daemon_container.host_network).result is NA


def test_a_container_that_has_only_its_own_cgroup_cannot_limit_others(bench: Bench) -> None:
    bench.contain("cgroup")
    assert bench.finds(kernel.rdma_cgroup).result is OK
    bench.write("cgroup/cgroup.events", "populated 1\n")
    found = bench.finds(kernel.rdma_cgroup)
    assert (found.result, found.fix) == (
        WARNING,
        f"mount hostPath {bench.cgroup} into the daemon's container, writable",
    )
    lines = (bench.proc / "self/mountinfo").read_text()
    bench.write("proc/self/mountinfo", lines.replace(f"/host{bench.cgroup.resolve()}", "/../.."))
    assert bench.finds(kernel.rdma_cgroup).result is OK


def test_a_runtime_whose_folder_is_not_mounted_is_not_told_to_turn_nri_on(bench: Bench) -> None:
    bench.contain()
    found = bench.finds(runtime.nri_socket)
    assert (found.result, found.fix) == (PROBLEM, f"mount hostPath {bench.folder} into the daemon's container")
    bench.settings = Settings(nri_socket=bench.folder / "nri.sock")
    bench.contain("")
    assert "NRI on" in bench.finds(runtime.nri_socket).fix


def test_a_container_that_does_not_see_udev_is_a_warning(bench: Bench) -> None:
    bench.contain()
    found = bench.finds(service.links)
    assert (found.result, found.fix) == (
        WARNING,
        f"mount hostPath {bench.run}/udev into the daemon's container, readOnly",
    )
    bench.contain("run/udev")
    assert bench.finds(service.links).result is OK


def test_a_runtime_in_another_pid_namespace_is_taken_to_lock_any_memory(bench: Bench) -> None:
    bench.contain()
    machine = bench.machine
    vars(machine)["runtime"] = Visited(pid=0)
    assert runtime.memlock(machine).fix == "hostPID: true in the daemon's pod"


def test_a_containerd_whose_folder_is_not_mounted_is_a_warning_with_the_mount(bench: Bench) -> None:
    bench.settings = replace(bench.settings, containerd_socket=bench.folder / "containerd.sock")
    with served(FakeRuntime(bench.settings.nri_socket, version="v2.1.9")):
        bench.contain()
        found = bench.finds(runtime.containerd_socket)
    assert found.result is WARNING
    assert found.fix.startswith(f"mount hostPath {bench.folder} into the daemon's container, or update containerd")
