"""The demo's page: it counts, it fits 80 columns, and it paints only where that is wanted."""

import io

import pytest

from tests.rig.demo_page import WIDTH, Page
from tests.rig.expect import described_root
from tests.rig.node import load


class Terminal(io.StringIO):
    """A text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_check_passes_when_both_texts_are_equal() -> None:
    out = io.StringIO()
    page = Page(out)
    page.check("MAC", "02:00:00:00:00:01", "02:00:00:00:00:01")
    page.check("MAC", "02:00:00:00:00:01", "02:00:00:00:00:02")
    first, second = out.getvalue().splitlines()
    assert first.endswith(" ok")
    assert second.endswith(" FAILED")
    assert (page.passed, page.failed) == (1, 1)


def test_the_last_line_counts_what_failed() -> None:
    out = io.StringIO()
    page = Page(out)
    page.check("a", "1", "1")
    page.broken("it was not there")
    page.summary("build/demo")
    assert out.getvalue().splitlines()[-1].startswith("demo: 1 of 2 checks FAILED after ")
    assert out.getvalue().endswith("; logs: build/demo\n")


def test_long_texts_are_wrapped_into_the_page() -> None:
    out = io.StringIO()
    page = Page(out)
    page.text("word " * 60)
    page.quote("x" * 300)
    page.table("container main")
    page.check("a label that is longer than its column", "expected " * 9, "seen " * 20)
    with page.progress("something with a long name, which takes a while and then some more"):
        pass
    assert max(map(len, out.getvalue().splitlines())) <= WIDTH


def test_a_long_quotation_keeps_its_first_and_its_last_lines() -> None:
    out = io.StringIO()
    Page(out).quote("\n".join(f"line {number}" for number in range(50)))
    lines = [line.strip(" |") for line in out.getvalue().splitlines()]
    assert (lines[0], lines[1], lines[-1], len(lines)) == ("line 0", "...", "line 49", 8)


def test_what_was_not_finished_is_named() -> None:
    out = io.StringIO()
    with pytest.raises(KeyError), Page(out).progress("the node"):
        raise KeyError
    assert out.getvalue().endswith(" not done\n")


@pytest.mark.parametrize(
    ("out", "no_colour", "painted"), [(Terminal, "", True), (Terminal, "1", False), (io.StringIO, "", False)]
)
def test_colour_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, out: type[io.StringIO], no_colour: str, painted: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_colour)
    stream = out()
    Page(stream).check("a", "1", "1")
    assert ("\x1b[" in stream.getvalue()) == painted


def test_the_root_of_a_function_is_above_all_its_bridges() -> None:
    node = load("eight")
    assert described_root(node, "0000:be:00.0") == "pci0000:bd"
    assert described_root(node, "0000:bf:00.0") == "pci0000:bd"
    assert described_root(node, "0000:19:00.0") == "pci0000:17"
