"""The rig itself: a real containerd, pods, a node on this host, and a comparison that notices."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.namespaces import wrapped
from tests.rig import hoststate, leftovers
from tests.rig.containerd import Containerd, default_oci_spec
from tests.rig.cri import Cri, CriError
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric, FabricError
from tests.rig.node import load
from tests.rig.record import all_records

pytestmark = [pytest.mark.root, pytest.mark.runtime]


def test_a_container_of_a_pod_runs_commands(containerd: Containerd, cri: Cri, host_equal: None) -> None:
    assert cri.version().startswith("containerd ")
    pod = cri.run_pod("web", annotations={"example.com/key": "value"})
    container = cri.run_container(pod, "main", env={"GREETING": "hello"})

    answer = cri.exec(container, ["/bin/sh", "-c", "echo $GREETING; echo trouble >&2; exit 3"])
    status = cri.pod_status(pod)

    assert (answer.stdout, answer.stderr, answer.exit_code) == ("hello\n", "trouble\n", 3)
    assert status.ready
    assert status.annotations == {"example.com/key": "value"}
    assert status.netns is not None
    assert status.netns.exists()
    assert cri.container_status(container).state == "running"
    cri.delete_pod(pod)
    assert cri.pods() == ()
    assert not status.netns.exists()


def test_a_pod_in_the_hosts_network_has_no_namespace_of_its_own(cri: Cri) -> None:
    pod = cri.run_pod("host", host_network=True)
    assert cri.pod_status(pod).netns is None


def test_the_same_request_can_be_sent_again(cri: Cri) -> None:
    pod = cri.run_pod("again", uid="11111111-2222-3333-4444-555555555555")
    first = cri.run_container(pod, "main")
    cri.remove_container(first)
    second = cri.run_container(pod, "main")
    cri.delete_pod(pod)
    repeated = cri.run_pod("again", uid="11111111-2222-3333-4444-555555555555")

    assert first.id != second.id
    assert repeated.config == pod.config


def test_an_error_carries_the_runtimes_text(cri: Cri) -> None:
    pod = cri.run_pod("broken")
    container = cri.create_container(pod, "main", ["/no/such/program"])
    with pytest.raises(CriError) as caught:
        cri.start(container)
    assert "/no/such/program" in caught.value.text
    assert caught.value.code == "UNKNOWN"


def test_a_device_of_the_host_reaches_a_container(cri: Cri) -> None:
    pod = cri.run_pod("device")
    container = cri.run_container(pod, "main", devices=["/dev/zero"])
    assert cri.exec(container, ["stat", "-c", "%t:%T", "/dev/zero"]).stdout == "1:5\n"


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_pods_outlive_their_containerd(containerd: Containerd, cri: Cri, how: str) -> None:
    pod = cri.run_pod("survivor")
    container = cri.run_container(pod, "main")
    old = containerd.pid

    if how == "restart":
        containerd.restart()
    else:
        containerd.kill()
        containerd.start()

    assert containerd.pid != old
    assert pod.id in {it.id for it in containerd.cri.pods()}  # failed sandboxes of earlier tests may be listed too
    assert containerd.cri.exec(container, ["true"]).exit_code == 0
    containerd.cri.delete_pod(pod)


def test_containerd_offers_an_nri_socket(containerd: Containerd) -> None:
    assert containerd.nri_socket.is_socket()
    assert len(os.fsencode(containerd.nri_socket)) <= 107


def test_a_runtime_table_can_be_extended(tmp_path: Path) -> None:
    with Containerd(tmp_path, runtime_toml='pod_annotations = ["example.com/*"]') as containerd:
        pod = containerd.cri.run_pod("annotated", annotations={"example.com/key": "value", "other": "x"})
        spec = containerd.cri.container_status(containerd.cri.run_container(pod, "main")).spec
        assert spec["annotations"]["example.com/key"] == "value"
        assert "other" not in spec["annotations"]
        assert "process" in default_oci_spec(containerd)


@pytest.mark.parametrize("how", ["in order", "after a crash"])
def test_nothing_is_left_after_stop(tmp_path: Path, host_equal: None, how: str) -> None:
    with Containerd(tmp_path) as containerd:
        pod = containerd.cri.run_pod("last")
        containerd.cri.run_container(pod, "main")
        netns = containerd.cri.pod_status(pod).netns
        assert netns is not None
        if how == "after a crash":
            containerd.kill()
    assert not netns.exists()
    _assert_nothing_of(containerd.run)


@pytest.mark.parametrize("own_host", [False, True], ids=["here", "in a part of its own"])
def test_a_killed_test_run_is_cleaned_up_by_the_next_one(tmp_path: Path, host_equal: None, own_host: bool) -> None:
    program = (
        "import os, pathlib\n"
        "from tests.rig.containerd import Containerd\n"
        "from tests.rig.fabric import Fabric\n"
        "from tests.rig.node import load\n"
        f"containerd = Containerd(pathlib.Path({str(tmp_path)!r}))\n"
        "containerd.start()\n"
        "containerd.cri.run_container(containerd.cri.run_pod('orphan'), 'main')\n"
        "fabric = Fabric(load('small'))\n"
        "print(containerd.run, fabric.run, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", program]
    chosen = wrapped(command) if own_host else command
    done = subprocess.run(chosen, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    run, fabric_run = map(Path, done.stdout.split())
    assert run in [record.run for record in all_records()]

    leftovers.sweep()
    with Fabric(load("small")):
        pass

    _assert_nothing_of(run)
    assert not fabric_run.exists()


def test_the_node_on_this_host_is_the_described_one(host_equal: None, eight: Fabric) -> None:
    for netdev in eight.node.netdevs:
        folder = Path("/sys/class/net") / netdev.name
        assert (folder / "address").read_text().strip() == netdev.mac
        assert (folder / "mtu").read_text().strip() == str(netdev.mtu)
        assert (folder / "ifindex").read_text() == (eight.sysfs / "class/net" / netdev.name / "ifindex").read_text()
    for device in eight.node.char_devices:
        node = (eight.dev / "infiniband" / device.name).stat()
        assert stat.S_ISCHR(node.st_mode)
        assert f"{os.major(node.st_rdev)}:{os.minor(node.st_rdev)}" == device.dev
        assert stat.S_IMODE(node.st_mode) == device.mode


def test_links_of_a_node_reach_each_other_from_two_namespaces(
    host_equal: None, eight: Fabric, namespaces: tuple[Path, Path]
) -> None:
    for number, netns in enumerate(namespaces):
        _ip("link", "set", f"rail{4 + number}", "name", "rdma0", "netns", str(netns))
        _ip_in(netns, "address", "add", f"192.88.99.{1 + number}/30", "dev", "rdma0")
        _ip_in(netns, "link", "set", "rdma0", "up")
    # The first packets may be lost while the bridge's ports come up.
    wait_until(
        lambda: (
            _in(namespaces[0], "bash", "-c", "echo >/dev/udp/192.88.99.2/9").returncode == 0
            and "192.88.99.2" in _neighbours_with_address(namespaces[0])
        ),
        "one link to learn the other's address",
    )


def test_a_node_whose_link_names_are_taken_is_refused(host_equal: None) -> None:
    with Fabric(load("small")), pytest.raises(FabricError, match="link name soft0, which link soft0 of this host has"):
        Fabric(load("small"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("link set rail0 mtu 8000",), "link rail0 (index {rail0}): mtu was 9000, is 8000"),
        (("link set rail4 down",), "link rail4 (index {rail4}): operstate was"),
        (("link set rail0 alias other",), "link rail0 (index {rail0}): ifalias was"),
        (("link property del dev rail1 altname enp63s0f0np0",), "link rail1 (index {rail1}): altnames was"),
        (("link set rail5 address 02:00:00:00:00:01",), "link rail5 (index {rail5}): address was"),
        (
            ("link set rail4 down", "link set rail4 name elsewhere"),
            'link rail4 (index {rail4}): ifname was "rail4", is',
        ),
        (("link delete rail6",), "link rail6 (index {rail6}) is gone"),
        (("address delete 198.51.100.6/31 dev rail2",), "address 198.51.100.6/31 of rail2 is gone"),
        (("address add 192.88.99.9/32 dev rail4",), "address 192.88.99.9/32 of rail4 is new"),
        (("neighbour delete 198.51.100.3 dev rail0",), "neighbour 198.51.100.3 of rail0 is gone"),
        (("route add 192.88.99.64/26 dev rail4",), "route 192.88.99.64/26 dev rail4 of table main (IPv4) is new"),
        (
            ("route change 192.88.99.0/25 via 198.51.100.3 metric 50 dev rail0",),
            "route 192.88.99.0/25 via 198.51.100.3 dev rail0 metric 50 of table main (IPv4): metrics was",
        ),
        (("route flush table 2100",), "route 192.88.99.0/24 via 198.51.100.3 dev rail0 of table 2100 (IPv4) is gone"),
        (
            ("-6 route delete 2001:db8:0:200::/56",),
            "route 2001:db8:0:200::/56 via 2001:db8:0:100::1 dev rail0 metric 77 of table main (IPv6) is gone",
        ),
        (("rule add priority 21001 lookup main",), "rule 21001 (IPv4) from all is new"),
    ],
)
def test_a_planted_difference_is_noticed(eight: Fabric, change: tuple[str, ...], sentence: str) -> None:
    indexes = {netdev.name: eight.ifindex(netdev.name) for netdev in eight.node.netdevs}
    before = hoststate.take()
    try:
        for command in change:
            _ip(*command.split())
        found = hoststate.difference(before, hoststate.take())
        assert [it for it in found if it.startswith(sentence.format(**indexes))], found
    finally:
        subprocess.run(["ip", "rule", "delete", "priority", "21001"], capture_output=True, check=False)


def test_the_runtimes_own_links_are_no_difference_but_others_are(cri: Cri, host_equal: None) -> None:
    before = hoststate.take()
    pod = cri.run_pod("quiet")
    cri.run_container(pod, "main")
    assert hoststate.difference(before, hoststate.take()) == []

    _ip("link", "add", "veth0badcafe", "type", "veth", "peer", "name", "planted")
    try:
        assert any("link veth0badcafe" in it for it in hoststate.difference(before, hoststate.take()))
    finally:
        _ip("link", "delete", "veth0badcafe")
    cri.delete_pod(pod)


@pytest.fixture
def namespaces() -> Iterator[tuple[Path, Path]]:
    """Two network namespaces, kept by files of their own."""
    with tempfile.TemporaryDirectory() as folder:
        paths = (Path(folder) / "a", Path(folder) / "b")
        for path in paths:
            path.touch()
            subprocess.run(["unshare", f"--net={path}", "true"], check=True)
        yield paths
        for path in paths:
            subprocess.run(["umount", str(path)], check=True)


def _assert_nothing_of(run: Path) -> None:
    assert not run.exists()
    assert str(run) not in Path("/proc/self/mountinfo").read_text()
    assert list(Path("/sys/fs/cgroup").glob(f"*/{run.name}")) == []
    assert list(Path("/var/lib/cni").glob(f"results/{run.name}-*")) == []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            assert str(run).encode() not in (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _in(netns: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["nsenter", f"--net={netns}", *command], capture_output=True, text=True, check=False)


def _ip_in(netns: Path, *arguments: str) -> None:
    done = _in(netns, "ip", *arguments)
    assert done.returncode == 0, done.stderr


def _neighbours_with_address(netns: Path) -> str:
    return "\n".join(it for it in _in(netns, "ip", "neighbour", "show").stdout.splitlines() if "lladdr" in it)
