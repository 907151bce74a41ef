"""What a command needs of the daemon's status is looked through before it is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.commands.status.document_check import look_through
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.control.node_document import node_from, policy_from
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.text.annotations import PREFIX
from tests.unit.commands.cli.documents import JSON, JSON_WORDS
from tests.unit.rigs.bad_input import in_time
from tests.unit.rigs.inside_daemon import InsideDaemon

REQUIRED: tuple[tuple[str | int, ...], ...] = (
    *(("daemon", key) for key in ("version", "pid", "started")),
    *(("runtime", key) for key in ("name", "version", "link", "socket", "error")),
    *(("pools", 0, key) for key in ("name", "modes", "devices", "contested")),
    *(("devices", 0, key) for key in ("name", "pci", "numa_node", "state", "netdevs", "holders", "in_use")),
    *(("sandboxes", 0, key) for key in ("id", "pod", "state", "devices", "isolation", "moves", "undo_error")),
    *((key,) for key in ("guard", "policy", "memlock", "namespaces_held", "rdma_netns", "unserved")),
)
"""What `status` reads of a document without asking whether it is there."""


def test_an_answer_that_lacks_anything_is_refused_and_says_what(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {PREFIX: "[{match: {device: mlx5_2}}]"})
    document = ask_status(daemon.settings.control_path)
    look_through(document)
    for path in REQUIRED:
        with pytest.raises(NotReadyError, match=f"`{path[-1]}`") as caught:
            look_through(_without(document, path))
        assert caught.value.code is ErrorCode.DAEMON_ABSENT


def _without(value: Any, path: tuple[str | int, ...]) -> Any:
    step, *rest = path
    if not rest:
        return {key: item for key, item in value.items() if key != step}
    inner = _without(value[step], tuple(rest))
    if isinstance(value, list):
        return [inner if index == step else item for index, item in enumerate(value)]
    return {**value, step: inner}


@in_time
@given(st.dictionaries(JSON_WORDS | st.sampled_from(["daemon", "policy", "pools", "rules", "sandboxes"]), JSON))
def test_any_answer_is_a_document_or_a_refusal(document: dict[str, object]) -> None:
    for read in (look_through, node_from, policy_from):
        try:
            read(document)
        except NotReadyError as error:
            assert error.code is ErrorCode.DAEMON_ABSENT
            assert error.what
            assert error.hint
