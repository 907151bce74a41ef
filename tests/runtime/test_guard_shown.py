"""`status` and `doctor` tell whether a guard is there from the runtime's configuration: before a hook has asked, and
after the hook was taken out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.cri import Cri
from tests.rig.daemon import EXCLUSIVE_FIRST, PROJECT, Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.guard import GUARDED
from tests.rig.runtime import SANDBOXED, Runtime
from tests.rig.scrape import free_port, scrape

pytestmark = [pytest.mark.root, pytest.mark.runtime]

ASKS = {"rdma.noderesource.dev/pod": "[{match: {device: mlx5_3}}]"}


def test_a_guard_is_shown_as_the_runtime_is_configured(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, tmp_path: Path
) -> None:
    """What /etc/containerd/config.toml says is what the rig's containerd is configured with."""
    configuration = Path(runtime.command()[2]).read_text()
    (tmp_path / "containerd").mkdir()
    file = tmp_path / "containerd/config.toml"
    with Daemon(runtime, node) as daemon:
        assert "WARNING, not known" in guard_in_status(daemon, tmp_path)
        assert doctor(daemon, tmp_path).startswith("warning not known: ")
        file.write_text(configuration)
        assert f"hook for containerd's {GUARDED}: it has asked about no container yet" in guard_in_status(
            daemon, tmp_path
        )
        assert f"createRuntime hook for containerd's {GUARDED}" in doctor(daemon, tmp_path)
        pod = cri.run_pod("asks", annotations=ASKS, runtime_handler=GUARDED)
        cri.start(cri.create_container(pod, "main"))
        cri.delete_pod(pod)
        assert f"hook for containerd's {GUARDED}: asked about 1 container, last " in guard_in_status(daemon, tmp_path)
        daemon.kill()
        daemon.start()
        lines = configuration.splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.startswith("base_runtime_spec")))
        assert "WARNING, none: " in (shown := guard_in_status(daemon, tmp_path))
        assert "it has asked about no container since this daemon started, last " in shown
        assert doctor(daemon, tmp_path).startswith("warning none: ")
    (runtime.run / "nri-rdma/guard").unlink()


def test_the_runtime_that_runs_says_which_handlers_have_it(host_equal: None, runtime: Runtime, node: Fabric) -> None:
    """Whatever /etc says: k3s and others have their files elsewhere, and these may have been changed since."""
    metrics = free_port()
    flags = (*EXCLUSIVE_FIRST, "--metrics-address", f"127.0.0.1:{metrics}")
    asked = ("--containerd-socket", str(runtime.cri_address))
    bare = "no guard, so pods may start without their devices: no base_runtime_spec"
    with Daemon(runtime, node, extra=flags) as daemon:
        shown = " ".join(daemon.cli("status", *asked).stdout.split())
        assert f"createRuntime hook for containerd's {GUARDED}: " in shown
        assert "WARNING, not guarded: containerd's runc: no base_runtime_spec" in shown
        assert daemon.cli("status", "--check", *asked).returncode == 0
        required = daemon.cli("status", "--check", "--require-guard", "--except-handler", SANDBOXED, *asked)
        assert (required.returncode, required.stdout) == (1, f"containerd's runc has {bare}\n")
        wanted = {GUARDED: 1.0, "runc": 0.0, SANDBOXED: 0.0}
        wait_until(lambda: _guarded(metrics) == wanted, lambda: f"the page to have {wanted}: {_guarded(metrics)}")


def _guarded(port: int) -> dict[str, float]:
    """The gauge, by handler."""
    return {
        dict(labels)["handler"]: value for labels, value in scrape(port).samples.get("nri_rdma_guarded", {}).items()
    }


def guard_in_status(daemon: Daemon, etc: Path) -> str:
    """The lines of `status` on the guard, as one."""
    shown = " ".join(under(etc, "status", "--state-dir", str(daemon.state_dir)).split())
    return shown[shown.index(" Guard ") : shown.index(" Pool ")]


def doctor(daemon: Daemon, etc: Path) -> str:
    """Result and words of doctor's check of the guard."""
    checks = json.loads(under(etc, "doctor", "--state-dir", str(daemon.state_dir), "-o", "json"))["checks"]
    (check,) = (it for it in checks if it["check"] == "guard")
    return f"{check['result']} {check['found']}"


def under(etc: Path, *arguments: str) -> str:
    """What a command prints where a folder is /etc."""
    script = 'mount --bind "$0" /etc && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, str(etc), sys.executable, "-m", "nri_rdma", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False).stdout
