"""`nri-rdma install containerd` and `install crio` give a runtime the guard without an edit by hand, and `uninstall`
leaves its configuration as it was, byte by byte. `install systemd` writes the daemon's unit."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.rig import cache
from tests.rig.containerd import Containerd
from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.expect import look
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime
from tests.runtime.test_guard import ASKS, expected, nodes_of, refused, run

pytestmark = [pytest.mark.root, pytest.mark.runtime]

CONFIGURATION = ("config.toml", "conf.d", "nri-rdma-base*.json", "hook", "hooks")
"""What `install` may write of a rig's folder, which also has sockets and state."""


@pytest.fixture(scope="module", params=[cache.CONTAINERD_1_7, cache.ALWAYS[0]], ids=lambda it: it.name)
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    """A containerd of its own, before and since 2.0."""
    with Containerd(tmp_path_factory.mktemp("fresh"), release=request.param) as running:
        yield running


def test_install_containerd_guards_every_handler_and_uninstall_leaves_what_was_there(
    host_equal: None, fresh: Containerd, node: Fabric
) -> None:
    before = files(fresh)
    refusal = nri_rdma(fresh, "install", "containerd")
    assert (refusal.returncode, files(fresh)) == (1, before), "its main file is somebody else's"
    assert "--edit-config" in refusal.stderr
    shown = must(fresh, "install", "containerd", "--edit-config", "--dry-run")
    assert files(fresh) == before
    assert "+++ " in shown
    assert "Next: systemctl restart " in must(fresh, "install", "containerd", "--edit-config")
    assert guards_after_restart(fresh, node)
    assert "nothing was changed" in must(fresh, "install", "containerd")
    removed_in_two_steps(fresh, "containerd")
    assert files(fresh) == before
    assert starts(fresh.cri, "plain")


def test_where_a_folder_is_imported_the_main_file_is_left_alone(
    host_equal: None, fresh: Containerd, node: Fabric
) -> None:
    """Also one of version 2, which containerd 2 reads, and with a drop-in of somebody else."""
    config = Path(fresh.command()[2])
    plain = config.read_bytes()
    folder = fresh.run / "conf.d"
    folder.mkdir()
    (folder / "10-theirs.toml").write_text(f"version = {config.read_text()[10]}\n[debug]\nlevel = 'info'\n")
    config.write_bytes(b'imports = ["' + str(folder).encode() + b'/*.toml"]\n' + plain)
    try:
        before = files(fresh)
        done = nri_rdma(fresh, "install", "containerd")
        if fresh.release == cache.CONTAINERD_1_7:
            assert (done.returncode, files(fresh)) == (1, before)
            assert "before 2.0, containerd reads a drop-in as the whole configuration of pods" in done.stderr
            return
        assert done.returncode == 0, done.stderr
        made = files(fresh)
        assert {path: made[path] for path in before} == before
        assert min(made.keys() - before.keys()) == "conf.d/90-nri-rdma.toml"
        assert guards_after_restart(fresh, node)
        removed_in_two_steps(fresh, "containerd")
        assert files(fresh) == before
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        config.write_bytes(plain)
        fresh.restart()


def test_a_later_file_that_takes_the_guard_away_is_noticed(fresh: Containerd) -> None:
    config, folder = Path(fresh.command()[2]), fresh.run / "conf.d"
    plain = config.read_bytes()
    cri = "grpc.v1.cri" if fresh.release == cache.CONTAINERD_1_7 else "cri.v1.runtime"
    folder.mkdir()
    (folder / "zz.toml").write_text(
        f"""version = {plain.decode()[10]}
[plugins."io.containerd.{cri}".containerd.runtimes.runc]
base_runtime_spec = "{fresh.run}/guarded.json"
"""
    )
    config.write_bytes(b'imports = ["conf.d/*.toml"]\n' + plain)
    try:
        before = files(fresh)
        done = nri_rdma(fresh, "install", "containerd", "--edit-config", "--handler", "runc")
        assert done.returncode == 1
        assert "nri-rdma: INSTALL: containerd would " in done.stderr
        made = files(fresh)
        assert {path: made[path] for path in before} == before
        assert [path for path in made.keys() - before.keys() if made[path][1]] == []
    finally:
        config.write_bytes(plain)
        (folder / "zz.toml").unlink()
        folder.rmdir()


@pytest.mark.every_runtime
def test_install_crio_guards_all_handlers_and_uninstall_leaves_what_was_there(
    host_equal: None, runtime: Runtime, node: Fabric
) -> None:
    if not runtime.release.is_crio:
        pytest.skip("this is containerd, which the tests above are about")
    before = files(runtime)
    must(runtime, "install", "crio", "--dry-run")
    assert files(runtime) == before
    must(runtime, "install", "crio")
    assert guards_after_restart(runtime, node)
    assert "nothing was changed" in must(runtime, "install", "crio")
    removed_in_two_steps(runtime, "crio")
    assert files(runtime) == before
    assert starts(runtime.cri, "plain")
    (runtime.run / "nri-rdma/guard").unlink()


def test_the_unit_of_systemd_is_written_once_and_goes_when_it_is_disabled(tmp_path: Path) -> None:
    """In a folder that is /etc."""
    unit = tmp_path / "systemd/system/nri-rdma.service"
    assert "Next: systemctl daemon-reload && systemctl enable --now nri-rdma" in in_etc(tmp_path, "install").stdout
    made = unit.read_bytes()
    assert in_etc(tmp_path, "install").stdout == "systemd is set up already; nothing was changed.\n"
    wants = unit.parent / "multi-user.target.wants"
    wants.mkdir()
    (wants / unit.name).symlink_to("/etc/systemd/system/nri-rdma.service")
    refused = in_etc(tmp_path, "uninstall")
    assert (refused.returncode, unit.read_bytes()) == (1, made)
    assert "systemctl disable --now nri-rdma" in refused.stderr
    (wants / unit.name).unlink()
    assert in_etc(tmp_path, "uninstall").returncode == 0
    assert not unit.exists()
    unit.write_text("# theirs\n")
    assert (in_etc(tmp_path, "install").returncode, unit.read_text()) == (1, "# theirs\n")


def in_etc(etc: Path, verb: str) -> subprocess.CompletedProcess[str]:
    script = 'mount --bind "$0" /etc && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, str(etc), str(cache.VENV / "bin/nri-rdma"), verb, "systemd"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"})


def guards_after_restart(runtime: Runtime, node: Fabric) -> bool:
    """Whether each handler that had no guard refuses a dead daemon's pod, and starts one that asks for nothing."""
    runtime.restart()
    with Daemon(runtime, node) as daemon:
        pod = runtime.cri.run_pod("asks", annotations=ASKS)
        assert nodes_of(runtime.cri, run(runtime.cri, pod, "main")) == expected(node)
        daemon.kill()
        assert "nri-rdma: DAEMON-ABSENT: the daemon is gone: " in refused(runtime.cri, pod, "second")
        plain = starts(runtime.cri, "plain")
        daemon.start()
        assert nodes_of(runtime.cri, run(runtime.cri, pod, "second", attempt=1)) == expected(node)
        runtime.cri.delete_pod(pod)
    return plain


def removed_in_two_steps(runtime: Runtime, name: str) -> None:
    """The configuration, a restart of the runtime, the hook: at each moment containers start."""
    hook = runtime.run / "hook/nri-rdma-hook"
    must(runtime, "uninstall", name, "--dry-run")
    assert "Next: systemctl restart " in must(runtime, "uninstall", name)
    early = nri_rdma(runtime, "uninstall", name)
    assert (early.returncode, hook.exists()) == (1, True), "the runtime that runs still has the guard"
    assert "no container would start" in early.stderr
    assert starts(runtime.cri, "still")
    runtime.restart()
    assert starts(runtime.cri, "again")
    must(runtime, "uninstall", name)
    assert not hook.exists()


def starts(cri: Cri, name: str) -> bool:
    """Whether a pod that asks for nothing starts."""
    pod = cri.run_pod(name)
    try:
        return look(cri, run(cri, pod, "main")).nodes == {}
    except CriError:
        return False
    finally:
        cri.delete_pod(pod)


def files(runtime: Runtime) -> Mapping[str, tuple[int, bytes]]:
    """The files where ours may come, with their modes and contents; a folder has none."""
    found = {}
    for pattern in CONFIGURATION:
        for top in runtime.run.glob(pattern):
            for path in (top, *top.rglob("*")):
                name = str(path.relative_to(runtime.run))
                found[name] = (path.stat().st_mode, b"" if path.is_dir() else path.read_bytes())
    return found


def must(runtime: Runtime, *arguments: str) -> str:
    done = nri_rdma(runtime, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def nri_rdma(runtime: Runtime, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with the settings of the rig's daemon; ctr is the rig's."""
    flags = [
        *("--state-dir", str(runtime.run / "nri-rdma")),
        *("--kubelet-plugins-dir", str(runtime.run / "kubelet/plugins")),
        *("--guard-hook", str(runtime.run / "hook/nri-rdma-hook")),
        *("--containerd-socket", str(runtime.cri_address)),
        *("--cdi-dirs", str(runtime.cdi_dir)),
    ]
    if "crio" in arguments:
        flags += ["--crio-socket", str(runtime.cri_address)]
    environment = os.environ | {"PATH": f"{cache.CTR.parent}:{os.environ['PATH']}", "COLUMNS": "200"}
    command = [str(cache.VENV / "bin/nri-rdma"), *arguments, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
