"""What only podman has, for containers that ask by annotations: conmon, `podman init`, pods, rootless containers."""

import os
import signal

import pytest

from tests.oci.host import Podman
from tests.oci.image import IMAGE
from tests.oci.test_annotations import FIFTH, SLEEP, asks, in_container, wait_home
from tests.oci.test_podman import has_sentence
from tests.rig.daemon import Daemon
from tests.rig.expect import host_link

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("installed")]


@pytest.mark.parametrize("victims", [("init",), ("conmon", "init"), ("init", "conmon")], ids="-".join)
def test_a_killed_container_gives_back(
    host_equal: None, daemon: Daemon, podman: Podman, victims: tuple[str, ...]
) -> None:
    podman.must(*podman.run("-d", "--name", "killed", *asks(podman, [FIFTH]), command=SLEEP))
    state = podman.inspect("killed")["State"]
    pids = {"init": state["Pid"], "conmon": state["ConmonPid"]}
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    wait_home()


def test_a_container_that_is_made_and_removed_leaves_nothing(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    podman.must(*podman.create("--name", "made", *asks(podman, [FIFTH])))
    assert host_link("rail5") is not None, "to create asks for nothing"
    podman.must("init", "made")
    assert host_link("rail5") is None
    podman.must("rm", "made")
    wait_home()


def test_explain_says_what_a_container_gets_before_it_starts_and_what_it_has(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    podman.must(*podman.create("--name", "told", *asks(podman, [FIFTH])))
    before = podman.host.nri_rdma("explain", "--podman", "told")
    assert before.returncode == 0, before.stderr
    assert ": gets 1 device" in before.stdout
    assert "GIVEN" in next(line for line in before.stdout.splitlines() if " mlx5_5 " in line)
    podman.must("init", "told")
    assert host_link("rail5") is None
    assert "It holds mlx5_5 now" in podman.host.nri_rdma("explain", "--podman", "told").stdout
    podman.must("rm", "told")
    wait_home()


def test_the_containers_of_a_pod_share_a_netdev_and_it_comes_home(
    host_equal: None, daemon: Daemon, podman: Podman
) -> None:
    infra = ("--infra-image", IMAGE, "--infra-command", "/bin/sleep 1000")
    podman.must("--runtime", podman.oci_runtime, "pod", "create", "--name", "pod", "--network", "none", *infra)
    podman.must(*podman.run("-d", "--pod", "pod", "--name", "one", *asks(podman, [FIFTH]), command=SLEEP, network=""))
    podman.must(*podman.run("-d", "--pod", "pod", "--name", "two", command=SLEEP, network=""))
    fourth = {**FIFTH, "match": {"device": "mlx5_4"}}
    podman.must(
        *podman.run("-d", "--pod", "pod", "--name", "three", *asks(podman, [fourth]), command=SLEEP, network="")
    )
    assert "RDMA_NETDEVS_FAST=rdma1" in podman.must("exec", "three", "cat", "/proc/1/environ")
    for name in ("one", "two", "three"):
        assert {"rdma0", "rdma1"} <= set(in_container(podman, name))
    podman.remove("one")
    wait_home()
    assert ("rdma0" in in_container(podman, "two"), "rdma1" in in_container(podman, "two")) == (False, True)


def test_what_fails_after_it_was_made_is_told_too(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    request = {**FIFTH, "interface": {"name": "eth0"}}  # podman's bridge has that name, which nobody knows before
    done = podman(*podman.run("--rm", *asks(podman, [request]), command=["echo", "it runs"], network="bridge"))
    assert (done.returncode, done.stdout) == (126, "")
    assert has_sentence(podman, done.stderr, "NAME-CONFLICT")


def test_a_container_of_another_user_is_refused(host_equal: None, daemon: Daemon, podman: Podman) -> None:
    host = podman.host
    home = host.file("/tmp/user")
    home.mkdir(exist_ok=True)
    root = home / "root"
    if not root.exists():
        root.mkdir()
        host.must("tar", "-x", "-f", "/run/files/box.tar", "-C", "/tmp/user/root")
        host.must("chown", "-R", "1000:1000", "/tmp/user")
    become = (
        "setpriv",
        "--reuid=1000",
        "--regid=1000",
        "--clear-groups",
        "env",
        "HOME=/tmp/user",
        "XDG_RUNTIME_DIR=/tmp/user",
    )
    own = ("--root", "/tmp/user/storage", "--runroot", "/tmp/user/run", "--runtime", "crun")
    run = ("podman", *own, "run", "--rm", "--network=none", "--cgroups=disabled", *asks(podman, [FIFTH]))
    done = host.run_command(*become, *run, "--rootfs", "/tmp/user/root", "echo", "it runs")
    assert (done.returncode, done.stdout) == (126, ""), done.stderr
    assert "nri-rdma: PRIVILEGE: " in done.stderr
