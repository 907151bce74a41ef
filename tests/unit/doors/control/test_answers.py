"""Bad answers of the control socket: each refusal is complete, and its words are in golden/."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from nri_rdma.doors.control.daemon_client import ask_status, ask_trace
from nri_rdma.doors.control.node_document import SERVICE
from nri_rdma.errors import NotReadyError
from nri_rdma.pb import control_pb2 as pb
from nri_rdma.ttrpc import Server
from tests.unit.golden import assert_as_before
from tests.unit.rigs.bad_input import assert_complete

# Answers of the control socket

ANSWERS: tuple[tuple[str, bytes], ...] = (
    ("no message", b"\xff\xff"),
    ("an empty message", b""),
    ("no JSON", pb.StatusReply(json="hello").SerializeToString()),
    ("a list", pb.StatusReply(json="[]").SerializeToString()),
    ("brackets without end", pb.StatusReply(json="[" * 100_000).SerializeToString()),
    ("another version", pb.StatusReply(json='{"version": 99}').SerializeToString()),
    ("no version", pb.StatusReply(json="{}").SerializeToString()),
)


def answer_refusal(data: bytes, folder: Path, *, asks_trace: bool = False) -> NotReadyError:
    server = Server({(SERVICE, "Status"): lambda _call: data, (SERVICE, "Trace"): lambda _call: data})
    with closing(server):
        server.serve_unix(folder / "s")
        with pytest.raises(NotReadyError) as caught:
            ask_trace(folder / "s", "") if asks_trace else ask_status(folder / "s")
    return caught.value


def test_refusals_of_answers_read_as_they_did(tmp_path: Path) -> None:
    told = [(title, answer_refusal(data, tmp_path)) for title, data in ANSWERS]
    for _, error in told:
        assert_complete(error)
    assert_as_before("answers.txt", ((title, str(it).replace(str(tmp_path), "")) for title, it in told))


def test_a_trace_that_is_none_is_refused_in_the_same_words(tmp_path: Path) -> None:
    _, data = ANSWERS[-1]
    assert str(answer_refusal(data, tmp_path, asks_trace=True)) == str(answer_refusal(data, tmp_path))
