"""Quantities mean what Kubernetes takes them for."""

from fractions import Fraction

import pytest

from nri_rdma.text.quantities import bytes_of, cpus_of


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1Gi", 1 << 30),
        ("512Mi", 512 << 20),
        ("64Ki", 64 << 10),
        ("1G", 1_000_000_000),
        ("20k", 20_000),
        ("1.5Gi", 3 << 29),
        ("2Ei", 2 << 60),
        ("1E", 10**18),
        ("4096", 4096),
        ("0", 0),
    ],
)
def test_a_quantity_is_a_number_of_bytes(text: str, number: int) -> None:
    assert bytes_of(text) == number


@pytest.mark.parametrize(
    "text", ["", "Gi", "1gi", "1KI", "1K", "1GB", "1 Gi", "-1Gi", "0.3", "0.3Ki", "1m", "1Gi\n", "٣Gi"]
)
def test_no_quantity(text: str) -> None:
    assert bytes_of(text) is None


def test_a_quantity_without_end_is_none() -> None:
    assert bytes_of("9" * 5000 + "Gi") is None
    assert cpus_of("9" * 5000) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("4", 4), ("4.0", 4), ("4000m", 4), ("4k", 4000), ("500m", Fraction(1, 2)), ("0.1", Fraction(1, 10))],
)
def test_a_number_of_cpus_may_be_in_thousandths(text: str, number: Fraction) -> None:
    assert cpus_of(text) == number


@pytest.mark.parametrize("text", ["", "m", "4mm", "4Km", "-4", "four"])
def test_no_number_of_cpus(text: str) -> None:
    assert cpus_of(text) is None
