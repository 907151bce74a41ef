"""README.md and docs/check.md show what is in a container: a real runtime's container says the same."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.rig.cri import Container, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import look
from tests.rig.fabric import Fabric
from tests.rig.kubelet import PATIENT, FakeKubelet, Given
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

PROJECT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/check.md")
GPUS = (4, 5)
KUBECTL = "kubectl exec trainer -- "


def shown(page: str) -> list[tuple[str, str]]:
    """Commands in the container and their output, as a page shows them; blocks without output are for hardware."""
    text = (PROJECT / page).read_text()
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            if command.startswith(KUBECTL):
                found.append((command.removeprefix(KUBECTL), output))
    return found


SHOWN = [(page, *it) for page in PAGES for it in shown(page)]


@pytest.fixture(scope="module")
def pod(runtime: Runtime, node: Fabric) -> Iterator[Sandbox]:
    """README's first pod, whose GPUs a kubelet tells."""
    (text, *_) = re.findall(r"^```yaml\n(.*?)^```$", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    annotations = yaml.safe_load(text)["metadata"]["annotations"]
    with FakeKubelet() as kubelet:
        ids = tuple(node.node.gpus[number].uuid for number in GPUS)
        kubelet.add_pod("default", "trainer", Given(name="trainer", resources={"nvidia.com/gpu": ids}))
        with Daemon(runtime, node, kubelet=kubelet.socket, extra=PATIENT) as daemon:
            wait_until(lambda: "kubelet reports" in daemon.log, lambda: daemon.log)
            sandbox = runtime.cri.run_pod("trainer", annotations=annotations)
            yield sandbox
            runtime.cri.delete_pod(sandbox)


@pytest.fixture(scope="module")
def trainer(runtime: Runtime, pod: Sandbox) -> Container:
    return runtime.cri.run_container(pod, "trainer")


@pytest.mark.parametrize(("page", "command", "output"), SHOWN, ids=[f"{page}: {it}" for page, it, _ in SHOWN])
def test_a_container_says_what_the_page_shows(
    runtime: Runtime, trainer: Container, page: str, command: str, output: str
) -> None:
    done = runtime.cri.exec(trainer, ["sh", "-c", command])
    assert done.stdout == output, f"{page}: write what the container says"


def test_a_container_that_the_kubelet_does_not_know_of_gets_nothing_of_one_word(runtime: Runtime, pod: Sandbox) -> None:
    """An ephemeral container of kubectl debug, for instance."""
    assert look(runtime.cri, runtime.cri.run_container(pod, "debugger")).nodes == {}
