"""The package's guide shows code that runs."""

from __future__ import annotations

import re
import textwrap
import time
from pathlib import Path

import nri_rdma.engine as package
from nri_rdma.decide.policy import Asker
from nri_rdma.engine.container import KnownContainer
from nri_rdma.model.pod import Pod
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.rigs.inside_daemon import InsideDaemon


def test_the_calls_of_the_guide_give_a_pod_its_device_and_take_it_back(tmp_path: Path) -> None:
    guide = package.__doc__ or ""
    code = textwrap.dedent("\n".join(re.findall(r"^    .*$", guide, re.MULTILINE)))
    build_tree(load("eight"), tmp_path / "sys")
    with InsideDaemon(tmp_path, tmp_path / "sys") as inside:
        namespace = inside.world.add_namespace("/run/netns/guide")
        for interface in ("lo", "eth0"):
            inside.world.add_link(namespace, interface, up=True)
        pod = Pod(sandbox_id="guide", uid="u", name="guide", namespace="default", netns_path="/run/netns/guide")
        facts: dict[str, object] = {
            "engine": inside.engine,
            "pod": pod,
            "annotations": {"rdma.noderesource.dev/pod": "1"},
            "deadline": time.monotonic() + 5,
            "asker": Asker(namespace="default"),
            "KnownContainer": KnownContainer,
            "cgroups_path": "/guide/main",
        }
        exec(compile(code, package.__file__ or "", "exec"), facts)
        edits = facts["edits"]
        assert [node.path for node in edits.char_devices] == ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]  # type: ignore[attr-defined]  # of exec
        inside.await_releases()
        assert inside.sandboxes.get("guide") is None
        assert inside.reservations.taken() == {}
