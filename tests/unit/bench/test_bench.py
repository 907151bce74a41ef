"""The bench: its arithmetic, the shape of its report, and a floor that stays one."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import floor, messages
from bench.__main__ import OWN, SECTIONS, main
from bench.figures import Row, exit_code, p99_row, paired_ratio, paired_row, percentile, table
from bench.peer import HEADERS, Peer
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.wire import Request, ServerConnection
from nri_rdma.wire.mux import MuxDecoder, encode_message

PROJECT = Path(__file__).resolve().parents[3]


def row(*, ratio: float = 1.0, target: float | None = None) -> Row:
    return Row(figure="a", value=2.0, unit="us", floor=1.0, ratio=ratio, target=target)


def request(call: messages.Call, stream_id: int = 1) -> Request:
    """What a plugin reads of these bytes."""
    ((_conn, piece),) = MuxDecoder().receive_data(bytes(call.on(stream_id)))
    server = ServerConnection()
    server.receive_data(piece)
    event = server.next_event()
    assert isinstance(event, Request)
    return event


def test_a_ratio_is_taken_within_each_round() -> None:
    """The machine was three times slower in the second round, for both."""
    assert paired_ratio([[10, 10, 10], [30, 30, 30], [10, 10, 10]], [[20, 20, 20], [60, 60, 60], [20, 20, 20]]) == 2


def test_one_disturbed_round_does_not_move_the_ratio() -> None:
    assert paired_ratio([[10], [10], [10]], [[15], [900], [15]]) == 1.5


def test_one_slow_event_does_not_move_its_round() -> None:
    assert paired_ratio([[10, 10, 5000]], [[15, 15, 15]]) == 1.5


def test_rounds_without_a_partner_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([[1], [1]], [[1]])


@given(st.lists(st.integers(1, 1000), min_size=1))
def test_a_process_is_as_fast_as_itself(values: list[int]) -> None:
    assert paired_ratio([values], [values]) == 1


@given(st.lists(st.integers(), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[int], share: float) -> None:
    limit = percentile(values, share)
    assert limit in values
    assert sum(value <= limit for value in values) >= share * len(values) - 1e-6


def test_the_99th_percentile_of_a_hundred_is_the_second_largest() -> None:
    assert percentile(range(1, 101), 0.99) == 99


def test_values_are_told_in_the_unit_of_the_row() -> None:
    told = paired_row("event", [[20_000]], [[30_000]], unit="us", scale=1e-3, target=2)
    assert (told.value, told.floor, told.ratio) == (30, 20, 1.5)
    slow = p99_row("event, p99", [[20_000]], [[50_000]], scale=1e-3)
    assert (slow.value, slow.floor, slow.ratio, slow.met) == (50, 20, 2.5, None)


@pytest.mark.parametrize(("ratio", "target", "met"), [(1.5, 1.5, True), (1.51, 1.5, False), (9.0, None, None)])
def test_a_target_is_met_up_to_its_value(ratio: float, target: float | None, met: bool | None) -> None:
    assert row(ratio=ratio, target=target).met is met


@pytest.mark.parametrize(("value", "ratio", "met"), [(3, 9, True), (3, 11, False), (3.1, 9, False)])
def test_a_limit_is_met_up_to_its_value_and_a_target_has_to_be_met_too(value: float, ratio: float, met: bool) -> None:
    told = Row(figure="a", value=value, unit="ms", floor=1, ratio=ratio, target=10, limit=3)
    assert (told.met, told.wanted) == (met, "<= 10, <= 3 ms")


def test_a_missed_target_ends_the_bench_with_1_and_information_does_not() -> None:
    assert exit_code([row(ratio=1, target=2), row(ratio=9)]) == 0
    assert exit_code([row(ratio=1, target=2), row(ratio=3, target=2)]) == 1


def test_without_a_compiler_it_ends_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(OWN, "1")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["bench"])
    monkeypatch.setitem(SECTIONS, "events", lambda *_: pytest.fail("measured"))
    assert main() == 1
    assert capsys.readouterr().err.endswith("there is no compiler. Next: apt-get install gcc libc6-dev\n")


def test_after_a_missed_target_ttrpc_is_measured_too(tmp_path: Path) -> None:
    (python := tmp_path / "python").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/ran\ntest "$2" != bench\n')
    python.chmod(0o755)
    command = ["make", "bench", f"PYTHON={python}", "SYSTEM_PYTHON=true"]
    assert subprocess.run(command, cwd=PROJECT, capture_output=True, check=False).returncode != 0
    assert (tmp_path / "ran").read_text() == "-m bench\n-m bench.ttrpc\n"


def test_the_report_has_these_fields() -> None:
    document = json.loads(json.dumps(row(ratio=1.23456, target=2).document()))
    assert document == {
        "figure": "a",
        "value": 2.0,
        "unit": "us",
        "floor": 1.0,
        "ratio": 1.235,
        "target": 2,
        "limit": None,
        "met": True,
    }


def test_the_table_says_what_is_missed() -> None:
    text = table([row(ratio=3, target=2), row(ratio=1, target=2), row(ratio=1)])
    assert [line.rpartition("  ")[2] for line in text.splitlines()[1:3]] == ["NOT MET", "met"]
    assert len(text.splitlines()) == 4


def test_the_floor_uses_nothing_of_ours_but_messages() -> None:
    code = "import bench.floor, sys; print(*sorted(name for name in sys.modules if name.startswith('nri_rdma')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout.split() == ["nri_rdma", "nri_rdma.pb", "nri_rdma.pb.nri_pb2"]
    assert floor.ttrpc.Request.DESCRIPTOR.full_name == "ttrpc.Request"


def test_the_floor_answers_a_container_with_one_device_and_one_variable() -> None:
    payload = request(messages.create_container(messages.pod(1))).payload
    adjust = nri.CreateContainerResponse.FromString(floor.answer("CreateContainer", payload).SerializeToString()).adjust
    assert ([device.path for device in adjust.linux.devices], len(adjust.env)) == (["/dev/infiniband/uverbs0"], 1)


def test_calls_are_as_large_as_real_ones() -> None:
    """A real CreateContainer had 2.8 KB; the annotations of its pod, of which every event has to look at the keys."""
    call = request(messages.create_container(messages.pod(1)))
    message = nri.CreateContainerRequest.FromString(call.payload)
    assert 2700 < len(call.payload) < 3100
    assert (len(message.pod.annotations), len(message.container.env)) == (10, 20)
    assert call.metadata == (("containerd-namespace-ttrpc", "k8s.io"),)


def test_a_call_is_made_once_and_sent_on_many_streams() -> None:
    call = messages.run_pod(messages.pod(1), traced=True)
    assert [request(call, stream_id).stream_id for stream_id in (1, 3, 2**31 + 1)] == [1, 3, 2**31 + 1]
    assert request(call).metadata_value("traceparent").startswith("00-")


def test_a_call_longer_than_4096_bytes_has_a_short_first_frame() -> None:
    """Go's peers read the start of a message through a buffer of that size."""
    pod = messages.pod(1)
    call = messages.synchronize([pod], [messages.container(pod, f"c{number}") for number in range(5)])
    pieces = MuxDecoder().receive_data(bytes(call.on(7)))
    assert len(pieces[0][1]) == 4096
    server = ServerConnection()
    for _conn, piece in pieces:
        server.receive_data(piece)
    event = server.next_event()
    assert isinstance(event, Request)
    told = nri.SynchronizeRequest.FromString(event.payload)
    assert (event.stream_id, len({it.id for it in told.containers})) == (7, 5)


@pytest.mark.parametrize("payload", [b"short", bytes(range(256)) * 40])
def test_an_answer_is_read_whole_in_however_many_frames_it_comes(payload: bytes) -> None:
    ours, plugin = socket.socketpair()
    peer = Peer(ours)
    message = struct.pack(">IIBB", len(payload), 1, 2, 0) + payload
    plugin.sendall(encode_message(1, message))
    assert peer.call(messages.run_pod(messages.pod(1)))[HEADERS:] == payload
    peer.close()
    plugin.close()
