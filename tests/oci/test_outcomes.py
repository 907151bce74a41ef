"""What becomes of a container of podman and Docker, whatever happens to the daemon: cells of docs/outcomes.md."""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.oci.conftest import start
from tests.oci.docker import Docker
from tests.oci.host import Host, Podman
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
SCRIPT = f"{LOOK}\necho '{SEEN_END}'\n{WANTED.opens}"
KILLED_AT = "before move-netdev mlx5_5"
"""In the middle of what the daemon does for a container."""
OPTIONS = {"nothing": (), "cdi": DEVICE}
"""Options of a container, by what it asks for."""


@pytest.fixture(scope="module")
def docker(host: Host) -> Iterator[Docker]:
    """Docker, where the suite has a release that reads CDI specs."""
    if not host.file("/usr/sbin/dockerd").exists():
        pytest.skip("this suite's root folder has no Docker that reads CDI specs")
    with Docker(host) as running:
        yield running


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

    def play(self, situation: str, ask: str) -> str:
        """Have it happen; return the outcome."""
        if situation != "never":
            start(self.daemon)
        words = self.engine.run("--name", "asks", "--cap-add", "MKNOD", *OPTIONS[ask], command=["sh", "-c", SCRIPT])
        self.engine.must(*("create" if word == "run" else word for word in words))
        self._happen(situation)
        first = self._start(ask)
        self._come_back(situation)
        return f"{first}, then {self._start(ask)}" if first.startswith(outcomes.REFUSED) else first

    def close(self) -> None:
        """Leave nothing of the container, nor of the daemon."""
        if not self.daemon.runs:
            start(self.daemon)
        self.engine.remove_all()
        wait_until(lambda: not self.daemon.status()["sandboxes"], "everything to be given back")
        self.daemon.stop()

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


@pytest.mark.parametrize("situation", outcomes.SITUATIONS)
def test_containers_of_podman_have_what_the_page_says(
    host_equal: None, podman: Podman, host: Host, node: Fabric, suite: str, situation: str
) -> None:
    assert_row(podman, host, node, f"podman-{suite}-{podman.oci_runtime}", situation)


@pytest.mark.parametrize("situation", outcomes.SITUATIONS)
def test_containers_of_docker_have_what_the_page_says(
    host_equal: None, docker: Docker, host: Host, node: Fabric, suite: str, situation: str
) -> None:
    assert_row(docker, host, node, f"docker-{suite}", situation)


def assert_row(engine: Podman | Docker, host: Host, node: Fabric, name: str, situation: str) -> None:
    """Play it once for each way to ask, keep the outcomes, and compare them with the page."""
    reasons = {ask: outcomes.why_impossible(name, situation, ask) for ask in outcomes.ASKS}
    possible = [ask for ask, reason in reasons.items() if not reason]
    if not possible:
        pytest.skip(reasons["cdi"])
    generate(host, node)
    seen = {}
    for ask in possible:
        faults = Faults(host.work / "outcome-faults")
        faults.plant()
        daemon = Daemon(host, node, extra=EXCLUSIVE_FIRST, faults=faults if situation == "in-container" else None)
        scene = Scene(engine, node, daemon, faults)
        try:
            seen[ask] = scene.play(situation, ask)
        finally:
            scene.close()
    outcomes.record(name, situation, seen)
    assert seen == expected(name, situation), "docs/outcomes.md"
