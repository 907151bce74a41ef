"""Images with the RDMA libraries of Debian's releases, on a real runtime: each misfit is told before the program runs.

What the loader in the container says of the provider is the judge.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: JSON documents

import pytest

from nri_rdma.doors.control.daemon_client import ask_trace
from tests.rig import cache, debian_roots
from tests.rig.containerd import Containerd
from tests.rig.cri import Container, Cri
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.guard import GUARDED
from tests.rig.image import write_image
from tests.rig.oci import Layer
from tests.rig.planted_proofs import PlantedProofs
from tests.rig.runtime import Runtime
from tests.runtime.test_guard import guarded, refusal

__all__ = ["guarded"]
pytestmark = [pytest.mark.root, pytest.mark.runtime]

ASKS = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}, mode: shared}]"}
PROVE = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}, mode: shared, prove: true}]"}
WITHIN_S = 20.0
"""A refusal is seen so soon."""
OFF = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}, mode: shared, userspace: off}]"}
LOADER = "/lib64/ld-linux-x86-64.so.2"
FITS = ""
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
TOLD = {
    "Debian 11": FITS,
    "Debian 12": FITS,
    "Debian 13": FITS,
    "13 with providers of 12": FITS,
    "without libibverbs": "USERSPACE-MISSING: the image has no libibverbs.so.1: ",
    "with musl": "USERSPACE-MISSING: the image has no libibverbs.so.1, and musl as its C library: ",
    "with musl and libibverbs for glibc": f"USERSPACE-MISMATCH: the image's {PROVIDERS}.so.1 is for glibc, and its"
    " C library is musl: ",
    "12 with providers of 11": f"USERSPACE-MISMATCH: the image's {PROVIDERS}/libmlx5-rdmav33.so is of another release"
    " than its libibverbs, which looks for libmlx5-rdmav34.so: mlx5_3 cannot be used",
    "12 with providers of 13": f"USERSPACE-MISMATCH: the image's {PROVIDERS}/libmlx5-rdmav34.so needs libc.so.6 with"
    " GLIBC_2.38, and the image's is of another release",
    "without what libibverbs needs": "USERSPACE-MISSING: the image's /lib/x86_64-linux-gnu/libibverbs.so.1 needs"
    " libnl-route-3.so.200, which the image does not have",
}


@pytest.mark.parametrize("name", TOLD)
def test_an_image_whose_libraries_do_not_fit_is_told_before_its_program_runs(
    host_equal: None, containerd: Containerd, node: Fabric, cri: Cri, tmp_path: Path, name: str
) -> None:
    image = imported(containerd, name, tmp_path)
    with Daemon(containerd, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS, runtime_handler=GUARDED)
        container = cri.create_container(pod, "main", image=image)
        cri.start(container)
        told = [it["error"] for it in daemon.status()["images"]]
        print(f"{name}: {told[0] if told else 'fits'}")
        assert [it.removeprefix("nri-rdma: ").startswith(TOLD[name]) for it in told] == ([True] if TOLD[name] else [])
        (checked,) = spans(daemon, "userspace")
        (start,) = spans(daemon, "StartContainer")
        assert checked["end_ns"] < start["start_ns"]  # which the runtime waits for before it runs the program
        assert checked["attributes"]["rdma.userspace.problem"] == (told[0] if told else "")
        print(f"  in {(checked['end_ns'] - checked['start_ns']) / 1e6:.1f} ms")
        if TOLD[name]:
            assert "default/asks, container main. Next: " in told[0]
            text = daemon.cli("status").stdout
            assert "WARNING: the libraries in these containers' images cannot use their devices" in text
            assert daemon.log.count("the libraries in a container's image cannot use its RDMA devices") == 1
        assert loads(cri, container) is (TOLD[name] == FITS)
        cri.delete_pod(pod)
        assert daemon.status()["images"] == []


@pytest.mark.every_runtime
def test_every_runtimes_guard_finds_the_image(
    host_equal: None, runtime: Runtime, node: Fabric, guarded: str, cri: Cri
) -> None:
    """The image is the rig's, of busybox alone."""
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS, runtime_handler=guarded)
        cri.run_container(pod, "main")
        (told,) = daemon.status()["images"]
        assert told["code"] == "USERSPACE-MISSING"
        cri.delete_pod(pod)


@pytest.mark.every_runtime
def test_a_container_without_a_guard_is_told_of_as_well(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    """As the one before. CRI-O does not tell the process; the cgroup does, where there are cgroups v2."""
    with Daemon(runtime, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS)
        cri.run_container(pod, "main")
        wait_until(lambda: daemon.status()["images"] or None, "the image to be checked")
        (told,) = daemon.status()["images"]
        print(f"{runtime.release.name}: {told['code'] or told['error']}")
        has_cgroups = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        seen = has_cgroups or not runtime.release.is_crio
        assert told["code"] == ("USERSPACE-MISSING" if seen else "")
        cri.delete_pod(pod)


def test_a_pod_that_says_off_is_not_checked(host_equal: None, containerd: Containerd, node: Fabric, cri: Cri) -> None:
    with Daemon(containerd, node) as daemon:
        pod = cri.run_pod("asks", annotations=OFF, runtime_handler=GUARDED)
        cri.run_container(pod, "main")
        assert daemon.status()["images"] == []
        assert not list(spans(daemon, "userspace"))
        cri.delete_pod(pod)


def test_a_container_that_is_to_be_proven_is_refused_for_its_image_and_nothing_is_proven(
    host_equal: None, containerd: Containerd, node: Fabric, cri: Cri, tmp_path: Path
) -> None:
    proofs = PlantedProofs(tmp_path / "verbs")
    extra = (*EXCLUSIVE_FIRST, "--verbs-python", str(proofs.program))
    fits, misfits = (imported(containerd, name, tmp_path / name) for name in ("Debian 12", "12 with providers of 11"))
    with Daemon(containerd, node, extra=extra) as daemon:
        pod = cri.run_pod("asks", annotations=PROVE, runtime_handler=GUARDED)
        began = time.monotonic()
        text = refusal(cri, cri.create_container(pod, "main", image=misfits))
        took_s = time.monotonic() - began
        print(f"after {took_s:.2f} s: {text}")
        assert f"nri-rdma: {TOLD['12 with providers of 11']}" in text
        assert took_s < WITHIN_S
        assert proofs.seen() == []
        assert [(it["code"], it["container"]) for it in daemon.status()["refused"]] == [("USERSPACE-MISMATCH", "main")]
        cri.start(cri.create_container(pod, "main", image=fits, attempt=1))
        assert len(proofs.seen()) == 1
        cri.delete_pod(pod)


def test_libraries_on_a_volume_are_not_looked_at_and_that_is_said(
    host_equal: None, containerd: Containerd, node: Fabric, cri: Cri, tmp_path: Path
) -> None:
    """A volume may be on a server of the pod's author, who could have the daemon wait for ever."""
    (tmp_path / "libraries").mkdir()
    with Daemon(containerd, node) as daemon:
        pod = cri.run_pod("asks", annotations=ASKS, runtime_handler=GUARDED)
        container = cri.create_container(pod, "main", mounts={str(tmp_path / "libraries"): "/usr/lib"})
        cri.start(container)
        (told,) = daemon.status()["images"]
        assert told["code"] == ""
        why = "cannot be read: it is on a mount of the container, which is not entered"
        assert told["error"] == f"/usr/lib/x86_64-linux-gnu/libibverbs.so.1 {why}"
        cri.delete_pod(pod)


def imported(runtime: Containerd, name: str, tmp_path: Path) -> str:
    """The image of that root; one that is there is used again."""
    image = f"localhost/userspace:{name.lower().replace(' ', '-')}"
    if runtime.cri.has_image(image):
        return image
    try:
        root = debian_roots.make(debian_roots.ROOTS[name], tmp_path / "root")
    except debian_roots.FetchError as error:
        pytest.skip(str(error))
    archive = root.with_name("image.tar")
    write_image(cache.busybox(), archive, image, more=layer_of(root))
    runtime.import_image(archive)
    wait_until(lambda: runtime.cri.has_image(image), "CRI to know the image")
    return image


def layer_of(root: Path) -> Layer:
    """The libraries and the configuration of a root, without what only takes place."""
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.startswith(("usr/share", "bin/", "sbin/")) or "/gconv" in name:
            continue
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) and name not in {"bin", "sbin"}:
            links[name] = str(path.readlink())
        elif stat.S_ISREG(mode):
            files[name] = path.read_bytes()
    return Layer(files=files, links=links)


def spans(daemon: Daemon, name: str) -> Iterator[dict[str, Any]]:
    return (it for it in ask_trace(daemon.state_dir / "control.sock", "")["spans"] if it["name"] == name)


def loads(cri: Cri, container: Container) -> bool:
    """Whether the loader of the image loads the provider that libibverbs looks for."""
    find = "grep -ho 'lib%s-rdmav[0-9]*' /usr/lib/x86_64-linux-gnu/libibverbs.so.1"
    suffix = cri.exec(container, ["sh", "-c", find]).stdout.split()
    if not suffix:
        return False
    provider = f"/usr/lib/x86_64-linux-gnu/libibverbs/{suffix[0].replace('%s', 'mlx5')}.so"
    done = cri.exec(container, ["sh", "-c", f"{LOADER} --list {provider}"])
    return done.exit_code == 0 and "not found" not in done.stdout + done.stderr
