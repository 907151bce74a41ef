"""Which RDMA devices a program lists: libibverbs by device nodes, others by sysfs (docs/requests.md has a table)."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.guest.test_limits import another_device
from tests.rig.cri import Cri

CLASS = "/sys/class/infiniband"
HIDE = """
links=$(mktemp -d)
ln -s $(readlink -f {folder}/{own}) $links
mount -t tmpfs tmpfs {folder}
cp -a $links/. {folder}
ls {folder}
exec ibv_devinfo -l
"""


@pytest.fixture
def other(daemon: Server, rdma_device: str) -> Iterator[str]:
    """A second RDMA device of the host, which no pod is given."""
    with another_device(rdma_device) as name:
        yield name


def test_a_pod_that_shares_lists_its_own_devices_only_although_sysfs_shows_all(
    cri: Cri, rdma_device: str, other: str
) -> None:
    with verbs.pod(cri, "lists", verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}")) as sandbox:
        container = verbs.start(cri, sandbox, "main")
        assert _listed(cri.exec(container, ["ibv_devinfo", "-l"], seconds=60).stdout) == [rdma_device]
        shown = cri.exec(container, ["ls", CLASS], seconds=60).stdout.split()
        assert shown == [rdma_device, other]


def test_a_device_that_is_hidden_in_sysfs_is_listed_where_its_node_is_there(rdma_device: str, other: str) -> None:
    script = HIDE.format(folder=CLASS, own=rdma_device)
    done = subprocess.run(["unshare", "--mount", "sh", "-ec", script], capture_output=True, text=True, check=True)
    hidden, *told = done.stdout.splitlines()
    assert hidden == rdma_device
    assert sorted(_listed("\n".join(told))) == sorted({rdma_device, other}) == sorted(kernel.rdma_devices())


def _listed(text: str) -> list[str]:
    """The devices of `ibv_devinfo -l`, which counts them in its first line."""
    return text.split("found:")[1].split()
