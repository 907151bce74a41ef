"""The image: the same bytes each time, no more in it than it needs, and all of that runs on its architecture."""

from __future__ import annotations

import json
import re
import tarfile
from email import message_from_string
from pathlib import Path
from urllib.parse import unquote

from deploy.image import layout
from deploy.image.__main__ import read_revision
from deploy.image.architecture import Architecture
from deploy.image.steps import CACHE, PROJECT
from nri_rdma import __version__
from tests.image.conftest import make_archive
from tests.image.root import PYTHON, Root, manifest_of
from tests.rig import api_server
from tests.unit.hooks.ended import Ended

COMMAND = (PYTHON, "-I", f"/{layout.BIN}/nri-rdma")
HOOK = (PYTHON, "-IS", f"/{layout.BIN}/nri-rdma-hook")
OTHERS = (
    *("winreg", "aiohttp", "django", "twisted", "mypy", "hypothesis", "js", "OpenSSL", "socks", "h2"),
    *("kubernetes.client.api.well_known_api", "pytest"),
)
"""What modules of others need that nobody imports here, and that the image goes without."""
WITHOUT_REASON = ("click._winconsole", "kubernetes.leaderelection.example")
"""Modules that cannot be imported anywhere: on Windows only, or with a cluster."""
CONTAINER = {
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.container-name": "a",
    "io.kubernetes.cri.sandbox-id": "sandbox-one",
}
ASK = """
import json, sys
from pathlib import Path
from nri_rdma.host.kubernetes.api import ApiServer
server = ApiServer(Path("/tmp/kubeconfig"))
print(json.dumps(server.create(sys.argv[1], {"metadata": {"generateName": "one-"}}, timeout_s=60)))
print(json.dumps(server.items(sys.argv[1], timeout_s=60)))
"""

LIST = """
import json
from importlib.metadata import distributions
print(json.dumps([(it.name, it.version) for it in distributions()]))
"""


def test_made_again_alone_in_another_folder_it_has_the_same_bytes(
    archive: Path, architecture: Architecture, tmp_path: Path
) -> None:
    cache = tmp_path / "another"
    cache.mkdir()
    for fetched in (CACHE / "debs", *CACHE.glob("wheels-*"), *CACHE.glob("tools-*")):
        (cache / fetched.name).symlink_to(fetched)
    again = make_archive(architecture.name, tmp_path / "again.tar", cache)
    with tarfile.open(archive) as first, tarfile.open(again) as second:
        assert manifest_of(first, architecture)["digest"] == manifest_of(second, architecture)["digest"]
    assert _bill(again, architecture).read_bytes() == _bill(archive, architecture).read_bytes()


def test_its_bill_of_materials_has_the_packages_that_are_in_it(
    archive: Path, architecture: Architecture, root: Root
) -> None:
    components = json.loads(_bill(archive, architecture).read_text())["components"]
    records = [message_from_string(it.read_text()) for it in (root.folder / "var/lib/dpkg/status.d").iterdir()]
    debs = {(it["Package"], it["Version"], it["Architecture"]) for it in records}
    done = root.run(PYTHON, "-I", "-c", LIST)
    wheels = {(name.lower().replace("_", "-"), version) for name, version in json.loads(done.stdout)}
    wheels -= {("nri-rdma", __version__)}  # it is what the bill is of
    assert {_deb(it["purl"]) for it in components if "pkg:deb" in it["purl"]} == debs
    assert {_wheel(it["purl"]) for it in components if "pkg:pypi" in it["purl"]} == wheels
    assert {(it["name"], it["version"]) for it in components} == {it[:2] for it in debs | wheels}
    assert len(components) == len(debs) + len(wheels)


def test_no_file_names_the_folder_that_it_was_made_in(root: Root) -> None:
    here = str(PROJECT).encode()
    assert [path for path in _files(root) if here in path.read_bytes()] == []


def test_it_says_its_commit(root: Root) -> None:
    done = root.run(*COMMAND, "--version")
    assert (done.stderr, done.stdout) == ("", f"nri-rdma {__version__} (commit {read_revision()})\n")
    assert root.config["config"]["Labels"]["org.opencontainers.image.revision"] == read_revision()


def test_doctor_finds_nothing_missing_in_it(root: Root) -> None:
    done = root.run(*COMMAND, "doctor", "-o", "json")
    findings = {it["check"]: it for it in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1, done.stderr  # there is neither runtime nor RDMA
    assert {name: findings[name]["result"] for name in ("python", "packages")} == {"python": "ok", "packages": "ok"}


def test_the_hook_refuses_a_container_whose_daemon_is_not_there_and_starts_others(root: Root) -> None:
    bundle = root.folder / "tmp/bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps({"process": {"env": []}, "linux": {"devices": []}}))
    plain, asking = (
        root.run(
            *HOOK, "verify", given=json.dumps({"id": "x", "bundle": "/tmp/bundle", "annotations": CONTAINER | more})
        )
        for more in ({}, {"rdma.noderesource.dev": "[{match: {device: mlx5_2}}]"})
    )
    assert (plain.returncode, plain.stderr) == (0, "")
    assert Ended(code=asking.returncode, error=asking.stderr).refused_with == "DAEMON-ABSENT"


def test_all_that_our_code_imports_is_there_and_so_is_what_that_imports(root: Root) -> None:
    (root.folder / "tmp/inside.py").write_text((Path(__file__).parent / "inside.py").read_text())
    done = root.run(PYTHON, "-I", "/tmp/inside.py", f"/{layout.SITE}")
    found = json.loads(done.stdout)
    print(found["counts"])
    assert found["ours"] == {}
    assert {
        name: why
        for name, why in found["every"].items()
        if name not in WITHOUT_REASON and not any(it in why for it in OTHERS)
    } == {}


def test_its_client_of_the_api_server_writes_and_reads(root: Root) -> None:
    with api_server.running() as server:
        server.kubeconfig(root.folder / "tmp")
        done = root.run(PYTHON, "-I", "-c", ASK, api_server.SLICES)
    assert done.returncode == 0, done.stderr
    created, listed = map(json.loads, done.stdout.splitlines())
    assert listed == [created]
    assert created["metadata"]["generateName"] == "one-"


def test_there_is_no_shell_and_no_installer_in_it(root: Root) -> None:
    names = {path.name for path in _files(root)}
    assert names.isdisjoint({"sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "pip", "pip3", "ensurepip"})


def _files(root: Root) -> list[Path]:
    return [path for path in root.folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _bill(archive: Path, architecture: Architecture) -> Path:
    return archive.with_name(f"nri-rdma-{architecture.name}.sbom.json")


def _deb(address: str) -> tuple[str, ...]:
    found = re.fullmatch(r"pkg:deb/debian/(.+)@(.+)\?arch=(.+)&distro=debian-13", address)
    assert found is not None, address
    return tuple(unquote(it) for it in found.groups())


def _wheel(address: str) -> tuple[str, ...]:
    found = re.fullmatch(r"pkg:pypi/(.+)@(.+)", address)
    assert found is not None, address
    return tuple(unquote(it) for it in found.groups())
