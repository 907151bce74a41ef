"""What tests against a real runtime share."""

from collections.abc import Iterator

import pytest

from tests.rig.containerd import Containerd
from tests.rig.daemon import Daemon
from tests.rig.fabric import Fabric
from tests.rig.fixtures import containerd, cri, eight, host_equal
from tests.rig.node import load

__all__ = ["containerd", "cri", "daemon", "eight", "host_equal", "node"]


@pytest.fixture(scope="module")
def node() -> Iterator[Fabric]:
    """The node "eight", one for a module: every test gives it back as it was."""
    with Fabric(load("eight")) as fabric:
        yield fabric


@pytest.fixture
def daemon(containerd: Containerd, node: Fabric) -> Iterator[Daemon]:
    """A daemon on that node, with the default pool opened for exclusive requests."""
    with Daemon(containerd, node) as running:
        yield running
