"""The names of vendors, classes, devices and spec files."""

from __future__ import annotations

import re

from nri_rdma.cdi.spec import Kind

VENDOR_OR_CLASS = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
"""To be matched as a whole, as are the patterns below."""
KIND = re.compile(rf"({VENDOR_OR_CLASS.pattern})/({VENDOR_OR_CLASS.pattern})")
KIND_HINT = "write vendor/class: each begins with a letter, ends with a letter or digit, and has . _ - only within"
DEVICE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?")
DEVICE_HINT = "begin and end with a letter or digit; between are also . _ - and :"


def parse_kind(text: str) -> Kind | None:
    """Return the kind that ``vendor/class`` spells; None when the text is no kind."""
    vendor, _, device_class = text.partition("/")
    if not (VENDOR_OR_CLASS.fullmatch(vendor) and VENDOR_OR_CLASS.fullmatch(device_class)):
        return None
    return Kind(vendor=vendor, device_class=device_class)


def parse_qualified(text: str) -> tuple[Kind, str] | None:
    """Return kind and device of ``vendor/class=device``; None when the text is no qualified name."""
    kind_text, _, device = text.partition("=")
    kind = parse_kind(kind_text)
    return (kind, device) if kind is not None and DEVICE.fullmatch(device) else None


def file_name(kind: Kind) -> str:
    """Return the name of the file for all devices of a kind that one program knows, as runtimes' tools name it."""
    return f"{kind.vendor}-{kind.device_class}.json"
