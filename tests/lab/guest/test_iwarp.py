"""Soft iWARP (siw): a device that appears on the pod's own interface, before NRI hears of the pod.

The chained CNI plugin in cni_rdma.py makes it; rdmaNetns is `shared`, siw cannot move.
"""

import re
from collections.abc import Iterator

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.rig.cri import Cri

PORT = 7174


@pytest.fixture(scope="module", autouse=True)
def siw() -> Iterator[None]:
    """The driver; its devices go with their pods."""
    kernel.load_lab_module("siw")
    yield
    kernel.unload("siw")


def asks_for(device: str) -> dict[str, str]:
    return verbs.asks(f"mode: shared, match: {{device: {device}}}")


@pytest.mark.outcome("iwarp-device")
def test_a_pod_sees_the_device_on_its_interface(cri: Cri, daemon: Server) -> None:
    with verbs.pod(cri, "siw0", asks_for("siw0")) as sandbox:
        shown = cri.exec(verbs.start(cri, sandbox, "main"), ["ibv_devinfo", "-d", "siw0"])
    assert shown.exit_code == 0, shown.stderr
    assert re.search(r"transport:\s+iWARP", shown.stdout)
    assert re.search(r"state:\s+PORT_ACTIVE", shown.stdout)


@pytest.mark.outcome("iwarp-traffic")
def test_two_pods_ping_each_other(cri: Cri, daemon: Server) -> None:
    with (
        verbs.pod(cri, "siw1", asks_for("siw1")) as servers,
        verbs.pod(cri, "siw2", asks_for("siw2")) as clients,
    ):
        server, client = (verbs.start(cri, pod, "main") for pod in (servers, clients))
        ip = cri.pod_status(servers).ip
        ping = ["rping", "-a", ip, "-p", str(PORT), "-C", "3", "-v"]
        serving = verbs.Program(cri, server, [*ping, "-s"])
        verbs.wait_until_listening(cri.container_status(server).pid, PORT)
        pinged = cri.exec(client, [*ping, "-c"], seconds=60)
        served = serving.end()
    assert (pinged.exit_code, served.exit_code) == (0, 0), f"{pinged}\n{served}"
    assert pinged.stdout.count("rdma-ping-") == 3
