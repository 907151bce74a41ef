"""What `explain` is told of a claim's CDI device."""

import json
from pathlib import Path

import pytest

from tests.unit.commands.cli.manifests import write
from tests.unit.commands.cli.program import assert_one_error, nri_rdma

CLAIMED = """
kind: Pod
metadata: {name: claimed}
spec:
  resourceClaims: [{name: nics, resourceClaimName: nics}]
  containers:
  - name: trainer
    resources:
      claims: [{name: nics}]
      limits: {cpu: 4, rdma/rdma_shared_device_a: 1}
  - name: sidecar
"""


def prepared(folder: Path, keys: str) -> Path:
    """A directory with the spec of a claim, as its driver writes it."""
    folder.mkdir()
    nodes = [{"path": f"/dev/infiniband/{name}"} for name in ("uverbs2", "rdma_cm")]
    device = {
        "name": "claim-7f3",
        "annotations": {"rdma.noderesource.dev": keys},
        "containerEdits": {"deviceNodes": nodes},
    }
    spec = {"cdiVersion": "0.6.0", "kind": "dra.example.com/nic", "devices": [device]}
    write(folder / "claim.json", json.dumps(spec))
    return folder


def test_claims_and_resources_are_told_with_what_gives_them(eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", CLAIMED)
    done = nri_rdma("explain", manifest, "--sysfs-root", eight, "--state-dir", tmp_path, columns=280)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "Pod default/claimed: asks for nothing itself, and none of its claims is known to be for devices" in done.stdout
    )
    for line in (
        "  resource  rdma/rdma_shared_device_a: 1, which no pool of this node has, so that nri-rdma gives nothing;"
        " a DeviceClass with that extendedResourceName, or another device plugin, may, else write it as the resource of"
        " a pool with door = resource",
        "  claim     nics, which its DRA driver prepares; --cdi-device trainer=VENDOR/CLASS=NAME says what its CDI"
        " device would do here",
    ):
        assert line in done.stdout.splitlines()


def test_a_claims_cdi_device_is_explained_as_the_daemon_would_take_it(eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", CLAIMED)
    folder = prepared(tmp_path / "cdi", "{mode: exclusive, interface: {name: fab0}, memlock: 65536}")
    told = ("--cdi-dirs", folder, "--cdi-device", "trainer=dra.example.com/nic=claim-7f3")
    done = nri_rdma("explain", manifest, "--sysfs-root", eight, "--state-dir", tmp_path, *told, "-o", "json")
    (pod,) = json.loads(done.stdout)["pods"]
    (request,) = pod["requests"]
    assert (request["cdi_device"], request["mode"], request["devices"]) == (
        "dra.example.com/nic=claim-7f3",
        "exclusive",
        ["mlx5_2"],
    )
    assert [(move["host_name"], move["pod_name"]) for move in pod["netdevs"]] == [("rail2", "fab0")]
    trainer, sidecar = pod["containers"]
    assert (trainer["char_devices"], trainer["env"]["NCCL_IB_HCA"], trainer["memlock"]) == ([], "=mlx5_2", 65536)
    assert trainer["claims"] == ["nics"]
    assert sidecar["env"] == {}


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ("trainer", "it is not CONTAINER=VENDOR/CLASS=NAME"),
        ("nobody=dra.example.com/nic=claim-7f3", "no pod has a container nobody"),
        ("trainer=dra.example.com/nic=other", "has the CDI device dra.example.com/nic=other"),
    ],
)
def test_a_cdi_device_that_cannot_be_is_refused(told: str, what: str, eight: Path, tmp_path: Path) -> None:
    manifest = write(tmp_path / "pod.yaml", CLAIMED)
    folder = prepared(tmp_path / "cdi", "mode: exclusive")
    done = nri_rdma("explain", manifest, "--sysfs-root", eight, "--cdi-dirs", folder, "--cdi-device", told)
    assert what in assert_one_error(done, "SETTING", 2)
