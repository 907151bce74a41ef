"""The picture of docs/topology.md is the one that the program draws now."""

from tests.rig.topology_page import HELD, PICTURE, picture


def test_the_picture_is_drawn_anew() -> None:
    assert PICTURE.read_text(encoding="ascii") == picture(), (
        "run `make generate`, and look at docs/topology.svg before you commit it"
    )


def test_the_page_shows_the_picture_and_tells_of_its_pods() -> None:
    text = PICTURE.with_suffix(".md").read_text(encoding="utf-8")
    assert f"]({PICTURE.name})" in text
    for pod, _gpus in HELD.values():
        assert f"`{pod}`" in text
