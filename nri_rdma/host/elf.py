"""Read from the shared libraries of an image which libraries, versions and symbols they need and define.

Images are not trusted: nothing in them is run, each number is checked before use, and all tables have limits. A file
that is no ELF file or breaks a limit raises ElfError.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MOST_BYTES = 16 << 20
"""The largest file to read, in bytes. The largest provider (driver library) of rdma-core has 5 MiB with debugging
symbols."""
MOST_READ = 64 << 20
"""The most bytes to read from one file in total. It bounds the time for a hostile file whose tables overlap, so that
their sizes add up to more than the file's size."""
MOST_ROWS = 65536
"""The most rows to read from all tables of one file; libmlx5 has 1,000 symbols."""
MOST_SECTIONS = 256
LONGEST_NAME = 4096
MOST_NAME_BYTES = 4 << 20
"""The most bytes of names to read from one file. The limit counts a name each time it is used, because many symbols may
share one long name."""

_SECTION_DYNSYM, _SECTION_DYNAMIC = 11, 6
_SECTION_VERDEF, _SECTION_VERNEED, _SECTION_VERSYM = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_SECTION_RELA = 4
_NEEDED = 1
_WRITTEN = 3
"""Flags (write, alloc) of a data section that the program may write. The addresses that a program holds are in such
sections."""


class ElfError(Exception):
    """The error for a file that is not an ELF file or breaks a limit of this module; the text says why."""


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entry: int


class Elf:
    """A shared library, opened for reading. Each method reads the file. Each method raises ElfError if the file is
    malformed or breaks a limit, and OSError if it cannot be read."""

    def __init__(self, fd: int) -> None:
        """Read the ELF header of the file with the descriptor `fd`. The caller closes the descriptor. Raises ElfError
        if the file is not an ELF file."""
        self._fd = fd
        self._bytes_left, self._rows_left, self._names_left = MOST_READ, MOST_ROWS, MOST_NAME_BYTES
        self._size = os.fstat(fd).st_size
        head = self._read(0, 64)
        if head[:4] != b"\x7fELF":
            raise ElfError("it is no ELF file")
        self.bits = {1: 32, 2: 64}.get(head[4], 0)
        self.order = {1: "<", 2: ">"}.get(head[5], "")
        if not self.bits or not self.order:
            raise ElfError("its header has an unknown class")
        self.machine: int = struct.unpack_from(f"{self.order}H", head, 18)[0]
        self._head = head
        self._known: tuple[_Section, ...] | None = None

    def needed(self) -> tuple[str, ...]:
        """Return the names of the libraries that this library is linked with."""
        found = []
        for section in self._of(_SECTION_DYNAMIC):
            names = self._linked(section)
            for tag, value in self._rows(section, "QQ" if self.bits == 64 else "II"):
                if tag == _NEEDED:
                    found.append(self._name(names, value))
        return tuple(found)

    def versions_needed(self) -> dict[str, frozenset[str]]:
        """Return the symbol versions that this library needs, by the library that must define them."""
        return {library: frozenset(versions.values()) for library, versions in self._wanted().items()}

    def versions_defined(self) -> frozenset[str]:
        """Return the symbol versions that this library defines."""
        return frozenset(self._defined().values())

    def symbols_needed(self, library: str) -> frozenset[tuple[str, str]]:
        """Return the symbols that this library needs from `library`, each as a pair of name and version. Weak symbols
        are left out."""
        versions = self._wanted().get(library, {})
        found = self._symbols()
        strong = ((name, at) for name, at, is_here, is_weak in found if not is_here and not is_weak)
        return frozenset((name, versions[at]) for name, at in strong if at in versions)

    def symbols_defined(self) -> frozenset[tuple[str, str]]:
        """Return the symbols that this library exports, each as a pair of name and version."""
        versions = self._defined()
        return frozenset((name, versions[at]) for name, at, is_here, _ in self._symbols() if is_here and at in versions)

    def data(self) -> bytes:
        """Return all bytes of the file."""
        self._check_size()
        return self._read(0, self._size)

    def words_after(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the two 32-bit numbers that follow each pointer to this text in the library's data. Used to read
        numbers from a structure that begins with a pointer to a known name."""
        if self.bits != 64:
            return
        whole = self.data()
        targets = set(self._addresses(whole, text.encode() + b"\0"))
        for section in self._of(_SECTION_RELA):
            for place, _info, addend in self._rows(section, "QQQ"):
                if addend in targets:
                    yield from self._pair(place + 8)
        for section in self._sections():  # with packed relocations the addresses are already in the data
            if section.flags & _WRITTEN == _WRITTEN and section.kind == 1:
                for number, (word,) in enumerate(self._rows(section, "Q")):
                    if word in targets:
                        yield from self._pair(section.address + 8 * number + 8)

    # Tables

    def _wanted(self) -> dict[str, dict[int, str]]:
        found: dict[str, dict[int, str]] = {}
        for section in self._of(_SECTION_VERNEED):
            data, names, place = self._bytes(section), self._linked(section), 0
            while True:
                _version, count, file, first, after = self._unpack("HHIII", data, place)
                versions, aux = found.setdefault(self._name(names, file), {}), place + first
                for _ in range(count):
                    _hash, _flags, other, name, following = self._unpack("IHHII", data, aux)
                    versions[other & 0x7FFF] = self._name(names, name)
                    aux += following
                place += after
                if not after:
                    break
        return found

    def _defined(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for section in self._of(_SECTION_VERDEF):
            data, names, place = self._bytes(section), self._linked(section), 0
            while True:
                _version, _flags, index, _count, _hash, first, after = self._unpack("HHHHIII", data, place)
                name, _next = self._unpack("II", data, place + first)
                found[index & 0x7FFF] = self._name(names, name)
                place += after
                if not after:
                    break
        return found

    def _symbols(self) -> list[tuple[str, int, bool, bool]]:
        """Return all symbols: name, version number, True if this library defines the symbol, and True if the symbol is
        weak."""
        symbols, versions = self._one(_SECTION_DYNSYM), self._one(_SECTION_VERSYM)
        names, found = self._linked(symbols), []
        numbers = [number for (number,) in self._rows(versions, "H")]
        rows = self._rows(symbols, "IBBHQQ" if self.bits == 64 else "IIIBBH")
        for row, number in zip(rows, numbers, strict=False):
            name, info, home = (row[0], row[1], row[3]) if self.bits == 64 else (row[0], row[3], row[5])
            found.append((self._name(names, name), number & 0x7FFF, home != 0, info >> 4 == 2))
        return found

    # Sections

    def _sections(self) -> tuple[_Section, ...]:
        if self._known is None:
            self._check_size()
            form, at = ("QIHHHHHH", 40) if self.bits == 64 else ("IIHHHHHH", 32)
            offset, _flags, _head, _program, _programs, size, count, _names = self._unpack(form, self._head, at)
            if size != (64 if self.bits == 64 else 40) or not offset:
                raise ElfError("it has no table of sections")
            if count > MOST_SECTIONS:
                raise ElfError(f"it has {count} sections")
            table = self._read(offset, size * count)
            shape = "IIQQQQIIQQ" if self.bits == 64 else "IIIIIIIIII"
            rows = [self._unpack(shape, table, size * number) for number in range(count)]
            self._known = tuple(_Section(row[1], row[2], row[3], row[4], row[5], row[6], row[9]) for row in rows)
        return self._known

    def _of(self, kind: int) -> list[_Section]:
        return [section for section in self._sections() if section.kind == kind]

    def _one(self, kind: int) -> _Section:
        found = self._of(kind)
        if len(found) != 1:
            raise ElfError("it has no table of symbols with versions")
        return found[0]

    def _linked(self, section: _Section) -> bytes:
        """Return the string table of a section: the bytes of the section that its link field names."""
        sections = self._sections()
        if section.link >= len(sections):
            raise ElfError("a section refers to one that does not exist")
        return self._bytes(sections[section.link])

    def _bytes(self, section: _Section) -> bytes:
        return self._read(section.offset, section.size)

    def _rows(self, section: _Section, form: str) -> list[tuple[int, ...]]:
        shape = struct.Struct(self.order + form)
        count = section.size // shape.size
        self._count(count)
        return list(shape.iter_unpack(self._read(section.offset, count * shape.size)))

    def _addresses(self, whole: bytes, wanted: bytes) -> Iterator[int]:
        """Yield the memory address of each occurrence of the bytes `wanted` in the loaded library. `whole` is the whole
        file."""
        for section in self._sections():
            if section.kind != 1 or not section.address:
                continue
            self._take(section.size)
            place = whole.find(wanted, section.offset, section.offset + section.size)
            while place >= 0:
                self._count(1)
                yield section.address + place - section.offset
                place = whole.find(wanted, place + 1, section.offset + section.size)

    def _pair(self, address: int) -> Iterator[tuple[int, int]]:
        self._count(MOST_SECTIONS)
        for section in self._sections():
            if section.kind == 1 and section.address <= address and address + 8 <= section.address + section.size:
                first, second = self._unpack("II", self._read(section.offset + address - section.address, 8), 0)
                yield first, second

    # Bytes

    def _check_size(self) -> None:
        """Raise ElfError for a file that is too large. Its header is read before, so that `machine` is known of it: a
        library that is there is not told as missing."""
        if self._size > MOST_BYTES:
            raise ElfError(f"it has {self._size} bytes")

    def _read(self, offset: int, size: int) -> bytes:
        self._take(size)
        data = os.pread(self._fd, size, offset) if offset + size <= self._size else b""
        if len(data) != size:
            raise ElfError("it ends before its tables do")
        return data

    def _take(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ElfError("its tables overlap")

    def _name(self, names: bytes, place: int) -> str:
        """Return the text at the offset `place` of the string table `names`. Raises ElfError if the text has no end
        there."""
        end = names.find(b"\0", place, place + LONGEST_NAME)
        if end < 0:
            raise ElfError("a name is outside its table, or too long")
        self._names_left -= end - place
        if self._names_left < 0:
            raise ElfError(f"its names have more than {MOST_NAME_BYTES} bytes")
        return names[place:end].decode(errors="replace")

    def _count(self, rows: int) -> None:
        self._rows_left -= rows
        if self._rows_left < 0:
            raise ElfError(f"its tables have more than {MOST_ROWS} rows")

    def _unpack(self, form: str, data: bytes, place: int) -> tuple[int, ...]:
        self._count(1)
        try:
            return struct.unpack_from(self.order + form, data, place)
        except struct.error as error:
            raise ElfError("a table ends before its rows do") from error
