"""A CDI device of another driver with our key, whose spec has the guard (`nri-rdma cdi guard`): complete or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.expect import look, tree_number
from tests.rig.fabric import Fabric
from tests.rig.guard import HOOK
from tests.rig.runtime import Runtime
from tests.rig.wanted import Wanted, lacking
from tests.unit.commands.cli.program import nri_rdma

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

NAME = "dra.example.com/nic=five"
WANTED = Wanted(number=5, variable="RDMA_DEVICES_FIVE")


@pytest.fixture
def spec(runtime: Runtime, node: Fabric) -> Iterator[Path]:
    """The spec as its driver writes it, where the runtime and the daemon read it."""
    nodes = []
    for name in ("uverbs5", "rdma_cm"):
        major, minor = map(int, tree_number(node, name).split(":"))
        path = f"/dev/infiniband/{name}"
        nodes.append({"path": path, "type": "c", "major": major, "minor": minor, "permissions": "rw"})
    annotations = {"rdma.noderesource.dev": "{mode: exclusive}"}
    device = {"name": "five", "annotations": annotations, "containerEdits": {"deviceNodes": nodes}}
    file = runtime.cdi_dir / "dra.example.com-nic.json"
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "dra.example.com/nic", "devices": [device]}))
    beside.rename(file)
    yield file
    file.unlink()


class Pod:
    """A pod whose containers have the CDI device."""

    def __init__(self, cri: Cri, name: str) -> None:
        self._cri = cri
        self._attempts = count()
        self.sandbox: Sandbox = cri.run_pod(name)

    def run(self) -> Container:
        """Make its container, once more, and start it."""
        container = self._cri.create_container(self.sandbox, "main", cdi_devices=[NAME], attempt=next(self._attempts))
        self._cri.start(container)
        return container

    def lacks(self, node: Fabric) -> set[str]:
        """Return what a container of it that runs does not have."""
        container = self.run()
        opened = self._cri.exec(container, ["sh", "-c", WANTED.opens]).stdout.splitlines()
        return lacking(WANTED, look(self._cri, container), opened, node)

    def refusal(self) -> str:
        """Return the text with which its container is refused."""
        with pytest.raises(CriError) as caught:
            self.run()
        return caught.value.text


def test_while_the_daemon_is_dead_a_device_with_the_guard_is_refused_and_one_without_starts_incomplete(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, spec: Path
) -> None:
    with Daemon(runtime, node) as daemon:
        daemon.kill()
        bare = Pod(cri, "bare")
        assert bare.lacks(node) == {"netdev", "environment"}
        cri.delete_pod(bare.sandbox)

        control = daemon.state_dir / "control.sock"
        done = nri_rdma("cdi", "guard", spec, "--guard-hook", HOOK, "--control-socket", control)
        assert (done.returncode, done.stderr) == (0, "")
        pod = Pod(cri, "guarded")
        assert "nri-rdma: DAEMON-ABSENT: the daemon is gone: " in pod.refusal()
        daemon.start()
        assert pod.lacks(node) == set()
        assert daemon.status()["guard"]["refused"] == 0
        cri.delete_pod(pod.sandbox)

        pod = Pod(cri, "alive")
        assert pod.lacks(node) == set(), "nobody was dead"
        cri.delete_pod(pod.sandbox)
