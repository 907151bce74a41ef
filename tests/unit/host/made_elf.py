"""ELF libraries of a few hundred bytes that say what a test wants them to say."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

X86_64, AARCH64 = 62, 183
_DYNSYM, _STRTAB, _RELA, _DYNAMIC, _PROGBITS = 11, 3, 4, 6, 1
_VERDEF, _VERNEED, _VERSYM = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_DATA = 0x1000
"""Where the data is in memory."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library: `defines` and `needs` are symbols with their version, `needs` by library."""

    defines: Sequence[tuple[str, str]] = ()
    needs: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    machine: int = X86_64
    bits: int = 64
    texts: Sequence[str] = ()
    """In its data."""
    driver: tuple[str, int, int] | None = None
    """Name and supported versions of its verbs_device_ops."""
    packed: bool = False
    """Whether the pointer to that name is in the data, and not in a relocation."""

    def build(self) -> bytes:
        """The file. Each text is in its table once."""
        names = _Names()
        versions = dict.fromkeys(version for _, version in self.defines)
        numbers = {("", version): number for number, version in enumerate(versions, 2)}
        for library, symbols in self.needs.items():
            for _, version in symbols:
                numbers.setdefault((library, version), len(numbers) + 2)
        rows = [("", "", "", 0)]
        rows += [("", name, version, 7) for name, version in self.defines]
        rows += [(library, name, version, 0) for library, symbols in self.needs.items() for name, version in symbols]
        dynsym = b"".join(self._symbol(names(name), home) for _, name, _, home in rows)
        versym = b"".join(struct.pack("<H", numbers.get((library, version), 0)) for library, _, version, _ in rows)
        verdef = _chain([self._defined(names, number, name) for (own, name), number in numbers.items() if not own])
        verneed = _chain([self._needed(names, library, numbers) for library in self.needs])
        dynamic = b"".join([self._words(1, names(library)) for library in self.needs]) + self._words(0, 0)
        texts = b"\0" + b"".join(text.encode() + b"\0" for text in self.texts)
        rela = b""
        if self.driver is not None:
            name, least, most = self.driver
            at = _DATA + len(texts)
            texts += name.encode() + b"\0"
            texts += bytes(-len(texts) % 8)
            pointer = _DATA + len(texts)
            texts += struct.pack("<QII", at if self.packed else 0, least, most)
            rela = b"" if self.packed else struct.pack("<QQQ", pointer, 8, at)
        sections = [
            (_STRTAB, 0, 0, names.data, 0),
            (_DYNSYM, 0, 0, dynsym, 1),
            (_VERSYM, 0, 0, versym, 2),
            (_VERDEF, 0, 0, verdef, 1),
            (_VERNEED, 0, 0, verneed, 1),
            (_DYNAMIC, 0, 0, dynamic, 1),
            (_PROGBITS, 3, _DATA, texts, 0),
            (_RELA, 0, 0, rela, 2),
        ]
        return self._file([it for it in sections if it[3]])

    def _symbol(self, name: int, home: int) -> bytes:
        if self.bits == 64:
            return struct.pack("<IBBHQQ", name, 0x12, 0, home, 0, 0)
        return struct.pack("<IIIBBH", name, 0, 0, 0x12, 0, home)

    def _words(self, *values: int) -> bytes:
        return struct.pack(f"<{len(values)}{'Q' if self.bits == 64 else 'I'}", *values)

    def _defined(self, names: _Names, number: int, name: str) -> tuple[bytes, bytes]:
        head = struct.pack("<HHHHI", 1, 0, number, 1, 0)
        return head, struct.pack("<II", names(name), 0)

    def _needed(self, names: _Names, library: str, numbers: Mapping[tuple[str, str], int]) -> tuple[bytes, bytes]:
        own = [(version, number) for (of, version), number in numbers.items() if of == library]
        aux = b"".join(
            struct.pack("<IHHII", 0, 0, number, names(version), 16 if place < len(own) else 0)
            for place, (version, number) in enumerate(own, 1)
        )
        return struct.pack("<HHI", 1, len(own), names(library)), aux

    def _file(self, sections: Sequence[tuple[int, int, int, bytes, int]]) -> bytes:
        wide = self.bits == 64
        head_size, shape = (64, "<IIQQQQIIQQ") if wide else (52, "<10I")
        body, table = b"", struct.pack(shape, *([0] * 10))
        for kind, flags, address, data, link in sections:
            offset = head_size + len(body)
            table += struct.pack(shape, 0, kind, flags, address, offset, len(data), link, 0, 8, 0)
            body += data + bytes(-len(data) % 8)
        head = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + bytes(9)
        head += struct.pack("<HHI", 3, self.machine, 1)
        head += struct.pack("<QQQI" if wide else "<IIII", 0, 0, head_size + len(body), 0)
        head += struct.pack("<HHHHHH", head_size, 0, 0, 64 if wide else 40, len(sections) + 1, 0)
        return head + body + table


class _Names:
    """A table of texts."""

    def __init__(self) -> None:
        self.data = b"\0"
        self._places = {"": 0}

    def __call__(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = len(self.data)
            self.data += name.encode() + b"\0"
        return self._places[name]


def _chain(rows: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Records of a head and what belongs to it, each with the distance to that and to the next record."""
    data = b""
    for number, (start, rest) in enumerate(rows, 1):
        size = len(start) + 8 + len(rest)
        data += start + struct.pack("<II", len(start) + 8, size if number < len(rows) else 0) + rest
    return data
