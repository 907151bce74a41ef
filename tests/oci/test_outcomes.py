"""What becomes of a container of podman and Docker, whatever happens to the daemon: cells of docs/outcomes.md."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.oci.conftest import require_docker, set_up, start
from tests.oci.docker import RUNTIME, Docker
from tests.oci.host import Host, Podman
from tests.oci.test_annotations import asks
from tests.oci.test_podman import DEVICE, generate
from tests.rig import outcomes
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import LOOK, read_seen
from tests.rig.fabric import Fabric
from tests.rig.faults import Faults
from tests.rig.outcomes_page import expected
from tests.rig.wanted import Wanted, assert_nothing, lacking

pytestmark = pytest.mark.root

WANTED = Wanted(number=5, variable="RDMA_DEVICES_MLX5_5")
SEEN_END = "--- opened"
COMMAND = ("sh", "-c", f"{LOOK}\necho '{SEEN_END}'\n{WANTED.opens}")
KILLED_AT = "before move-netdev mlx5_5"
"""In the middle of what the daemon does for a container."""
Options = Mapping[str, Sequence[str]]
"""Options of a container, by what it asks for."""
BY_DEVICE: Options = {"nothing": (), "cdi": DEVICE}
ANNOTATION = [{"name": "mlx5-5", "match": {"device": "mlx5_5"}, "mode": "exclusive"}]
"""The device that the CDI device names, under a name that gives the same variable."""


@pytest.fixture(scope="module")
def docker(host: Host) -> Iterator[Docker]:
    """Docker, where the suite has a release that reads CDI specs."""
    require_docker(host)
    with Docker(host) as running:
        yield running


@pytest.fixture(scope="module")
def docker_installed(docker: Docker) -> Iterator[None]:
    """Docker is set up for annotations."""
    with set_up(docker.host, docker.name):
        yield


@pytest.fixture
def suite(request: pytest.FixtureRequest) -> str:
    """The Debian suite of the host."""
    name: str = request.node.callspec.params["host"]
    return name


@dataclass
class Scene:
    """A daemon to which something happens, and a container."""

    engine: Podman | Docker
    node: Fabric
    daemon: Daemon
    faults: Faults
    options: Options

    def play(self, situation: str, ask: str) -> str:
        """Have it happen; return the outcome."""
        if situation != "never":
            start(self.daemon)
        words = self.engine.run("--name", "asks", "--cap-add", "MKNOD", *self.options[ask], command=COMMAND)
        self.engine.must(*("create" if word == "run" else word for word in words))
        self._happen(situation)
        first = self._start(ask)
        self._come_back(situation)
        return f"{first}, then {self._start(ask)}" if first.startswith(outcomes.REFUSED) else first

    def close(self) -> None:
        """Leave nothing of the container, nor of the daemon, also after a failure."""
        with ExitStack() as steps:  # the last one first, each also if the one before it fails
            steps.callback(self.daemon.stop)
            steps.callback(wait_until, lambda: not self.daemon.status()["sandboxes"], "everything to be given back")
            steps.callback(self.engine.remove_all)
            if self.daemon.runs:
                os.kill(self.daemon.pid, signal.SIGCONT)
            else:
                start(self.daemon)

    def _happen(self, situation: str) -> None:
        match situation:
            case "before":
                self.daemon.kill()
            case "upgraded":
                self.daemon.stop()
                start(self.daemon)
            case "stopped":
                os.kill(self.daemon.pid, signal.SIGSTOP)
            case "in-container":
                self.faults.plant(f"{KILLED_AT}=kill")

    def _come_back(self, situation: str) -> None:
        """The daemon runs, as after everything that can happen to it."""
        if situation == "stopped":
            os.kill(self.daemon.pid, signal.SIGCONT)
        if situation == "in-container":
            assert self.daemon.wait_ended() == -signal.SIGKILL
        if not self.daemon.runs:
            start(self.daemon)

    def _start(self, ask: str) -> str:
        """Start the container, which looks around and ends."""
        self.engine.host.system_log()
        done = self.engine("start", "--attach", "asks")
        if done.returncode != 0:
            return outcomes.refused(done.stderr, "\n".join(self.engine.host.system_log()))
        return self._given(ask, done)

    def _given(self, ask: str, done: subprocess.CompletedProcess[str]) -> str:
        looked, _, opened = done.stdout.partition(f"{SEEN_END}\n")
        if ask == "nothing":
            assert_nothing(read_seen(looked))
            return outcomes.PLAIN
        return outcomes.given(lacking(WANTED, read_seen(looked), opened.splitlines(), self.node), WANTED.things)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("situation", outcomes.SITUATIONS)
def test_containers_of_podman_have_what_the_page_says(
    host_equal: None, podman: Podman, node: Fabric, suite: str, situation: str
) -> None:
    options = {**BY_DEVICE, "annotation": asks(podman, ANNOTATION)}
    assert_row(podman, node, options, f"podman-{suite}-{podman.oci_runtime}", situation)


@pytest.mark.usefixtures("docker_installed")
@pytest.mark.parametrize("situation", outcomes.SITUATIONS)
def test_containers_of_docker_have_what_the_page_says(
    host_equal: None, docker: Docker, node: Fabric, suite: str, situation: str
) -> None:
    options = {**BY_DEVICE, "annotation": ("--runtime", RUNTIME, *asks(docker, ANNOTATION))}
    assert_row(docker, node, options, f"docker-{suite}", situation)


def assert_row(engine: Podman | Docker, node: Fabric, options: Options, name: str, situation: str) -> None:
    """Play it once for each way to ask, keep the outcomes, and compare them with the page."""
    reasons = {ask: outcomes.why_impossible(name, situation, ask) for ask in outcomes.ASKS}
    possible = [ask for ask, reason in reasons.items() if not reason]
    if not possible:
        pytest.skip(reasons["cdi"])
    host = engine.host
    generate(host, node)
    seen = {}
    for ask in possible:
        faults = Faults(host.work / "outcome-faults")
        faults.plant()
        daemon = Daemon(host, node, extra=EXCLUSIVE_FIRST, faults=faults if situation == "in-container" else None)
        scene = Scene(engine, node, daemon, faults, options)
        try:
            seen[ask] = scene.play(situation, ask)
        finally:
            scene.close()
    outcomes.record(name, situation, seen)
    assert seen == expected(name, situation), "docs/outcomes.md"
