"""`nri-rdma install` writes files of its own for podman and Docker, and nothing else; `uninstall` removes them."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.oci.conftest import Engine, require_docker
from tests.oci.host import HOOKS, Host, Podman
from tests.oci.test_annotations import FIFTH, SLEEP, asks, in_container, refused, wait_home
from tests.oci.test_podman import generate
from tests.rig.daemon import Daemon
from tests.rig.expect import host_link
from tests.rig.fabric import Fabric

pytestmark = pytest.mark.root

HOOK = f"{HOOKS}/nri-rdma-oci-hook"
MODULE = f"{HOOKS}/nri_rdma_oci_hook.py"
FOLDER = f"{HOOKS}/podman-hooks.d"
CONF_D = "/etc/containers/containers.conf.d"
DROP_IN = f"{CONF_D}/90-nri-rdma.conf"
OCI_RUNTIME = f"{HOOKS}/docker/runc"
SHIM = "/usr/local/bin/containerd-shim-nri-rdma-v1"


@dataclass(frozen=True)
class Kind:
    """What `nri-rdma install NAME` writes besides the hook; the engine calls the hook because of `last`."""

    name: str
    files: tuple[str, ...]
    last: str
    folder: str


PODMAN = Kind(
    name="podman",
    files=(DROP_IN, *(f"{FOLDER}/nri-rdma-{stage}.json" for stage in ("createRuntime", "poststop", "precreate"))),
    last=DROP_IN,
    folder=FOLDER,
)
DOCKER = Kind(name="docker", files=(SHIM, OCI_RUNTIME), last=SHIM, folder=str(Path(OCI_RUNTIME).parent))
PLACES = [(PODMAN, HOOK), (PODMAN, MODULE), (PODMAN, f"{FOLDER}/nri-rdma-precreate.json"), (PODMAN, DROP_IN)]
PLACES += [(DOCKER, it) for it in (HOOK, MODULE, *DOCKER.files)]


@pytest.fixture(params=[PODMAN, DOCKER], ids=lambda it: it.name)
def kind(request: pytest.FixtureRequest, host: Host) -> Kind:
    """Each engine that the suite has."""
    return there(request.param, host)


def there(kind: Kind, host: Host) -> Kind:
    if kind is DOCKER:
        require_docker(host)
    return kind


@pytest.fixture(scope="module")
def engine(any_engine: Engine) -> Engine:
    """The engine of this module's containers."""
    return any_engine


@pytest.fixture(autouse=True)
def bare(host: Host) -> Iterator[None]:
    """Engines that are not set up, before and after."""
    for spec in host.cdi_dir.glob("*"):
        spec.unlink()
    host.remove_hook()
    yield
    for name in (PODMAN.name, DOCKER.name):
        done = host.nri_rdma("uninstall", name, "--force")
        assert done.returncode == 0, done.stderr
    host.put_hook()


def install(host: Host, name: str, *arguments: str) -> str:
    done = host.nri_rdma("install", name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(host: Host) -> dict[str, tuple[int, bytes]]:
    """All files where ours may come, with their modes and contents, but for what Python compiled."""
    found = {}
    for top in (HOOKS, "/etc/containers", "/etc/docker", "/usr/local/bin"):
        for file in filter(Path.is_file, host.file(top).rglob("*")):
            if file.parent.name != "__pycache__":
                found[str(file).partition("/root")[2]] = (file.stat().st_mode & 0o777, file.read_bytes())
    return found


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("nri-rdma: INSTALL: "), done.stderr
    assert [word for word in words if word not in done.stderr] == [], done.stderr


def test_it_writes_its_own_files_once_and_removes_exactly_them(host: Host, kind: Kind) -> None:
    before = files(host)
    shown = install(host, kind.name, "--dry-run")
    assert files(host) == before
    install(host, kind.name)
    made = files(host)
    assert {path: made[path] for path in before} == before, "what was there is as it was"
    ours = sorted(made.keys() - before.keys())
    assert ours == sorted([HOOK, MODULE, *kind.files])
    assert sorted(line[4:] for line in shown.splitlines() if line.startswith("+++ ")) == ours
    modes = [made[path][0] for path in (MODULE, HOOK, kind.last)]
    assert modes == [0o644, 0o755, 0o644 if kind is PODMAN else 0o755]
    assert install(host, kind.name).endswith("is set up already; nothing was changed.\n")
    assert files(host) == made
    done = host.nri_rdma("uninstall", kind.name, "--dry-run")
    assert (done.returncode, files(host)) == (0, made)
    done = host.nri_rdma("uninstall", kind.name)
    assert (done.returncode, files(host)) == (0, before), done.stderr
    assert not host.file(kind.folder).exists()


def test_what_python_compiled_of_the_hook_is_removed_with_it(
    host_equal: None, host: Host, daemon: Daemon, engine: Engine
) -> None:
    before = files(host)
    install(host, engine.name)  # it has the hook run, and so compiled
    folder = host.file(f"{HOOKS}/__pycache__")
    (compiled,) = folder.iterdir()
    assert compiled.name.startswith("nri_rdma_oci_hook.")
    assert (folder.stat().st_mode & 0o777, compiled.stat().st_mode & 0o777) == (0o755, 0o644)
    made = compiled.stat().st_mtime_ns
    engine.must(*engine.run("--rm", *asks(engine, [FIFTH])))
    assert [it.stat().st_mtime_ns for it in folder.iterdir()] == [made]
    done = host.nri_rdma("uninstall", engine.name, "--dry-run")
    assert f"--- {HOOKS}/__pycache__/{compiled.name}\n+++ /dev/null\n" in done.stdout
    done = host.nri_rdma("uninstall", engine.name)
    assert (done.returncode, files(host), folder.exists()) == (0, before, False), done.stderr


def test_an_older_release_is_brought_up_to_date(host: Host, kind: Kind) -> None:
    install(host, kind.name)
    made = files(host)
    host.file(HOOK).write_text('PROGRAM = "nri-rdma-oci-hook"\n')
    host.file(MODULE).unlink()
    host.file(kind.last).write_text(made[kind.last][1].decode() + "# older\n")
    install(host, kind.name)
    assert files(host) == made


@pytest.mark.parametrize(("kind_of", "path"), [pytest.param(*it, id="-".join((it[0].name, it[1]))) for it in PLACES])
def test_a_file_of_somebody_else_stays_and_nothing_is_written(host: Host, kind_of: Kind, path: str) -> None:
    name = there(kind_of, host).name
    theirs = host.file(path)
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_text("# theirs\n")
    before = files(host)
    try:
        assert_refused(host.nri_rdma("install", name), path)
        assert_refused(host.nri_rdma("uninstall", name), path)
        assert files(host) == before
    finally:
        theirs.unlink()


@pytest.mark.parametrize(("first", "second"), [(PODMAN, DOCKER), (DOCKER, PODMAN)], ids=lambda it: it.name)
def test_the_hook_that_the_other_engine_needs_stays(host: Host, first: Kind, second: Kind) -> None:
    there(DOCKER, host)
    install(host, first.name)
    install(host, second.name)
    done = host.nri_rdma("uninstall", first.name)
    assert (done.returncode, host.file(HOOK).exists(), host.file(MODULE).exists()) == (0, True, True), done.stderr
    assert [it for it in (HOOK, MODULE) if f"{it} stays: " not in done.stdout] == []
    done = host.nri_rdma("uninstall", second.name)
    assert (done.returncode, host.file(HOOK).exists(), host.file(MODULE).exists()) == (0, False, False), done.stderr


def test_a_later_drop_in_of_somebody_else_hides_no_hook(host: Host, podman: Podman) -> None:
    """Either it is refused to set podman up, or podman calls the hook: a container never starts bare."""
    later = host.file(f"{CONF_D}/99-theirs.conf")
    later.parent.mkdir(exist_ok=True)
    try:
        for folders in ('"/etc/theirs"', '"/etc/theirs", {append=true}', '"/etc/theirs", {append=false}'):
            if is_old(host) and "append" in folders:
                continue  # that podman reads no such file
            later.write_text(f"[engine]\nhooks_dir = [{folders}]\n")
            done = host.nri_rdma("install", PODMAN.name)
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
        install(host, PODMAN.name)
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
        assert_refused(host.nri_rdma("install", PODMAN.name), "podman")
        assert files(host) == before
    finally:
        broken.unlink()


def test_no_container_is_left_that_could_not_ask_any_more(
    host_equal: None, host: Host, daemon: Daemon, engine: Engine
) -> None:
    install(host, engine.name)
    engine.must(*engine.run("-d", "--name", "trainer", *asks(engine, [FIFTH]), command=SLEEP))
    before = files(host)
    assert_refused(host.nri_rdma("uninstall", engine.name), "trainer (runs)", "--force")
    engine.must("stop", "-t", "0", "trainer")
    assert_refused(host.nri_rdma("uninstall", engine.name), "trainer (does not run)")
    assert files(host) == before
    engine.must("rm", "trainer")
    done = host.nri_rdma("uninstall", engine.name)
    assert done.returncode == 0, done.stderr


def test_a_container_that_runs_gives_back_after_the_hooks_were_removed(
    host_equal: None, host: Host, daemon: Daemon, engine: Engine
) -> None:
    install(host, engine.name)
    engine.must(*engine.run("-d", "--name", "trainer", *asks(engine, [FIFTH]), command=SLEEP))
    done = host.nri_rdma("uninstall", engine.name, "--force")
    assert done.returncode == 0, done.stderr
    assert "rdma0" in in_container(engine, "trainer"), "it keeps what it has"
    engine.must("stop", "-t", "0", "trainer")
    wait_home()
    again = engine("start", "trainer")
    assert host_link("rail5") is not None, "this is why uninstall refuses without --force"
    assert (again.returncode == 0) == (engine.name == PODMAN.name), "podman starts it bare, Docker does not start it"


def test_the_hook_that_a_cdi_spec_names_stays(host: Host, node: Fabric, kind: Kind) -> None:
    install(host, kind.name)
    generate(host, node)
    done = host.nri_rdma("uninstall", kind.name)
    assert done.returncode == 0, done.stderr
    assert "rdma.noderesource.dev/nic=" in done.stdout
    assert host.file(HOOK).exists()
    assert host.file(MODULE).exists()
    assert not host.file(kind.folder).exists()


def is_old(host: Host) -> bool:
    return host.must("podman", "--version").startswith("podman version 4.")
