"""What `nri-rdma explain` shows of manifests."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.unit.commands.cli.manifests import pod, write
from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon

TWO_NEAR_GPUS = """
kind: Pod
metadata:
  name: train-0
  annotations:
    rdma.noderesource.dev/pod: |
      - name: rails
        count: 2
        mode: exclusive
        gpus: ["0000:80:00.0", "0000:be:00.0"]
        containers: [trainer]
        interface: {mtu: 4200, addresses: [[10.0.0.2/24], [10.0.1.2/24]]}
spec:
  containers:
  - name: trainer
    env: [{name: NCCL_IB_HCA, value: mlx5}]
  - name: sidecar
    securityContext: {privileged: true}
"""


def test_it_shows_devices_reasons_netdevs_and_what_each_container_gets(eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", TWO_NEAR_GPUS)
    done = nri_rdma(
        "explain", manifest, "--sysfs-root", eight, "--allow-default-pool", "--state-dir", tmp_path, columns=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "Pod default/train-0: gets 2 devices",
        "  mlx5_3  0000:81:00.0  0     ACTIVE  GIVEN  nearest free device to GPU 0000:80:00.0 (PHB, same root complex)",
        "  mlx5_0  0000:19:00.0  0     ACTIVE  left   free; from GPU 0000:80:00.0 it is NODE, same NUMA node",
        "  mlx5_5  rail5        rdma1       4200  10.0.1.2/24  routes, rules, neighbours",
        "  What they leave on the host is not known: this machine does not show these netdevs.",
        "  nodes     /dev/infiniband/uverbs3  231:195  mode 0666",
        '            RDMA_NETDEVS_RAILS="rdma0,rdma1"',
        "  GID       chosen when the pod has its devices; NCCL_IB_GID_INDEX and others follow from it, see `nri-rdma"
        " status`",
        "  env kept  NCCL_IB_HCA: the container sets it itself",
        "  memlock   unlimited, unless the runtime may not raise its own limit",
        "  note  it is privileged: it sees every device of the host, whatever it is given",
        "  gets  nothing",
    ):
        assert line in done.stdout.splitlines()


def test_it_says_what_is_to_be_proven(eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", pod("[{count: 1, prove: true}]"))
    given = ("--sysfs-root", eight, "--state-dir", tmp_path)
    told = nri_rdma("explain", manifest, *given, columns=160).stdout
    assert "proven before its containers start, which needs the guard" in told
    (document,) = json.loads(nri_rdma("explain", manifest, *given, "-o", "json").stdout)["pods"]
    assert document["requests"][0]["prove"] is True


def podman_with(folder: Path, annotations: Mapping[str, str], network: str = "bridge") -> Mapping[str, str]:
    """An environment with a podman that has the container `trainer`."""
    told = {
        "Id": "0123456789abcdef",
        "Name": "trainer",
        "Config": {"Annotations": dict(annotations)},
        "State": {"Running": False},
        "HostConfig": {"NetworkMode": network},
    }
    answer = f"echo {shlex.quote(json.dumps([told]))}"
    (folder / "podman").write_text(f'#!/bin/sh\n[ "$5" = trainer ] || exit 125\n{answer}\n')
    (folder / "podman").chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_container_of_podman_is_explained_by_its_annotations(eight: Path, tmp_path: Path) -> None:
    asks = '[{"name": "fast", "match": {"device": "mlx5_5"}, "mode": "exclusive"}]'
    podman = podman_with(tmp_path, {"rdma.noderesource.dev/pod": asks})
    given = ("--sysfs-root", eight, "--allow-default-pool", "--state-dir", tmp_path)
    done = nri_rdma("explain", "--podman", "trainer", *given, environment=podman)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Pod oci/0123456789ab: gets 1 device" in done.stdout.splitlines()
    assert 'RDMA_NETDEVS_FAST="rdma0"' in done.stdout
    assert "SOCKET_IFNAME" not in done.stdout, "the container is made before its network"
    podman = podman_with(tmp_path, {"rdma.noderesource.dev/pod": asks}, "host")
    done = nri_rdma("explain", "--podman", "trainer", *given, environment=podman)
    assert (done.returncode, "HOST-NETWORK" in done.stdout) == (1, True)
    assert_one_error(nri_rdma("explain", "--podman", "other", *given, environment=podman), "INSTALL", 1)


@pytest.mark.parametrize("words", [(), ("-", "--podman", "trainer")], ids=["neither", "both"])
def test_it_needs_a_manifest_or_a_container_of_podman(words: Sequence[str]) -> None:
    done = nri_rdma("explain", *words)
    assert done.returncode == 2
    assert "Give a MANIFEST, or --podman CONTAINER." in done.stderr


def test_a_variable_s_value_that_begins_with_an_equals_sign_is_in_quotes(eight: Path, tmp_path: Path) -> None:
    done = nri_rdma("explain", "-", "--sysfs-root", eight, "--state-dir", tmp_path, text=pod("1"))
    assert 'NCCL_IB_HCA="=mlx5_0"' in done.stdout


def test_it_says_that_it_decides_without_the_daemon(eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", pod("1"))
    done = nri_rdma("explain", manifest, "--sysfs-root", eight, "--state-dir", tmp_path, "-o", "json")
    (first, second) = json.loads(done.stdout)["source"]
    assert first == (
        f"Decided on the hardware of {eight}. What pods hold now counts as free: the daemon does not answer: No such "
        f"file or directory ({tmp_path}/control.sock)."
    )
    assert second.startswith("This host does not have rail0")


def test_with_the_daemon_it_counts_what_is_taken(daemon: InsideDaemon, tmp_path: Path) -> None:
    daemon.start_pod("other", {"rdma.noderesource.dev": "[{match: {device: mlx5_0}}]"})
    manifest = write(tmp_path / "pod.yaml", pod("[{match: {device: mlx5_0}}]"))
    done = nri_rdma("explain", manifest, "--state-dir", daemon.settings.state_dir)
    assert "knows now: 1 of 8 devices are held by pods." in " ".join(done.stdout.split())
    assert "Pod default/one: refused, DEVICE-IN-USE" in done.stdout
    assert done.returncode == 1
    assert "held by pod default/other" in done.stdout


def test_another_nodes_tree_is_not_the_daemons(daemon: InsideDaemon, own_eight: Path, tmp_path: Path) -> None:
    daemon.start_pod("other", {"rdma.noderesource.dev": "[{match: {device: mlx5_0}}]"})
    manifest = write(tmp_path / "pod.yaml", pod("[{match: {device: mlx5_0}}]"))
    done = nri_rdma("explain", manifest, "--state-dir", daemon.settings.state_dir, "--sysfs-root", own_eight)
    assert done.returncode == 0, done.stderr
    assert f"The daemon reads its hardware from {daemon.settings.sysfs_root}" in " ".join(done.stdout.split())


def test_every_pod_of_a_file_is_told_and_one_refusal_is_enough(eight: Path, tmp_path: Path) -> None:
    text = "---\n".join([pod("1"), "kind: Service\n", pod("9", "two"), pod("gold", "three")])
    manifest = write(tmp_path / "pods.yaml", text)
    done = nri_rdma("explain", manifest, "--sysfs-root", eight, "--state-dir", tmp_path, "-o", "json")
    assert done.returncode == 1
    assert [line.partition(": asked")[0].partition(": this")[0] for line in done.stderr.splitlines()] == [
        "Pod default/two: nri-rdma: DEVICES-EXHAUSTED",
        "Pod default/three: nri-rdma: POOL-UNKNOWN",
    ]
    pods = json.loads(done.stdout)["pods"]
    assert [it["refusal"] and it["refusal"]["code"] for it in pods] == [None, "DEVICES-EXHAUSTED", "POOL-UNKNOWN"]
    assert pods[0]["requests"][0]["devices"] == ["mlx5_0"]
    assert pods[0]["containers"][0]["env"]["RDMA_DEVICES_0"] == "mlx5_0"


def test_a_refusal_s_reason_is_below_its_pod_on_the_page(eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pods.yaml", "---\n".join([pod("9"), pod("gold", "two"), pod("1", "three")]))
    done = nri_rdma("explain", manifest, "--sysfs-root", eight, "--state-dir", tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    for title, reason in (
        ("Pod default/one: refused, DEVICES-EXHAUSTED", "nri-rdma: DEVICES-EXHAUSTED: asked 9, free 8 of 8 devices"),
        ("Pod default/two: refused, POOL-UNKNOWN", "nri-rdma: POOL-UNKNOWN: this node has no pool gold, "),
    ):
        assert lines[lines.index(title) + 1].startswith(reason)


def test_a_machine_without_devices_is_told_how_to_take_another_s(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "none/class").mkdir(parents=True)
    where = ("--sysfs-root", tmp_path / "none", "--state-dir", tmp_path)
    done = nri_rdma("explain", "-", *where, text=pod("1"), columns=200)
    assert done.returncode == 1
    assert "This machine has no RDMA device: --snapshot FILE takes a node that has some" in done.stdout
    assert "nri-rdma: DEVICE-UNKNOWN: this node has no RDMA device, rdma.noderesource.dev. Next: " in done.stdout
    assert "DEVICE  PCI" not in done.stdout
    done = nri_rdma("explain", "-", "--snapshot", saved, "--state-dir", tmp_path, text=pod("1"), columns=200)
    assert (done.returncode, "This machine has no RDMA device" in done.stdout) == (0, False)


def test_a_pod_that_asks_for_nothing_is_told_so(eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", "kind: Pod\nmetadata: {name: web}\n")
    done = nri_rdma("explain", manifest, "--sysfs-root", eight, "--state-dir", tmp_path)
    assert "Pod default/web: asks for nothing and gets nothing" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("kind: Pod\nmetadata: [", "MANIFEST-SYNTAX"),
        ("kind: Service\n", "SETTING"),
        ("", "SETTING"),
        ("\x00", "MANIFEST-SYNTAX"),
    ],
)
def test_a_file_that_is_no_manifest_ends_with_two(text: str, code: str, eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", text)
    assert_one_error(nri_rdma("explain", manifest, "--sysfs-root", eight, "--state-dir", tmp_path), code, 2)


def test_bytes_that_are_no_text_end_with_two(eight: Path, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_bytes(b"\xff\xfe\xff")
    done = nri_rdma("explain", tmp_path / "pod.yaml", "--sysfs-root", eight, "--state-dir", tmp_path)
    assert_one_error(done, "MANIFEST-SYNTAX", 2)


def test_an_annotation_that_is_no_text_is_refused(eight: Path, tmp_path: Path) -> None:
    text = "kind: Pod\nmetadata: {name: n, annotations: {rdma.noderesource.dev: 1}}\n"
    done = nri_rdma("explain", write(tmp_path / "p.yaml", text), "--sysfs-root", eight, "--state-dir", tmp_path)
    assert "put it in quotes" in assert_one_error(done, "ANNOTATION-VALUE", 1)


def test_it_fits_eighty_columns(eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", TWO_NEAR_GPUS)
    done = nri_rdma("explain", manifest, "--sysfs-root", eight, "--allow-default-pool", "--state-dir", tmp_path)
    assert max(len(line) for line in done.stdout.splitlines() if "rdma.noderesource.dev" not in line) <= 80
