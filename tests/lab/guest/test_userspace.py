"""The libraries of images beside a real kernel's drivers: soft RoCE and soft iWARP."""

import re
import time
from pathlib import Path

import pytest

from nri_rdma.doors.control.daemon_client import ask_trace
from tests.lab.guest import verbs
from tests.lab.guest.conftest import STATE
from tests.lab.guest.process import Server
from tests.rig.control import ask_status
from tests.rig.cri import Cri, CriError

WITHIN_S = 15.0
"""As in test_gate.py."""


def test_the_libraries_of_the_nodes_own_suite_fit_its_kernel(cri: Cri, daemon: Server, rdma_device: str) -> None:
    ask = verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}")
    with verbs.pod(cri, "fits", ask, runtime_handler=verbs.GUARDED) as sandbox:
        verbs.start(cri, sandbox, "main")
        assert ask_status(STATE / "control.sock")["images"] == []
        (span,) = (it for it in ask_trace(STATE / "control.sock", "fits")["spans"] if it["name"] == "userspace")
        took_ms = (span["end_ns"] - span["start_ns"]) / 1e6
        print(f"\n{span['attributes']} in {took_ms:.0f} ms; the kernel's versions: {versions()}")
        assert span["attributes"]["rdma.userspace.problem"] == ""
        assert span["attributes"]["rdma.userspace.libibverbs"].endswith("/libibverbs.so.1")


def test_an_image_without_libraries_is_refused_where_rdma_is_to_be_proven(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    ask = verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}, prove: true, userspace: check")
    with verbs.pod(cri, "bare", ask, runtime_handler=verbs.GUARDED) as sandbox:
        container = cri.create_container(sandbox, "main")  # of busybox alone
        began = time.monotonic()
        with pytest.raises(CriError) as caught:
            cri.start(container, seconds=60)
        took_s = time.monotonic() - began
        found = re.search("nri-rdma: (USERSPACE-MISSING): the image has no libibverbs.so.1: .*", caught.value.text)
        assert found is not None, caught.value.text
        print(f"\nrefused after {took_s:.2f} s: {found[0]}")
        assert took_s < WITHIN_S
        assert cri.container_status(container).state != "running"
        (refused,) = (it for it in ask_status(STATE / "control.sock")["refused"] if it["pod"].endswith("/bare"))
        assert refused["code"] == "USERSPACE-MISSING"


def versions() -> dict[str, str]:
    """What the kernel says of its interfaces."""
    files = sorted(Path("/sys/class/infiniband_verbs").glob("uverbs*/abi_version"))
    return {it.parent.name: it.read_text().strip() for it in files}
