"""`nri-rdma install podman` writes files of its own and nothing else, and `uninstall podman` removes them."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oci.host import HOOKS, Host, Podman
from tests.oci.test_annotations import FIFTH, SLEEP, asks, in_container, refused, wait_home
from tests.oci.test_podman import generate
from tests.rig.daemon import Daemon
from tests.rig.expect import host_link
from tests.rig.fabric import Fabric

pytestmark = pytest.mark.root

HOOK = f"{HOOKS}/nri-rdma-oci-hook"
FOLDER = f"{HOOKS}/podman-hooks.d"
CONF_D = "/etc/containers/containers.conf.d"
DROP_IN = f"{CONF_D}/90-nri-rdma.conf"


@pytest.fixture(autouse=True)
def bare(host: Host) -> Iterator[None]:
    """A podman that is not set up, before and after."""
    for spec in host.cdi_dir.glob("*"):
        spec.unlink()
    host.file(HOOK).unlink(missing_ok=True)
    yield
    done = host.nri_rdma("uninstall", "podman", "--force")
    assert done.returncode == 0, done.stderr
    host.put_hook()


def install(host: Host, *arguments: str) -> str:
    done = host.nri_rdma("install", "podman", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(host: Host) -> dict[str, tuple[int, bytes]]:
    """All files where ours may come, with their modes and contents."""
    found = {}
    for top in (HOOKS, "/etc/containers"):
        for file in filter(Path.is_file, host.file(top).rglob("*")):
            found[str(file).partition("/root")[2]] = (file.stat().st_mode & 0o777, file.read_bytes())
    return found


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("nri-rdma: INSTALL: "), done.stderr
    assert [word for word in words if word not in done.stderr] == [], done.stderr


def test_it_writes_its_own_files_once_and_removes_exactly_them(host: Host) -> None:
    before = files(host)
    shown = install(host, "--dry-run")
    assert files(host) == before
    install(host)
    made = files(host)
    assert {path: made[path] for path in before} == before, "what was there is as it was"
    ours = sorted(made.keys() - before.keys())
    stages = ("createRuntime", "poststop", "precreate")
    assert ours == [DROP_IN, HOOK, *(f"{FOLDER}/nri-rdma-{stage}.json" for stage in stages)]
    assert sorted(line[4:] for line in shown.splitlines() if line.startswith("+++ ")) == ours
    assert [made[path][0] for path in (HOOK, DROP_IN)] == [0o755, 0o644]
    assert install(host) == "podman is set up already; nothing was changed.\n"
    assert files(host) == made
    done = host.nri_rdma("uninstall", "podman", "--dry-run")
    assert (done.returncode, files(host)) == (0, made)
    done = host.nri_rdma("uninstall", "podman")
    assert (done.returncode, files(host)) == (0, before), done.stderr
    assert not host.file(FOLDER).exists()


def test_an_older_release_is_brought_up_to_date(host: Host) -> None:
    install(host)
    made = files(host)
    host.file(HOOK).write_text('PROGRAM = "nri-rdma-oci-hook"\n')
    host.file(DROP_IN).write_text(made[DROP_IN][1].decode() + "# older\n")
    install(host)
    assert files(host) == made


@pytest.mark.parametrize("path", [HOOK, f"{FOLDER}/nri-rdma-precreate.json", DROP_IN])
def test_a_file_of_somebody_else_stays_and_nothing_is_written(host: Host, path: str) -> None:
    theirs = host.file(path)
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("# theirs\n")
    before = files(host)
    try:
        assert_refused(host.nri_rdma("install", "podman"), path)
        assert_refused(host.nri_rdma("uninstall", "podman"), path)
        assert files(host) == before
    finally:
        theirs.unlink()


def test_a_later_drop_in_of_somebody_else_hides_no_hook(host: Host, podman: Podman) -> None:
    """Either it is refused to set podman up, or podman calls the hook: a container never starts bare."""
    later = host.file(f"{CONF_D}/99-theirs.conf")
    later.parent.mkdir(exist_ok=True)
    try:
        for folders in ('"/etc/theirs"', '"/etc/theirs", {append=true}', '"/etc/theirs", {append=false}'):
            if is_old(host) and "append" in folders:
                continue  # that podman reads no such file
            later.write_text(f"[engine]\nhooks_dir = [{folders}]\n")
            done = host.nri_rdma("install", "podman")
            if done.returncode == 0:
                assert "nri-rdma: DAEMON-ABSENT: " in refused(podman, *asks(podman, [FIFTH]))
            else:
                assert_refused(done, "99-theirs.conf")
    finally:
        later.unlink()


def test_hooks_of_others_are_still_called(host: Host, podman: Podman) -> None:
    folder, conf = host.file("/etc/theirs/hooks.d"), host.file(f"{CONF_D}/10-theirs.conf")
    folder.mkdir(parents=True, exist_ok=True)
    conf.parent.mkdir(exist_ok=True)
    called = host.file("/run/called")
    hook = {"path": "/bin/sh", "args": ["sh", "-c", "echo called > /run/called"]}
    document = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["createRuntime"]}
    (folder / "theirs.json").write_text(json.dumps(document))
    conf.write_text('[engine]\nhooks_dir = ["/etc/theirs/hooks.d"]\n')
    try:
        install(host)
        podman.must(*podman.run("--rm"))
        assert called.read_text() == "called\n"
    finally:
        conf.unlink()
        called.unlink(missing_ok=True)


def test_a_configuration_that_podman_cannot_read_is_left_alone(host: Host) -> None:
    broken = host.file(f"{CONF_D}/10-broken.conf")
    broken.parent.mkdir(exist_ok=True)
    broken.write_text('[engine]\nhooks_dir = "no list"\n')
    before = files(host)
    try:
        assert_refused(host.nri_rdma("install", "podman"), "podman")
        assert files(host) == before
    finally:
        broken.unlink()


def test_podman_is_not_left_with_containers_that_would_start_bare(
    host_equal: None, host: Host, daemon: Daemon, podman: Podman
) -> None:
    install(host)
    podman.must(*podman.run("-d", "--name", "trainer", *asks(podman, [FIFTH]), command=SLEEP))
    before = files(host)
    assert_refused(host.nri_rdma("uninstall", "podman"), "trainer (runs)", "--force")
    podman.must("stop", "-t", "0", "trainer")
    assert_refused(host.nri_rdma("uninstall", "podman"), "trainer (does not run)")
    assert files(host) == before
    podman.must("rm", "trainer")
    done = host.nri_rdma("uninstall", "podman")
    assert done.returncode == 0, done.stderr


def test_a_container_that_runs_gives_back_after_the_hooks_were_removed(
    host_equal: None, host: Host, daemon: Daemon, podman: Podman
) -> None:
    install(host)
    podman.must(*podman.run("-d", "--name", "trainer", *asks(podman, [FIFTH]), command=SLEEP))
    done = host.nri_rdma("uninstall", "podman", "--force")
    assert done.returncode == 0, done.stderr
    assert "rdma0" in in_container(podman, "trainer"), "it keeps what it has"
    podman.must("stop", "-t", "0", "trainer")
    wait_home()
    podman.must("start", "trainer")
    assert host_link("rail5") is not None, "this is why uninstall refuses without --force"


def test_the_hook_that_a_cdi_spec_names_stays(host: Host, node: Fabric) -> None:
    install(host)
    generate(host, node)
    done = host.nri_rdma("uninstall", "podman")
    assert done.returncode == 0, done.stderr
    assert "rdma.noderesource.dev/nic=" in done.stdout
    assert host.file(HOOK).exists()
    assert not host.file(FOLDER).exists()


def is_old(host: Host) -> bool:
    return host.must("podman", "--version").startswith("podman version 4.")
