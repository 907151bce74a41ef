"""The kernel's setting that hides RDMA devices from other network namespaces (rdmaNetns `exclusive`)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.outcomes import OutcomeError
from tests.rig.cri import Cri

ELSEWHERE, HOME = "elsewhere", "home"


@pytest.fixture
def exclusive() -> Iterator[None]:
    with kernel.rdma_netns("exclusive"):
        yield


@pytest.mark.outcome("move-stock")
def test_stock_rxe_moves(rdma_device: str, exclusive: None) -> None:
    with namespace():
        there_and_back(rdma_device)


@pytest.mark.outcome("move-lab")
def test_the_labs_rxe_moves_there_and_back(rdma_device: str, exclusive: None) -> None:
    with kernel.labs_rxe(rdma_device), namespace():
        there_and_back(rdma_device)


@pytest.mark.outcome("move-siw")
def test_siw_moves(rdma_device: str, exclusive: None) -> None:
    with siw_on(kernel.netdev_of(rdma_device)) as device, namespace():
        there_and_back(device)


@pytest.mark.outcome("shared-when-exclusive")
def test_a_pod_asks_for_a_device_that_it_could_not_see(cri: Cri, daemon: Server, exclusive: None) -> None:
    with verbs.pod(cri, "blind", verbs.asks("mode: shared")) as sandbox:
        verbs.start(cri, sandbox, "main")


@pytest.mark.outcome("shared-when-exclusive")
def test_it_asks_when_the_daemon_has_read_the_node_again(cri: Cri, daemon: Server, exclusive: None) -> None:
    with suppress(OutcomeError), verbs.pod(cri, "unknown", verbs.asks("mode: shared, match: {device: absent}")):
        pytest.fail("a device that is not there was given")
    with verbs.pod(cri, "blind", verbs.asks("mode: shared")) as sandbox:
        verbs.start(cri, sandbox, "main")


def there_and_back(device: str) -> None:
    """Moves it, looks from both sides, and moves it home."""
    kernel.rdma("dev", "set", device, "netns", ELSEWHERE)
    assert device not in kernel.rdma_devices()
    assert device in kernel.rdma_devices(ELSEWHERE)
    kernel.rdma("dev", "set", device, "netns", HOME, namespace=ELSEWHERE)
    assert device in kernel.rdma_devices()
    assert device not in kernel.rdma_devices(ELSEWHERE)


@contextmanager
def namespace() -> Iterator[None]:
    """Another namespace, and a name for the host's: trixie's `rdma` takes no process for one."""
    subprocess.run(["ip", "netns", "add", ELSEWHERE], check=True)
    subprocess.run(["ip", "netns", "attach", HOME, "1"], check=True)
    try:
        yield
    finally:
        for name in (ELSEWHERE, HOME):
            subprocess.run(["ip", "netns", "delete", name], check=True)


@contextmanager
def siw_on(netdev: str) -> Iterator[str]:
    kernel.load_lab_module("siw")
    try:
        kernel.rdma("link", "add", "siw9", "type", "siw", "netdev", netdev)
        try:
            yield "siw9"
        finally:
            kernel.rdma("link", "delete", "siw9")
    finally:
        kernel.unload("siw")
