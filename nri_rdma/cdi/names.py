"""The names of CDI vendors, classes, devices and spec files."""

from __future__ import annotations

import re

from nri_rdma.cdi.spec import Kind

VENDOR_OR_CLASS = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
"""The form of a vendor or class. This pattern and those below must match the whole text."""
KIND = re.compile(rf"({VENDOR_OR_CLASS.pattern})/({VENDOR_OR_CLASS.pattern})")
KIND_HINT = "write vendor/class: each begins with a letter, ends with a letter or digit, and may have . _ - between"
DEVICE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?")
DEVICE_HINT = "begin and end with a letter or digit; between are also . _ - and :"


def parse_kind(text: str) -> Kind | None:
    """Return the kind in the text ``vendor/class``; None if the text is no kind."""
    vendor, _, device_class = text.partition("/")
    if not (VENDOR_OR_CLASS.fullmatch(vendor) and VENDOR_OR_CLASS.fullmatch(device_class)):
        return None
    return Kind(vendor=vendor, device_class=device_class)


def parse_qualified(text: str) -> tuple[Kind, str] | None:
    """Return the kind and the device name in the text ``vendor/class=device``; None if the text is no qualified
    name."""
    kind_text, _, device = text.partition("=")
    kind = parse_kind(kind_text)
    return (kind, device) if kind is not None and DEVICE.fullmatch(device) else None


def file_name(kind: Kind) -> str:
    """Return the usual file name of a spec with all devices of one kind: the tools of runtimes use it, too."""
    return f"{kind.vendor}-{kind.device_class}.json"
