"""What a library says of itself is read, and no file makes the reader hang, crash or read beyond its bounds."""

from __future__ import annotations

import os
import random
import time
import tracemalloc
from pathlib import Path

import pytest

from nri_rdma.host.elf import LONGEST_NAME, MOST_NAME_BYTES, MOST_ROWS, Elf, ElfError
from tests.unit.host.made_elf import AARCH64, Library

PROVIDER = Library(
    defines=[("mlx5dv_init", "MLX5_1.0")],
    needs={
        "libibverbs.so.1": [("ibv_open", "IBVERBS_1.1"), ("verbs_init", "IBVERBS_PRIVATE_34")],
        "libc.so.6": [("read", "GLIBC_2.2.5"), ("strtol", "GLIBC_2.38")],
    },
    driver=("mlx5", 1, 3),
)


def read(path: Path, data: bytes) -> Elf:
    path.write_bytes(data)
    return Elf(os.open(path, os.O_RDONLY))  # closed with the process


@pytest.mark.parametrize("bits", [64, 32])
def test_needs_and_definitions_are_read(tmp_path: Path, bits: int) -> None:
    made = Library(defines=PROVIDER.defines, needs=PROVIDER.needs, bits=bits)
    elf = read(tmp_path / "library", made.build())
    assert elf.bits == bits
    assert elf.needed() == ("libibverbs.so.1", "libc.so.6")
    assert elf.versions_needed() == {
        "libibverbs.so.1": {"IBVERBS_1.1", "IBVERBS_PRIVATE_34"},
        "libc.so.6": {"GLIBC_2.2.5", "GLIBC_2.38"},
    }
    assert elf.versions_defined() == {"MLX5_1.0"}
    assert elf.symbols_defined() == {("mlx5dv_init", "MLX5_1.0")}
    assert elf.symbols_needed("libibverbs.so.1") == {("ibv_open", "IBVERBS_1.1"), ("verbs_init", "IBVERBS_PRIVATE_34")}


@pytest.mark.parametrize("packed", [False, True])
def test_the_numbers_behind_a_pointer_to_a_name_are_read(tmp_path: Path, packed: bool) -> None:
    elf = read(tmp_path / "library", Library(texts=["rxe", "mlx55"], driver=("mlx5", 1, 3), packed=packed).build())
    assert set(elf.words_after("mlx5")) == {(1, 3)}
    assert not list(elf.words_after("rxe"))


def test_the_machine_of_a_library_is_read(tmp_path: Path) -> None:
    assert read(tmp_path / "library", Library(machine=AARCH64).build()).machine == AARCH64


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", b"\x7fELF", bytes(64), b"\x7fELF\x03\x01" + bytes(100)])
def test_what_is_no_library_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ElfError):
        read(tmp_path / "file", data).needed()


def test_a_file_that_is_cut_off_anywhere_is_an_error_or_read(tmp_path: Path) -> None:
    whole = PROVIDER.build()
    for size in range(0, len(whole), 7):
        _all_of(tmp_path, whole[:size])


def test_changed_bytes_never_lead_to_another_error_nor_to_much_work(tmp_path: Path) -> None:
    whole, chance = PROVIDER.build(), random.Random(38)
    started = time.process_time()
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        _all_of(tmp_path, bytes(data))
    assert time.process_time() - started < 60


def test_a_library_with_endless_tables_is_refused_soon(tmp_path: Path) -> None:
    """Sections may overlap, so that a small file could hold tables without end."""
    many = Library(defines=[(f"symbol{number}", "V_1") for number in range(MOST_ROWS // 2)])
    elf = read(tmp_path / "library", many.build())
    started = time.process_time()
    with pytest.raises(ElfError, match="rows"):
        for _ in range(10):
            elf.symbols_defined()
    assert time.process_time() - started < 10


def test_symbols_that_share_one_long_name_cost_no_memory(tmp_path: Path) -> None:
    """A library of 1 MB could have 130 MB of names."""
    name = "n" * (LONGEST_NAME - 2)
    elf = read(tmp_path / "library", Library(defines=[(name, "V_1")] * 32000).build())
    tracemalloc.start()
    try:
        with pytest.raises(ElfError, match="names"):
            elf.symbols_defined()
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST_NAME_BYTES
    finally:
        tracemalloc.stop()


def _all_of(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "library"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        elf = Elf(fd)
        elf.needed()
        elf.versions_needed()
        elf.symbols_needed("libibverbs.so.1")
        elf.symbols_defined()
        list(elf.words_after("mlx5"))
    except ElfError:
        pass
    finally:
        os.close(fd)
