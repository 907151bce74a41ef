"""The matrix of pairs."""

from xml.etree import ElementTree

from nri_rdma.commands.picture.pair_matrix import Cell, svg_of_pairs

EVIL = 'a"<b>&\x1b'


def test_names_of_others_are_only_text() -> None:
    cells = {(EVIL, "b"): Cell(first=EVIL, second="", part=0.5)}
    text = svg_of_pairs(EVIL, EVIL, [EVIL], ["b"], cells)
    picture = ElementTree.fromstring(text)
    assert text.isascii()
    assert {it.tag.partition("}")[2] for it in picture.iter()} == {"svg", "title", "desc", "rect", "text", "g"}


def test_a_pair_that_failed_has_a_dashed_border_and_no_bar() -> None:
    good, bad = (
        svg_of_pairs("t", "w", ["a"], ["b"], {("a", "b"): Cell(first="", second="", part=part)}) for part in (0.5, None)
    )
    assert ("stroke-dasharray" in bad, "stroke-dasharray" in good) == (True, False)
    assert good.count("<rect") == bad.count("<rect") + 1
