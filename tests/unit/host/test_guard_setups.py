"""Who has the guard by the word of the runtime that runs, whatever its files say by now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.host.containerd.containerd_api import ContainerdError
from nri_rdma.host.guard_setups import Setup, running_setups
from tests.fakes.containerd import FakeContainerd, Mode

PATTERNS = ["rdma.noderesource.dev", "rdma.noderesource.dev/*"]


@pytest.fixture
def containerd() -> Iterator[FakeContainerd]:
    with FakeContainerd() as running:
        yield running


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An OCI configuration with the hook, which can be run."""
    hook = tmp_path / "nri-rdma-hook"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    spec = tmp_path / "base.json"
    entry = {"path": str(hook), "args": ["nri-rdma-hook", "verify"]}
    spec.write_text(json.dumps({"hooks": {"createRuntime": [entry]}}))
    return spec


def told(**runtimes: Any) -> str:
    """What containerd's CRI says of its configuration, shortened."""
    return json.dumps({"containerd": {"defaultRuntimeName": "runc", "runtimes": runtimes}, "enableCDI": True})


def test_each_handler_has_or_lacks_it_by_itself(containerd: FakeContainerd, base: Path) -> None:
    guarded = {"runtimeType": "io.containerd.runc.v2", "PodAnnotations": PATTERNS, "baseRuntimeSpec": str(base)}
    bare = {"runtimeType": "io.containerd.runc.v2", "PodAnnotations": None, "baseRuntimeSpec": ""}
    containerd.configuration = told(runc=bare, guarded=guarded, blind=guarded | {"PodAnnotations": None})
    found = running_setups((containerd.socket,), Settings())
    assert found is not None
    assert {it.handler: it.fault.partition(" it needs")[0] for it in found} == {
        "containerd's blind": "pod_annotations hides rdma.noderesource.dev from the hook:",
        "containerd's guarded": "",
        "containerd's runc": "no base_runtime_spec",
    }


def test_a_file_that_is_not_here_may_be_elsewhere(containerd: FakeContainerd) -> None:
    """The daemon may run in a container, which has no /etc/containerd."""
    containerd.configuration = told(runc={"baseRuntimeSpec": "/gone/base.json", "PodAnnotations": PATTERNS})
    words = "whether /gone/base.json has the hook cannot be seen from here"
    assert running_setups((containerd.socket,), Settings()) == (
        Setup(handler="containerd's runc", fault=words, is_known=False, is_default=True),
    )


def test_cri_o_tells_its_folders_of_hooks(containerd: FakeContainerd, base: Path, tmp_path: Path) -> None:
    containerd.configuration = json.dumps({"crio": {"HooksDir": [str(tmp_path / "hooks")], "Runtimes": {"runc": {}}}})
    assert running_setups((None, tmp_path / "none.sock", containerd.socket), Settings()) == (
        Setup(handler="CRI-O", fault=f"no nri-rdma-hook in {tmp_path / 'hooks'}"),
    )
    hook = json.loads(base.read_text())["hooks"]["createRuntime"][0]
    (tmp_path / "hooks").mkdir()
    definition = {"version": "1.0.0", "hook": hook, "when": {"always": True}, "stages": ["createRuntime"]}
    (tmp_path / "hooks/nri-rdma-guard.json").write_text(json.dumps(definition))
    assert running_setups((containerd.socket,), Settings()) == (Setup(handler="CRI-O", fault=""),)


def test_nobody_there_is_not_known_and_one_that_does_not_answer_is_an_error(
    containerd: FakeContainerd, tmp_path: Path
) -> None:
    assert running_setups((None, tmp_path / "none.sock"), Settings()) is None
    containerd.mode = Mode.FAILS
    with pytest.raises(ContainerdError):
        running_setups((containerd.socket,), Settings())
