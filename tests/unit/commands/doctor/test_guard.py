"""The doctor says which guard is set up, for which of the runtime's handlers, and what is wrong with it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.commands.doctor.examination import CHECKS
from nri_rdma.commands.doctor.finding import Finding, Result
from nri_rdma.commands.doctor.guard import guard, limits
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.config.settings import Settings
from nri_rdma.model.device import Node, RdmaNetns
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode as RequestMode
from tests.fakes.containerd import FakeContainerd, Mode

PROJECT = Path(__file__).resolve().parents[4]
PATTERNS = ["rdma.noderesource.dev", "rdma.noderesource.dev/*"]
V1, V2 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"


class Site:
    """A machine whose runtime is configured in a folder of the test; no daemon answers there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hook = self.write("bin/nri-rdma-hook", "#!/bin/sh\n")
        self.hook.chmod(0o755)
        self.settings = Settings(
            nri_socket=folder / "nri.sock",
            control_socket=folder / "control.sock",
            containerd_socket=folder / "containerd.sock",
        )
        self.status: dict[str, Any] | None = None

    def write(self, path: str, text: str) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def base(self, *arguments: str, name: str = "base.json") -> Path:
        """An OCI configuration with the hook."""
        given = arguments or ("--control-socket", str(self.settings.control_path))
        hook = {"path": str(self.hook), "args": ["nri-rdma-hook", "verify", *given]}
        return self.write(name, json.dumps({"hooks": {"createRuntime": [{"path": "/other"}, hook]}}))

    def containerd(self, *, table: str = V2, file: str = "config.toml", **handlers: dict[str, Any]) -> None:
        lines = ["version = 2"] if table == V1 else ["version = 3"]
        for name, handler in handlers.items():
            lines.append(f'[plugins."{table}".containerd.runtimes.{name}]')
            lines += [f"{key} = {json.dumps(value)}" for key, value in handler.items()]
        self.write(f"etc/containerd/{file}", "\n".join(lines))

    def guarded(self, *arguments: str) -> dict[str, Any]:
        """A handler's table, as it should be."""
        return {"base_runtime_spec": str(self.base(*arguments)), "pod_annotations": PATTERNS}

    def finding(self) -> Finding:
        """What the check of the guard finds."""
        return guard(self.machine())

    def machine(self) -> Machine:
        node = Node(devices=(), gpus=(), rdma_cm=None, rdma_netns=RdmaNetns.NONE, rdma_cgroup=False)
        machine = Machine(
            settings=self.settings,
            read_node=lambda: (node, ()),
            etc=self.folder / "etc",
            share=self.folder / "share",
            run=self.folder / "run",
        )
        if self.status is not None:
            vars(machine)["daemon"] = {"guard": self.status}
        return machine


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_without_any_configuration_of_a_runtime_it_is_not_known(site: Site) -> None:
    found = site.finding()
    assert found.result is Result.WARNING
    assert found.found == (
        f"not known: no configuration of containerd or CRI-O is in {site.folder}/etc, and no daemon answers that a "
        "hook could have asked; without a guard, pods start without the devices they ask for while no daemon runs"
    )
    assert "docs/guard.md" in found.fix


@pytest.mark.parametrize("table", [V1, V2])
def test_a_handler_that_is_set_up_is_named(site: Site, table: str) -> None:
    site.containerd(table=table, runc=site.guarded())
    assert site.finding() == Finding(check="guard", result=Result.OK, found="createRuntime hook for containerd's runc")


def test_a_handler_that_is_not_set_up_is_a_warning_beside_one_that_is(site: Site) -> None:
    site.containerd(runc=site.guarded(), nvidia={"runtime_type": "io.containerd.runc.v2"})
    found = site.finding()
    assert found.result is Result.WARNING
    assert found.found == (
        "createRuntime hook for containerd's runc. Not guarded: containerd's nvidia: no base_runtime_spec"
    )


def test_a_containerd_without_handlers_of_its_own_has_runc(site: Site) -> None:
    site.write("etc/containerd/config.toml", "version = 3")
    assert "(containerd's runc: no base_runtime_spec)" in site.finding().found


def test_files_that_are_imported_count(site: Site) -> None:
    site.containerd(file="conf.d/guard.toml", runc=site.guarded())
    for pattern in ("conf.d/*.toml", f"{site.folder}/etc/containerd/conf.d/*.toml"):
        site.write("etc/containerd/config.toml", f"version = 3\nimports = [{json.dumps(pattern)}]")
        assert site.finding().result is Result.OK


@pytest.mark.parametrize(
    "patterns",
    [[], ["rdma.noderesource.dev*"], ["rdma.noderesource.dev/*"], ["*"], ["rdma.noderesource.dev"], "*", [1]],
)
def test_annotations_that_the_hook_cannot_see_are_told_because_no_pod_would_be_guarded(
    site: Site, patterns: object
) -> None:
    site.containerd(runc=site.guarded() | {"pod_annotations": patterns})
    found = site.finding()
    assert found.result is Result.WARNING
    assert 'it needs ["rdma.noderesource.dev", "rdma.noderesource.dev/*"]' in found.found


@pytest.mark.parametrize("patterns", [["*", "*/*"], ["rdma.*", "rdma.noderesource.dev/*"], [*PATTERNS, "io.other/*"]])
def test_wider_patterns_are_as_good(site: Site, patterns: list[str]) -> None:
    site.containerd(runc=site.guarded() | {"pod_annotations": patterns})
    assert site.finding().result is Result.OK


def test_a_hook_that_asks_another_daemon_or_for_another_prefix_is_told(site: Site) -> None:
    ours = ("--control-socket", str(site.settings.control_path))
    site.containerd(runc=site.guarded("--timeout=1"))
    assert "the hook's --control-socket is /run/nri-rdma/control.sock, and the daemon's is" in site.finding().found
    site.containerd(runc=site.guarded(*ours, "--annotation-prefix=rdma.example.com"))
    assert "the hook's --annotation-prefix is rdma.example.com, and" in site.finding().found
    site.settings = replace(site.settings, annotation_prefix="rdma.example.com")
    site.containerd(
        runc=site.guarded(*ours, "--annotation-prefix", "rdma.example.com") | {"pod_annotations": ["*", "*/*"]}
    )
    assert site.finding().result is Result.OK


def test_where_claims_are_served_the_hook_has_to_read_the_checkpoint_of_that_kubelet(site: Site) -> None:
    site.containerd(runc=site.guarded())
    site.settings = replace(site.settings, kubelet_plugins_dir=Path("/data/kubelet/plugins"))
    assert "--kubelet-checkpoint" not in site.finding().found
    nics = Pool(name="nics", modes=(RequestMode.SHARED,), door=PoolDoor.CLAIMS)
    site.settings = replace(site.settings, pools=(nics,))
    words = "the hook's --kubelet-checkpoint is /var/lib/kubelet/dra_manager_state, and the daemon's is /data/kubelet/"
    assert words in site.finding().found


def test_a_hook_that_cannot_be_run_is_told_because_no_container_starts(site: Site) -> None:
    site.containerd(runc=site.guarded())
    site.hook.chmod(0o644)
    for _ in range(2):
        found = site.finding()
        assert (found.result, found.found) == (
            Result.PROBLEM,
            f"no container starts: containerd's runc: {site.hook} does not exist or is not executable",
        )
        assert "base_runtime_spec" in found.fix
        site.hook.unlink(missing_ok=True)
    site.hook.symlink_to(site.hook)  # a loop
    assert site.finding().found.endswith(f"{site.hook} does not exist or is not executable")


def test_a_hook_whose_interpreter_is_missing_or_that_is_a_folder_cannot_be_run_either(site: Site) -> None:
    site.containerd(runc=site.guarded())
    site.hook.write_text("#! /no/such/python3 -IS\n")
    assert site.finding().result is Result.PROBLEM
    site.hook.write_text("#! /bin/sh\n")
    assert site.finding().result is Result.OK
    site.hook.unlink()
    site.hook.mkdir()
    assert site.finding().result is Result.PROBLEM


def test_a_hook_without_its_module_is_told_because_no_container_starts(site: Site) -> None:
    for file in ("nri_rdma_hook.py", "nri-rdma-hook"):
        shutil.copy(PROJECT / "hooks" / file, site.hook.parent)
    site.containerd(runc=site.guarded())
    assert site.finding().result is Result.OK
    module = site.hook.with_name("nri_rdma_hook.py")
    module.unlink()
    assert (site.finding().result, site.finding().found) == (
        Result.PROBLEM,
        f"no container starts: containerd's runc: {module} is not there",
    )
    moved = site.hook.rename(site.folder / "nri-rdma-hook")
    shutil.copy(PROJECT / "hooks/nri_rdma_hook.py", moved.parent)
    site.hook.symlink_to(moved)
    assert site.finding().result is Result.OK, "the program looks for it where it lies"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file or directory"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "has no nri-rdma-hook among its createRuntime hooks"),
        ('{"hooks": {"createRuntime": 7}}', "has no nri-rdma-hook"),
        ('{"hooks": {"prestart": [{"path": "/x/nri-rdma-hook", "args": ["", "verify"]}]}}', "has no nri-rdma-hook"),
        ('{"hooks": {"createRuntime": [7, {"path": "/x/nri-rdma-hook", "args": "verify"}]}}', "has no nri-rdma-hook"),
    ],
)
def test_an_oci_configuration_without_the_hook_is_told(site: Site, text: str | None, words: str) -> None:
    handler = site.guarded()
    path = Path(handler["base_runtime_spec"])
    path.unlink()
    if text is not None:
        path.write_text(text)
    site.containerd(runc=handler)
    assert words in site.finding().found


def test_what_no_configuration_should_have_is_no_crash(site: Site) -> None:
    for text in (
        "plugins = 3",
        f'[plugins."{V2}".containerd]\nruntimes = [1]',
        f'[plugins."{V2}".containerd.runtimes]\nrunc = 3',
        f'imports = 3\n[plugins."{V2}".containerd.runtimes.runc]\nbase_runtime_spec = ["x"]',
        "not toml",
    ):
        site.write("etc/containerd/config.toml", text)
        assert site.finding().result is Result.WARNING


def test_cri_os_definition_of_the_project_is_a_guard(site: Site) -> None:
    document = json.loads((PROJECT / "hooks/nri-rdma-guard.json").read_text())
    document["hook"]["path"] = str(site.hook)
    document["hook"]["args"] += ["--control-socket", str(site.settings.control_path)]
    site.write("etc/crio/crio.conf", "")
    assert "CRI-O: no nri-rdma-hook in" in site.finding().found
    site.write("share/containers/oci/hooks.d/other.json", "{")
    site.write("share/containers/oci/hooks.d/nri-rdma-guard.json", json.dumps(document))
    assert site.finding() == Finding(check="guard", result=Result.OK, found="createRuntime hook for CRI-O")
    site.write("etc/crio/crio.conf.d/10", f'[crio.runtime]\nhooks_dir = ["{site.folder}/hooks"]')
    assert f"CRI-O: no nri-rdma-hook in {site.folder}/hooks" in site.finding().found
    site.write("hooks/x.json", json.dumps(document))
    assert site.finding().result is Result.OK
    site.write("hooks/x.json", json.dumps(document | {"stages": ["prestart"]}))
    assert "lacks the stage createRuntime" in site.finding().found
    site.write("hooks/x.json", json.dumps(document | {"when": {"annotations": {"a": "b"}}}))
    assert "is not for every container" in site.finding().found


def test_a_validator_that_requires_us_is_half_a_guard(site: Site) -> None:
    """A plugin that answers too late counts as one that has answered (containerd/nri issue 316)."""
    site.write(
        "etc/containerd/config.toml",
        '[plugins."io.containerd.nri.v1.nri".default_validator]\nenable = true\nrequired_plugins = ["nri-rdma"]',
    )
    assert site.finding().result is Result.WARNING
    assert "containerd's validator requires nri-rdma of every container, which helps while the daemon is absent" in (
        site.finding().found
    )
    site.settings = replace(site.settings, plugin_name="other")
    assert site.finding().found.startswith("none: ")
    site.write(
        "etc/crio/crio.conf",
        '[crio.nri.default_validator]\nnri_enable_default_validator = true\nnri_validator_required_plugins = ["other"]',
    )
    assert "CRI-O's validator requires other of every container" in site.finding().found


def test_what_the_daemon_was_asked_counts_where_the_configuration_cannot_be_seen(site: Site) -> None:
    site.status = {"active": "createRuntime hook", "asked": 12, "unguarded": []}
    words = "the daemon was asked about 12 containers. Not known: which runtime handlers have it: "
    assert site.finding().found.startswith(words), "another handler may have none"
    assert site.finding().result is Result.WARNING
    site.status["unguarded"] = ["default/x, container a"]
    assert site.finding().result is Result.WARNING
    assert "Not guarded: default/x, container a" in site.finding().found
    for active in ("none", "unknown"):  # what daemons say, older and newer
        site.status = {"active": active, "asked": 0, "last": 0.0}
        assert site.finding().found.startswith("not known: ")
        assert "and no hook has asked this daemon; " in site.finding().found


def test_a_hook_that_asked_an_earlier_daemon_only_is_not_known_to_be_there_still(site: Site) -> None:
    site.status = {"active": "createRuntime hook", "asked": 0, "last": 1.0, "unguarded": []}
    assert site.finding().result is Result.WARNING
    assert "no hook has asked this daemon, only an earlier one" in site.finding().found
    site.containerd(runc={"runtime_type": "io.containerd.runc.v2"})
    assert site.finding().found.startswith("none: ")
    site.containerd(runc=site.guarded())
    assert site.finding() == Finding(check="guard", result=Result.OK, found="createRuntime hook for containerd's runc")


NOFILE = {"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 4096}


def with_limits(site: Site, rlimits: object) -> Path:
    """The OCI configuration with the hook, and these limits."""
    path = site.base()
    path.write_text(json.dumps({**json.loads(path.read_text()), "process": {"rlimits": rlimits}}))
    return path


def test_an_oci_configuration_with_limits_is_told_with_its_handlers_and_the_fix(site: Site) -> None:
    site.containerd(runc=site.guarded(), nvidia=site.guarded(), plain={"base_runtime_spec": "/nowhere"})
    path = with_limits(site, [NOFILE, {"type": "RLIMIT_CORE", "soft": 0, "hard": 0}])
    found = limits(site.machine())
    assert limits in CHECKS
    assert (found.check, found.result) == ("limits", Result.WARNING)
    assert found.found == (
        f"{path} gives every container of containerd's runc and nvidia RLIMIT_NOFILE 1024 (hard 4096), RLIMIT_CORE 0 "
        "(hard 0)"
    )
    assert found.fix == f"remove process.rlimits from {path}, and restart containerd"
    assert site.finding().result is Result.WARNING  # of the third handler
    assert "base.json" not in site.finding().found


def test_each_oci_configuration_with_limits_is_told(site: Site) -> None:
    first = with_limits(site, [NOFILE])
    second = site.write("second.json", first.read_text())
    site.containerd(a={"base_runtime_spec": str(first)}, b={"base_runtime_spec": str(second)})
    found = limits(site.machine())
    assert found.found.count("RLIMIT_NOFILE 1024 (hard 4096)") == 2
    assert found.fix == f"remove process.rlimits from {first} and {second}, and restart containerd"


@pytest.mark.parametrize("rlimits", [None, [], {}, "x"])
def test_an_oci_configuration_without_limits_is_fine(site: Site, rlimits: object) -> None:
    site.containerd(runc=site.guarded())
    path = with_limits(site, rlimits)
    assert limits(site.machine()) == Finding(
        check="limits", result=Result.OK, found=f"{path}: no limits, containers have containerd's"
    )


@pytest.mark.parametrize("rlimits", [[7], [{}], [{"type": 7, "soft": "x"}]])
def test_limits_that_no_configuration_should_have_are_no_crash(site: Site, rlimits: object) -> None:
    site.containerd(runc=site.guarded())
    with_limits(site, rlimits)
    assert limits(site.machine()).result is Result.WARNING


def test_limits_of_a_configuration_that_is_not_the_guards_are_its_owners(site: Site) -> None:
    own = site.write("own.json", json.dumps({"process": {"rlimits": [NOFILE]}}))
    site.containerd(runc={"base_runtime_spec": str(own)})
    assert limits(site.machine()).result is Result.NOT_APPLICABLE
    site.containerd(runc={"base_runtime_spec": str(site.folder / "missing.json")})
    assert limits(site.machine()).result is Result.NOT_APPLICABLE
    site.write("etc/containerd/config.toml", "version = 3")
    assert limits(site.machine()).result is Result.NOT_APPLICABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_hook_that_others_than_root_could_replace_is_no_guard(site: Site) -> None:
    site.containerd(runc=site.guarded())
    os.chown(site.hook.parent, 65534, 65534)
    found = site.finding()
    assert found.result is not Result.OK
    assert f"others than root may replace files in {site.hook.parent}" in found.found


def test_the_runtime_that_runs_is_believed_before_its_files(site: Site) -> None:
    """They may have been changed since its start, and k3s and others have theirs elsewhere."""
    with FakeContainerd() as containerd:
        site.settings = replace(site.settings, containerd_socket=containerd.socket)
        base = {"baseRuntimeSpec": str(site.base()), "PodAnnotations": PATTERNS}
        containerd.configuration = json.dumps({"containerd": {"runtimes": {"runc": {}, "guarded": base}}})
        site.status = {"active": "createRuntime hook", "asked": 1, "unguarded": []}
        found = site.finding()
        assert found.result is Result.WARNING, "it was asked, and not for each handler"
        assert found.found.endswith("Not guarded: containerd's runc: no base_runtime_spec")
        site.containerd(runc=site.guarded())
        assert "its configuration now has one: restart the runtime" in site.finding().found
        containerd.configuration = json.dumps({"containerd": {"runtimes": {"runc": base, "guarded": base}}})
        assert site.finding().result is Result.OK
        containerd.mode = Mode.FAILS
        assert site.finding().result is Result.OK, "then its files are believed"
