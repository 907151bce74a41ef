"""The command `nri-rdma doctor`: its exit codes, its output for programs, and bad settings."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.runtime import FakeRuntime
from tests.rig.daemon import PROJECT
from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.commands.doctor.bench import (
    Bench,
    served,
)


def _flags(bench: Bench, eight: Path) -> list[str | Path]:
    return [
        *("--nri-socket", bench.settings.nri_socket, "--state-dir", bench.settings.state_dir),
        *("--sysfs-root", eight, "--dev-root", bench.dev, "--cgroup-root", bench.cgroup),
    ]


def test_the_command_ends_with_1_for_problems_and_tells_them_to_programs(bench: Bench, eight: Path) -> None:
    done = nri_rdma("doctor", "-o", "json", *_flags(bench, eight))
    document = json.loads(done.stdout)
    by_name = {it["check"]: it for it in document["checks"]}
    assert done.returncode == 1
    assert by_name["devices"]["found"].startswith("8 RDMA devices")
    assert by_name["NRI socket"]["result"] == "problem"
    assert document["problems"] == sum(1 for it in document["checks"] if it["result"] == "problem")


def test_warnings_count_when_it_is_strict(bench: Bench, eight: Path) -> None:
    for strict, code in ((False, 0), (True, 1)):
        with served(FakeRuntime(bench.settings.nri_socket)):
            done = nri_rdma("doctor", *_flags(bench, eight), *(["--strict"] if strict else []))
        bench.settings.nri_socket.unlink()
        assert done.returncode == code, done.stdout
        assert "run `nri-rdma install containerd`" in " ".join(done.stdout.split())
        assert "0 problems" in done.stdout
        assert "Nothing was changed." in done.stdout


def test_it_stays_until_it_is_ended_if_it_is_asked_to(bench: Bench, eight: Path) -> None:
    command = [sys.executable, "-m", "nri_rdma", "doctor", "-o", "json", "--stay", *map(str, _flags(bench, eight))]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = "".join(iter(process.stdout.readline, "}\n")) + "}"
        assert json.loads(told)["problems"] > 0
        assert process.poll() is None
        process.terminate()
    assert process.returncode == -signal.SIGTERM


@pytest.mark.root
def test_the_file_of_a_daemon_that_the_runtime_starts_is_read_in_place_of_the_usual_one(
    bench: Bench, eight: Path
) -> None:
    """A folder is /etc: its containerd names folders of plugins and of their configurations."""
    (bench.folder / "mine").mkdir()
    (bench.folder / "mine/90-nri-rdma").touch(0o755)
    sent = bench.write("conf/90-nri-rdma.conf", '[pools.gold]\nmodes = ["shared"]\n')
    folders = f'plugin_path = "{bench.folder}/mine"\nplugin_config_path = "{bench.folder}/conf"\n'
    bench.write("etc/containerd/config.toml", f'[plugins."io.containerd.nri.v1.nri"]\n{folders}')
    bench.write("etc/nri-rdma/config.toml", "no_such_setting = 1\n")
    assert configuration(bench, eight) == {"result": "ok", "found": f"{sent}: 1 pool, 0 rules"}
    sent.write_text("another = 1\n")
    assert configuration(bench, eight)["found"].startswith(f"{sent}:1: unknown setting another")
    sent.unlink()
    assert "config.toml:1: unknown setting no_such_setting" in configuration(bench, eight)["found"]


def configuration(bench: Bench, eight: Path) -> dict[str, str]:
    """What doctor says of the configuration where the bench's folder is /etc."""
    script = 'mount --bind "$0" /etc && exec "$@"'
    program = [sys.executable, "-m", "nri_rdma", "doctor", "-o", "json", *map(str, _flags(bench, eight))]
    command = ["unshare", "--mount", "sh", "-c", script, str(bench.etc), *program]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    (check,) = (it for it in json.loads(done.stdout)["checks"] if it["check"] == "configuration")
    return {"result": check["result"], "found": check["found"]}


def test_a_bad_file_is_a_finding_and_a_bad_flag_a_usage_error(bench: Bench, eight: Path) -> None:
    file = bench.write("bad.toml", "\nno_such_setting = 1\n")
    done = nri_rdma("doctor", "--config", file, *_flags(bench, eight), columns=200)
    assert done.returncode == 1
    assert f"problem  configuration   {file}:2: unknown setting no_such_setting" in done.stdout
    assert_one_error(nri_rdma("doctor", "--memlock", "much"), "SETTING", 2)
