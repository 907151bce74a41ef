"""Waterfalls: spans in, a picture out."""

import pytest

from nri_rdma.commands.trace.waterfall import ASCII, UNICODE, SpanRow, draw, make_blocks, read_spans
from nri_rdma.errors import NotReadyError

MS = 1_000_000
START = 1_770_000_000_000_000_000


def span(name: str, start: int, end: int, *, parent: str = "", error: str = "", **more: str) -> SpanRow:
    return SpanRow(
        name=name,
        trace_id=more.pop("trace", "t1"),
        span_id=more.pop("id", name),
        parent_id=parent,
        start_ns=START + start * MS,
        end_ns=START + end * MS,
        attributes={key.replace("__", "."): value for key, value in more.items()},
        error=error,
    )


EVENT = (
    span("RunPodSandbox", 0, 4, k8s__pod__name="default/train-0", sandbox="s1"),
    span("parse", 0, 1, parent="RunPodSandbox"),
    span("attach", 2, 80, parent="RunPodSandbox", sandbox="s1"),
    span("move-netdev", 20, 40, parent="attach", rdma__device="mlx5_2", step="move rail2 into the pod as rdma0"),
)


def picture(spans: tuple[SpanRow, ...], width: int = 80, pen: object = UNICODE) -> list[str]:
    assert pen in (UNICODE, ASCII)
    chosen = UNICODE if pen is UNICODE else ASCII
    return [line.text for block in make_blocks(spans) for line in draw(block, width, chosen)]


def test_an_event_is_drawn_as_a_tree_with_bars_to_scale() -> None:
    assert picture(EVENT) == [
        "RunPodSandbox  default/train-0  2026-02-02 02:40:00.000Z  80.0 ms in all,",
        "  answered after 4.0 ms",
        "RunPodSandbox                 █▋                                  4.0 ms",
        "├ parse                       ▍                                   1.0 ms",
        "└ attach                      ████████████████████████████████   78.0 ms",
        "  └ move-netdev                       ████████                   20.0 ms",
        "        mlx5_2: move rail2 into the pod as rdma0",
    ]


def test_without_unicode_it_is_drawn_in_ascii() -> None:
    lines = picture(EVENT, pen=ASCII)
    assert all(line.isascii() for line in lines)
    assert "  `-move-netdev                       ########                   20.0 ms" in lines


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("pen", [UNICODE, ASCII])
def test_no_line_is_wider_than_the_terminal(width: int, pen: object) -> None:
    long = span("a-very-long-name-of-a-step-that-nobody-expected", 5, 6, parent="attach", step="word " * 60)
    assert max(map(len, picture((*EVENT, long), width, pen))) <= width


def test_a_bar_is_no_longer_than_its_column_if_the_clock_was_set_back() -> None:
    event, step = span("RunPodSandbox", 1000, 2, sandbox="s"), span("attach", 1, 2, parent="RunPodSandbox")
    assert max(map(len, picture((event, step)))) <= 80


def test_details_stand_beside_the_bar_where_there_is_room() -> None:
    line = next(line for line in picture(EVENT, 160) if "move-netdev" in line)
    assert line.endswith("20.0 ms  mlx5_2: move rail2 into the pod as rdma0")


def test_an_error_is_told_once_where_it_comes_from() -> None:
    why = "nri-rdma: DEVICE-IN-USE: mlx5_7 is held by pod default/one"
    spans = (
        span("RunPodSandbox", 0, 4, error=why, sandbox="s"),
        span("place", 1, 3, parent="RunPodSandbox", error=why),
    )
    lines = picture(spans)
    assert lines[0].endswith("  ERROR")
    assert lines[2] == "│   ERROR, see below"
    assert lines[4] == f"      ERROR {why}"


def test_events_come_in_order_of_time_whatever_order_they_ended_in() -> None:
    names = ("RunPodSandbox", "CreateContainer", "StopPodSandbox", "RemovePodSandbox")
    events = tuple(span(name, 10 * number, 99, trace=name, sandbox="s") for number, name in enumerate(names))
    assert [block.event.name for block in make_blocks(reversed(events))] == list(names)


def test_a_step_of_an_attach_that_still_runs_belongs_to_its_event() -> None:
    step = span("move-netdev", 20, 40, parent="attach")
    (block,) = make_blocks((EVENT[0], step))
    assert [row.span.name for row in block.rows] == ["RunPodSandbox", "move-netdev"]


def test_two_events_of_one_trace_of_the_runtime_are_two_blocks() -> None:
    events = tuple(span("CreateContainer", it, it + 1, id=str(it), parent="kubelet", sandbox="s") for it in (1, 5))
    assert len(make_blocks(events)) == 2


def test_a_span_of_no_length_is_seen() -> None:
    event = span("CreateContainer", 0, 0, sandbox="s")
    assert "▏" in picture((event,))[1]


@pytest.mark.parametrize("document", [{}, {"spans": 3}, {"spans": [{"name": "x"}]}])
def test_a_document_without_spans_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(NotReadyError):
        read_spans(document)
