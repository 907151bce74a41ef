"""The self-check of a device by pyverbs, of the guest's own Python."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from nri_rdma.host.verbs import program
from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.rig.cri import Cri

MIB = 1 << 20
TASK: dict[str, Any] = {
    "port": 1,
    "gid_index": None,
    "addresses": [],
    "roce_version": 2,
    "memory_bytes": MIB,
    "transfer_bytes": MIB,
}


def check(*tasks: dict[str, Any], enter: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The program's answers to these tasks, entered by a command."""
    command = [*enter, "/usr/bin/python3", "-I", program.__file__, "check"]
    asked = "".join(f"{json.dumps({**TASK, **task})}\n" for task in tasks)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_device_that_works_moves_data_to_itself(rdma_device: str) -> None:
    (told,) = check({"device": rdma_device})
    assert "problem" not in told, told
    assert (told["transport"], told["registered_bytes"], told["transferred_bytes"]) == ("roce", MIB, MIB)
    assert told["gid"]["type"] == "RoCE v2"


def test_each_fault_is_an_answer_with_its_step(rdma_device: str) -> None:
    gone, empty, small = check(
        {"device": "gone"}, {"device": rdma_device, "gid_index": 9}, {"device": rdma_device, "memory_bytes": 0}
    )
    assert gone["problem"]["step"] == "open"
    assert empty["problem"]["step"] == "gid"
    assert "problem" not in small
    assert small["transferred_bytes"] == MIB


@pytest.fixture
def siw() -> Iterator[None]:
    kernel.load_lab_module("siw")
    yield
    kernel.unload("siw")


def test_iwarp_moves_data_through_the_connection_manager(cri: Cri, daemon: Server, siw: None) -> None:
    with verbs.pod(cri, "siw7", verbs.asks("mode: shared, match: {device: siw7}")) as sandbox:
        container = verbs.start(cri, sandbox, "main")
        pid, address = cri.container_status(container).pid, cri.pod_status(sandbox).ip
        (told,) = check({"device": "siw7", "addresses": [address]}, enter=["nsenter", f"--net=/proc/{pid}/ns/net"])
    assert "problem" not in told, told
    assert (told["transport"], told["transferred_bytes"]) == ("iwarp", MIB)
