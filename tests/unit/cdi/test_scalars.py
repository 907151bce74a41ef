"""Numbers and truth values of a CDI spec are what runtimes take them for."""

from __future__ import annotations

import pytest

from nri_rdma.cdi.scalars import Text
from nri_rdma.errors import CdiError
from tests.unit.cdi.made_specs import node_with, spec_with


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("438", 438),
        ("0666", 0o666),
        ("0o666", 0o666),
        ("0x1B6", 438),
        ("0b11", 3),
        ("4_3_8", 438),
        ("+7", 7),
        ("-0", 0),
        ("438.0", 438),
        ("4.38e2", 438),
        ("1e2", 100),
    ],
)
def test_a_number_is_what_runtimes_take_it_for(written: str, number: int) -> None:
    assert node_with(f"fileMode: {written}").file_mode == number


@pytest.mark.parametrize(
    "written", ["08", "1.5", "'5'", "!!str 5", "1:30", "_1", "1e400", ".nan", "0x", "2001-01-01", "9" * 5000]
)
def test_other_words_are_no_numbers(written: str) -> None:
    with pytest.raises(CdiError) as caught:
        node_with(f"fileMode: {written}")
    assert caught.value.path == "devices[0].containerEdits.deviceNodes[0].fileMode"


@pytest.mark.parametrize(
    ("written", "truth"), [("true", True), ("False", False), ("yes", True), ("'on'", True), ("N", False)]
)
def test_a_truth_value_is_what_runtimes_take_it_for(written: str, truth: bool) -> None:
    rdt = spec_with(f"{{intelRdt: {{enableMonitoring: {written}}}}}").intel_rdt
    assert rdt is not None
    assert rdt.enable_monitoring is truth


# By the functions alone: words of gopkg.in/yaml.v3's resolve_test.go and decode_test.go


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("685_230", 685230),
        ("+685_230", 685230),
        ("02472256", 685230),
        ("0x_0A_74_AE", 685230),
        ("-0b101", -5),
        ("-0b" + "1" * 64, 1 - 2**64),
    ],
)
def test_signs_underscores_and_bases_are_those_of_yaml(word: str, number: int) -> None:
    assert Text(word, plain=True).number == number
    assert Text(word, plain=False).number is None  # in quotes


@pytest.mark.parametrize("word", ["190:20:30", "0o8", "0b2", "0xg", "-", "", "٣", "-0b" + "1" * 65])
def test_words_that_are_nearly_numbers_are_none(word: str) -> None:
    assert Text(word, plain=True).number is None


def test_a_word_of_yaml_1_1_is_a_truth_value_in_quotes_too_and_others_are_not() -> None:
    assert [Text(word, plain=False).truth for word in ("y", "Yes", "ON", "n", "No", "OFF")] == [True] * 3 + [False] * 3
    assert [Text("true", plain=plain).truth for plain in (True, False)] == [True, None]
    assert [Text(word, plain=True).truth for word in ("yEs", "tRUE", "1", "")] == [None] * 4


@pytest.mark.parametrize("word", ["", "~", "null", "Null", "NULL"])
def test_a_null_of_yamls_core_schema_is_one_unless_it_is_quoted(word: str) -> None:
    """YAML 1.2.2, 10.3.2."""
    assert Text(word, plain=True).is_missing
    assert not Text(word, plain=False).is_missing
    assert not Text("nULL", plain=True).is_missing


@pytest.mark.parametrize(
    ("text", "words"),
    [("[]", "a list"), ("{}", "a mapping"), ("''", "'' in quotes"), ("x", "'x'"), ("!!str ", "'' in quotes")],
)
def test_what_is_no_number_is_named_as_it_stands(text: str, words: str) -> None:
    with pytest.raises(CdiError) as caught:
        node_with(f"minor: {text}, uid: 1")
    assert (caught.value.what, caught.value.hint) == (
        f"{words} is not allowed",
        "write a whole number from 0 to 1048575",
    )
