"""PCI addresses are read as people and the kernel write them."""

from __future__ import annotations

import pytest

from nri_rdma.model.pci import PciAddress, parse_pci_address


@pytest.mark.parametrize("text", ["0000:1b:00.0", "1b:00.0", "0000:1B:00.0"])
def test_an_address_has_several_spellings(text: str) -> None:
    assert parse_pci_address(text) == PciAddress(0, 0x1B, 0, 0)


@pytest.mark.parametrize("text", ["", "1b", "0000:1b:00.8", "0000:1b:20.0", "0000:1b:00.0 ", "0000:1g:00.0", "600.0"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse_pci_address(text) is None


def test_the_text_of_an_address_is_the_kernels() -> None:
    assert str(PciAddress(0, 0x1B, 0, 1)) == "0000:1b:00.1"
