"""Options and variables that several commands share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.commands.cli.manifests import GOOD
from tests.unit.commands.cli.program import PROJECT, assert_one_error, nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon


def test_a_setting_of_the_environment_is_named_when_it_is_wrong() -> None:
    done = nri_rdma("inventory", environment={"NRI_RDMA_TRACING": "perhaps"})
    assert "tracing = 'perhaps'" in assert_one_error(done, "SETTING", 2)


def test_the_prefix_is_an_option_and_a_variable() -> None:
    text = GOOD.replace("rdma.noderesource.dev: rails", "a.b: '0'")
    assert nri_rdma("validate", "-", text=text).returncode == 0
    assert nri_rdma("validate", "-", "--annotation-prefix", "a.b", text=text).returncode == 1
    assert nri_rdma("validate", "-", text=text, environment={"NRI_RDMA_ANNOTATION_PREFIX": "a.b"}).returncode == 1


def test_a_prefix_that_no_key_has_is_refused() -> None:
    told = assert_one_error(nri_rdma("validate", "-", "--annotation-prefix", "a.b/", text=GOOD), "SETTING", 2)
    assert "--annotation-prefix 'a.b/' cannot be used" in told


BROKEN = {"no TOML": "allow_default_pool = maybe\n", "a typo": 'log_levle = "info"\n', "a value": "memlock = []\n"}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("command", ["status", "trace", "inventory", "topology"])
def test_what_asks_the_daemon_works_while_the_configuration_file_cannot_be_used(
    daemon: InsideDaemon, tmp_path: Path, command: str, text: str
) -> None:
    where = {"NRI_RDMA_STATE_DIR": str(daemon.settings.state_dir)}
    sound = nri_rdma(command, environment=where)
    (tmp_path / "config.toml").write_text(text)
    done = nri_rdma(command, "--config", tmp_path / "config.toml", environment=where)
    first_lines = [
        it.stdout.partition("\n")[0].partition(", up ")[0] for it in (done, sound)
    ]  # up 0 s may be up 1 s now
    assert (done.returncode, first_lines[0]) == (0, first_lines[1])
    assert done.stderr.startswith("warning: nri-rdma: SETTING: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_broken_file_still_tells_where_the_daemon_is(daemon: InsideDaemon, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'state_dir = "{daemon.settings.state_dir}"\nlog_levle = 1\n')
    assert nri_rdma("status", "--config", path).returncode == 0


def test_a_pod_is_explained_with_what_the_daemon_knows_and_never_with_a_file_that_cannot_be_used(
    daemon: InsideDaemon, tmp_path: Path
) -> None:
    broken, pod = tmp_path / "config.toml", tmp_path / "pod.yaml"
    broken.write_text(BROKEN["a typo"])
    pod.write_text(GOOD)
    explain = ("explain", pod, "--config", broken, "--state-dir")
    sound = nri_rdma("explain", pod, "--state-dir", daemon.settings.state_dir)
    assert nri_rdma(*explain, daemon.settings.state_dir).stdout == sound.stdout
    assert_one_error(nri_rdma(*explain, tmp_path), "SETTING", 2)


def test_what_would_be_done_for_pods_needs_a_sound_file(tmp_path: Path) -> None:
    broken = tmp_path / "config.toml"
    broken.write_text(BROKEN["a value"])
    assert_one_error(nri_rdma("run", "--dry-run", "--config", broken), "SETTING", 2)


# The file of a daemon that the runtime starts

ASKING = (
    ("status",),
    ("snapshot",),
    ("cdi", "generate"),
    ("config", "show"),
    ("run", "--dry-run"),
)


@pytest.mark.root
@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_commands_read_the_file_of_the_daemon_that_the_runtime_starts(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert "unknown setting of_the_runtime" in _told_with_both_files(tmp_path, *command)


@pytest.mark.root
def test_a_daemon_that_is_started_by_hand_reads_the_usual_file(tmp_path: Path) -> None:
    told = _told_with_both_files(tmp_path, "run", "--state-dir", "/proc/version/none")  # where no daemon can be
    assert "unknown setting of_the_unit" in told


@pytest.mark.root
def test_a_file_that_is_named_goes_before_the_one_of_the_runtime(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text("of_the_flag = 1\n")
    assert "unknown setting of_the_flag" in _told_with_both_files(tmp_path, "config", "show", "--config", str(named))


def _told_with_both_files(folder: Path, *command: str) -> str:
    """What a command says on stderr where a folder is /etc, with a wrong file for each kind of daemon."""
    (folder / "plugins").mkdir()
    (folder / "plugins/90-nri-rdma").touch(0o755)
    places = f'plugin_path = "{folder}/plugins"\nplugin_config_path = "{folder}/conf"\n'
    for name, text in {
        "conf/90-nri-rdma.conf": "of_the_runtime = 1\n",
        "etc/nri-rdma/config.toml": "of_the_unit = 1\n",
        "etc/containerd/config.toml": f'[plugins."io.containerd.nri.v1.nri"]\n{places}',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    script = 'mount --bind "$0" /etc && exec "$@"'
    program = [sys.executable, "-m", "nri_rdma", *command]
    inside = ["unshare", "--mount", "sh", "-c", script, str(folder / "etc"), *program]
    environment = {**os.environ, "NRI_RDMA_STATE_DIR": str(folder / "state")}
    return subprocess.run(
        inside, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=20
    ).stderr
