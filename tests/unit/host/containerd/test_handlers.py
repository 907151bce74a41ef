"""The runtime handlers that CRI's Status tells of, of containerd and of CRI-O."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nri_rdma.host.containerd.handlers import RunningCrio, RuntimeHandler, read_handlers

OLD_AND_NEW = [{"snapshotter": "overlayfs", "defaultRuntimeName": "runc"}, {"defaultRuntimeName": "runc"}]


@pytest.mark.parametrize("told", [None, [], {}, {"containerd": []}, {"containerd": {"runtimes": {"runc": 1}}}])
def test_a_configuration_of_another_form_says_nothing(told: object) -> None:
    assert read_handlers(told) is None


@pytest.mark.parametrize("more", OLD_AND_NEW, ids=["1.7", "2"])
def test_handlers_are_read_in_the_order_of_their_names(more: dict[str, Any]) -> None:
    runtimes = {"runc": {"baseRuntimeSpec": "/b"}, "kata": {"PodAnnotations": ["a", 1], "baseRuntimeSpec": None}}
    assert read_handlers({"containerd": {**more, "runtimes": runtimes}}) == (
        RuntimeHandler(name="kata", annotations=("a",)),
        RuntimeHandler(name="runc", base_spec="/b", is_default=True),
    )
    assert read_handlers({"crio": {"HooksDir": ["/a", 1]}}) == RunningCrio(hook_folders=(Path("/a"),))
