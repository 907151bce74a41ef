"""Containers of podman are shown and asked for by their names."""

import os
import time
from pathlib import Path

import pytest

from nri_rdma.commands.status.container_pods import id_of, with_names
from nri_rdma.decide.policy import Asker
from nri_rdma.model.pod import Pod
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon

ID = "f960a2ad1287" + "0" * 52


@pytest.fixture
def podman(tmp_path: Path) -> dict[str, str]:
    """A PATH with a podman that has one container."""
    program = tmp_path / "podman"
    program.write_text(f'#!/bin/sh\necho asked >> {tmp_path}/asked\necho "{ID} keep"\n')
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def start_container(daemon: InsideDaemon) -> None:
    """Have a container of podman hold a device, as the door of hooks does it."""
    daemon.world.add_namespace("/run/netns/keep")
    pod = Pod(sandbox_id=ID, uid=ID, name=ID[:12], namespace="oci", netns_path="/run/netns/keep", is_listed=False)
    attributes = {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}
    with daemon.spans.span("createRuntime", attributes):
        daemon.engine.run_pod(
            daemon.engine.start_of(pod, {"rdma.noderesource.dev": "1"}, Asker(namespace="oci")), time.monotonic() + 5
        )


def test_the_name_is_where_the_container_is(daemon: InsideDaemon, podman: dict[str, str]) -> None:
    start_container(daemon)
    done = nri_rdma("status", "--state-dir", daemon.settings.state_dir, columns=160, environment=podman)
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.endswith("oci/f960a2ad1287 (keep) (exclusive)") for line in shown)
    assert any(line.startswith("oci/f960a2ad1287 (keep) f960a2ad12870 attached") for line in shown)


def test_a_trace_is_asked_for_by_it(daemon: InsideDaemon, podman: dict[str, str]) -> None:
    start_container(daemon)
    done = nri_rdma("trace", "keep", "--state-dir", daemon.settings.state_dir, environment=podman)
    assert (done.returncode, done.stdout.startswith("createRuntime  oci/f960a2ad1287 ")) == (0, True)
    assert nri_rdma("trace", "other", "--state-dir", daemon.settings.state_dir, environment=podman).returncode == 1


def test_where_no_container_has_a_device_no_engine_is_asked(
    daemon: InsideDaemon, podman: dict[str, str], tmp_path: Path
) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    assert "default/one" in nri_rdma("status", "--state-dir", daemon.settings.state_dir, environment=podman).stdout
    nri_rdma("trace", "default/one", "--state-dir", daemon.settings.state_dir, environment=podman)
    assert not (tmp_path / "asked").exists()


def test_for_a_check_no_engine_is_asked(daemon: InsideDaemon, podman: dict[str, str], tmp_path: Path) -> None:
    start_container(daemon)
    nri_rdma("status", "--check", "--state-dir", daemon.settings.state_dir, environment=podman)
    assert not (tmp_path / "asked").exists()


def test_without_a_name_the_id_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(os.environ, "PATH", str(tmp_path))
    document = {"devices": [{"holders": [{"pod": "oci/f960a2ad1287"}]}], "n": 1}
    assert with_names(document) == document
    assert id_of("keep") == ""
