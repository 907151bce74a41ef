"""Which texts name a kind, a device or a file, and which do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.cdi.names import DEVICE, KIND, VENDOR_OR_CLASS, file_name, parse_kind, parse_qualified
from nri_rdma.cdi.spec import Kind

NICS = Kind(vendor="vendor.example", device_class="nic")

_WORDS = st.from_regex(VENDOR_OR_CLASS, fullmatch=True)
_DEVICES = st.from_regex(DEVICE, fullmatch=True)
_NEAR = st.text("aZ09._-:/= \n\u00e9\u0661", max_size=8)
"""Texts of the characters that matter, beside a letter and a digit that are not ASCII."""


def test_a_file_is_named_by_its_kind() -> None:
    assert file_name(NICS) == "vendor.example-nic.json"


@pytest.mark.parametrize("text", ["ve/cl=a", "v.w/c.d=0:a", "a-b_c/d=1"])
def test_a_qualified_name_is_kind_and_device(text: str) -> None:
    parsed = parse_qualified(text)
    assert parsed is not None
    kind, device = parsed
    assert kind.qualified(device) == text


@pytest.mark.parametrize(
    "text", ["", "v", "ve/cl", "ve/cl=", "=a", "ve/cl=a=b", "ve/cl/d=a", "1v/c=a", "ve/cl-=a", "ve/cl=-a", "ve/cl=a\n"]
)
def test_other_texts_are_no_qualified_names(text: str) -> None:
    assert parse_qualified(text) is None


def test_a_kind_has_one_slash() -> None:
    assert parse_kind("ve/cl") == Kind(vendor="ve", device_class="cl")
    assert parse_kind("ve/cl/d") is None


@pytest.mark.parametrize(
    "text", ["", "/", "ve/", "/cl", "ve", "ve/cl ", " ve/cl", "ve/cl\n", "v\u00e9/cl", "ve/c\u0661"]
)
def test_other_texts_are_no_kinds(text: str) -> None:
    assert parse_kind(text) is None
    assert KIND.fullmatch(text) is None


@pytest.mark.parametrize("mark", [".", "_", "-"])
def test_marks_are_only_within_a_vendor_or_a_class(mark: str) -> None:
    assert parse_kind(f"v{mark}e/c{mark}{mark}l") == Kind(vendor=f"v{mark}e", device_class=f"c{mark}{mark}l")
    for word in (f"{mark}e", f"v{mark}", mark):
        assert parse_kind(f"{word}/cl") is None
        assert parse_kind(f"ve/{word}") is None


def test_a_device_may_begin_with_a_digit_and_have_colons_within_but_a_vendor_may_not() -> None:
    assert parse_qualified("ve/cl=0000:1b:00.0") == (Kind(vendor="ve", device_class="cl"), "0000:1b:00.0")
    assert parse_qualified("ve/cl=:a") is None
    assert parse_qualified("ve/cl=a:") is None
    assert parse_kind("0ve/cl") is None
    assert parse_kind("v:e/cl") is None


@given(_WORDS, _WORDS, _DEVICES)
def test_the_name_of_a_device_is_read_as_it_is_written(vendor: str, device_class: str, device: str) -> None:
    kind = Kind(vendor=vendor, device_class=device_class)
    assert parse_kind(str(kind)) == kind
    assert parse_qualified(kind.qualified(device)) == (kind, device)


@given(_NEAR | st.text(max_size=8), _NEAR | _DEVICES)
def test_what_is_read_is_what_was_written(kind_text: str, device: str) -> None:
    kind = parse_kind(kind_text)
    assert (kind is not None) == (KIND.fullmatch(kind_text) is not None)
    assert kind is None or str(kind) == kind_text
    found = parse_qualified(f"{kind_text}={device}")
    assert found is None or found[0].qualified(found[1]) == f"{kind_text}={device}"


@given(_WORDS, _WORDS)
def test_a_kinds_file_is_one_name_without_a_folder(vendor: str, device_class: str) -> None:
    name = file_name(Kind(vendor=vendor, device_class=device_class))
    assert "/" not in name
    assert name == f"{vendor}-{device_class}.json"
