"""`nri-rdma install containerd` and `install crio` as a user runs them; whether runtimes take what they write is for
tests/runtime/test_install_guard.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from nri_rdma.host.containerd.containerd_program import running_configs
from tests.fakes.containerd import FakeContainerd
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until
from tests.unit.commands.cli.program import assert_one_error, nri_rdma

RUNC = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]'


class Node:
    """A containerd that is not running, with a main file of its own; `files` are in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "etc/config.toml"
        self.config.parent.mkdir()
        self.program("ctr", 'echo \'{"process": {"rlimits": [1]}}\'')
        self.program("containerd", f"[ \"$1\" = --version ] && echo x v2.3.7 && exit; echo '{RUNC}'; {self.merged}")

    @property
    def merged(self) -> str:
        """Says what the drop-in says, as containerd does of a main file without handlers."""
        return (
            f"cat {self.config.parent}/conf.d/*.toml 2>/dev/null | grep -E '^(base_runtime_spec|pod_annotations)'; true"
        )

    def program(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    @property
    def flags(self) -> tuple[str, ...]:
        hook, socket = self.folder / "hook/nri-rdma-hook", self.folder / "none.sock"
        cdi = ("--cdi-dirs", str(self.folder / "cdi"))
        return ("--guard-hook", str(hook), "--containerd-socket", str(socket), *cdi)

    @property
    def main_file(self) -> tuple[str, ...]:
        return ("--containerd-config", str(self.config))

    def files(self) -> list[str]:
        found = [it for top in ("etc", "hook", "hooks.d") for it in (self.folder / top).rglob("*") if it.is_file()]
        return sorted(str(it.relative_to(self.folder)) for it in found if it.suffix != ".pyc")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_is_shown_is_written_and_then_taken_away(node: Node) -> None:
    node.config.write_text('version = 3\nimports = ["conf.d/*.toml"]\n')
    words = ("containerd", *node.flags, *node.main_file)
    shown = nri_rdma("install", *words, "--dry-run", columns=200, environment=node.environment)
    assert (shown.returncode, node.files()) == (0, ["etc/config.toml"]), shown.stderr
    done = nri_rdma("install", *words, columns=200, environment=node.environment)
    made = [f"{node.folder}/{it}" for it in node.files() if it != "etc/config.toml"]
    assert sorted(line[4:] for line in done.stdout.splitlines() if line.startswith("+++ ")) == made
    assert shown.stdout.splitlines()[:-1] == done.stdout.splitlines()[:-1]
    spec = json.loads((node.folder / "etc/nri-rdma-base.json").read_text())
    assert (spec["hooks"]["createRuntime"][0]["path"], spec["process"]) == (f"{node.folder}/hook/nri-rdma-hook", {})
    for step in ("Next: systemctl restart containerd, then run this again", "containerd knows nothing of the guard"):
        assert step in nri_rdma("uninstall", *words, columns=200, environment=node.environment).stdout
    assert node.files() == ["etc/config.toml"]
    assert nri_rdma("uninstall", *words, environment=node.environment).stdout.endswith("nothing was changed.\n")


def test_the_hook_stays_while_a_cdi_device_or_a_line_by_hand_names_it(node: Node) -> None:
    node.config.write_text('version = 3\nimports = ["conf.d/*.toml"]\n')
    words = ("containerd", *node.flags, *node.main_file)
    nri_rdma("install", *words, environment=node.environment)
    nri_rdma("uninstall", *words, environment=node.environment)
    node.config.write_text(f'version = 3\n{RUNC}\nbase_runtime_spec = "{node.folder}/etc/nri-rdma-base.json"\n')
    done = nri_rdma("uninstall", *words, environment=node.environment)
    assert "by lines that nri-rdma did not write" in assert_one_error(done, "INSTALL", 1)
    node.config.write_text("version = 3\n")
    hook = {"hookName": "createRuntime", "path": f"{node.folder}/hook/nri-rdma-hook"}
    device = {"name": "d", "containerEdits": {"hooks": [hook]}}
    (node.folder / "cdi").mkdir()
    spec = {"cdiVersion": "0.5.0", "kind": "vendor.example/nic", "devices": [device]}
    (node.folder / "cdi/x.json").write_text(json.dumps(spec))
    assert "stays: the CDI device vendor.example/nic=d names it" in " ".join(
        nri_rdma("uninstall", *words, columns=200, environment=node.environment).stdout.split()
    )
    assert node.files() == ["etc/config.toml", "hook/nri-rdma-hook", "hook/nri_rdma_hook.py"]


def test_the_hook_stays_while_a_containerd_that_is_elsewhere_may_need_it(node: Node) -> None:
    """Its socket was not named: it cannot be asked, and its process shows which files it has."""
    node.config.write_text('version = 3\nimports = ["conf.d/*.toml"]\n')
    words = ("containerd", *node.flags, *node.main_file)
    assert nri_rdma("install", *words, environment=node.environment).returncode == 0
    (node.folder / "running").mkdir()
    program = node.folder / "running/containerd"
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o755)
    running = subprocess.Popen([program, "--config", node.config], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: (running.pid, node.config) in running_configs(), "the process to have its name")
        other = ("containerd", *node.flags, "--containerd-config", f"{node.folder}/other/config.toml")
        for verb in (other, ("crio", *node.flags, "--crio-socket", f"{node.folder}/none.sock")):
            done = nri_rdma("uninstall", *verb, columns=400, environment=node.environment)
            assert (done.returncode, "stays: " in done.stdout) == (0, True), done
        nri_rdma("uninstall", *words, environment=node.environment)
        done = nri_rdma("uninstall", *words, environment=node.environment)
        assert f"containerd (pid {running.pid}) runs with {node.config}" in assert_one_error(done, "INSTALL", 1)
    finally:
        running.communicate()
    assert "hook/nri-rdma-hook" in node.files()
    assert nri_rdma("uninstall", *words, environment=node.environment).returncode == 0
    assert node.files() == ["etc/config.toml"]


def test_without_containerd_nothing_is_set_up(tmp_path: Path) -> None:
    flags = ("--containerd-socket", tmp_path / "none.sock")
    done = nri_rdma("install", "containerd", *flags, environment={"PATH": str(tmp_path)})
    assert "no containerd in PATH" in assert_one_error(done, "INSTALL", 1)


@pytest.mark.parametrize(
    ("first", "words"), [("#!/gone/python3 -IS", "/gone/python3, with which "), ("#!/bin/false", "failed")]
)
def test_a_hook_that_cannot_be_run_here_is_not_set_up(
    node: Node, monkeypatch: pytest.MonkeyPatch, first: str, words: str
) -> None:
    """A node without that Python would start no container after the runtime's restart."""
    broken = node.folder / "packaged"
    broken.mkdir()
    (broken / "nri_rdma_hook.py").write_bytes((PROJECT / "hooks/nri_rdma_hook.py").read_bytes())
    whole = (PROJECT / "hooks/nri-rdma-hook").read_text()
    (broken / "nri-rdma-hook").write_text(first + whole[whole.index("\n") :])
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(broken))
    node.config.write_text('version = 3\nimports = ["conf.d/*.toml"]\n')
    with FakeContainerd() as crio:
        crio.configuration = json.dumps({"crio": {"HooksDir": [str(node.folder / "hooks.d")]}})
        for target in (("containerd", *node.main_file), ("crio", "--crio-socket", str(crio.socket))):
            done = nri_rdma("install", *target, *node.flags, environment=node.environment)
            assert words in assert_one_error(done, "INSTALL", 1)
            assert node.files() == ["etc/config.toml"]


def test_a_base_spec_of_somebody_else_that_is_none_is_told(node: Node) -> None:
    theirs = node.folder / "theirs.json"
    node.config.write_text(f'version = 3\nimports = ["conf.d/*.toml"]\n{RUNC}\nbase_runtime_spec = "{theirs}"\n')
    for text in (None, "no JSON", "[]"):
        if text is not None:
            theirs.write_text(text)
        done = nri_rdma("install", "containerd", *node.flags, *node.main_file, environment=node.environment)
        assert "cannot be used as an OCI configuration: " in assert_one_error(done, "INSTALL", 1)
    assert node.files() == ["etc/config.toml"]


def test_cri_o_has_the_definition_where_it_reads_hooks(node: Node) -> None:
    folder = node.folder / "hooks.d"
    with FakeContainerd() as crio:
        crio.configuration = json.dumps({"crio": {"HooksDir": [str(folder)]}})
        words = ("crio", *node.flags, "--crio-socket", str(crio.socket))
        assert nri_rdma("install", *words, "--control-socket", "/x.sock").returncode == 0
        made = json.loads((folder / "nri-rdma-guard.json").read_text())
        assert made["hook"]["args"] == ["nri-rdma-hook", "verify", "--control-socket", "/x.sock"]
        assert "Next: systemctl restart crio" in nri_rdma("uninstall", *words, columns=200).stdout
        early = assert_one_error(nri_rdma("uninstall", *words), "INSTALL", 1)
        assert f"CRI-O (pid {os.getpid()}) was started before {folder} was changed" in early
        os.utime(folder, (1, 1))
        assert nri_rdma("uninstall", *words).returncode == 0
    assert node.files() == []


def test_without_a_place_for_the_hook_nothing_is_set_up(node: Node) -> None:
    done = nri_rdma("install", "crio", *node.flags, "--guard-hook", "", "--crio-socket", node.folder / "none.sock")
    assert "the setting guard_hook is empty" in assert_one_error(done, "INSTALL", 1)
