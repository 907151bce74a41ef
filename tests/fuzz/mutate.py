"""Valid input, damaged: the same random numbers give the same damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

_EDGES = (0, 1, 2, 3, 5, 7, 9, 10, 127, 128, 255, 4095, 4096, 4 << 20, (4 << 20) + 1, 16 << 20, 0x7FFFFFFF, 0xFFFFFFFF)
_LONGEST = 8192
"""Input grows no further than this, so that many fit a second."""


def damaged(corpus: Sequence[bytes], random: Random) -> bytes:
    """Pieces of the corpus, one after the other, then hurt in up to eight places; now and then left whole."""
    data = bytearray(b"".join(random.choice(corpus) for _ in range(random.randint(1, 4))))
    for _ in range(random.choice((0, 1, 1, 2, 3, 8))):
        random.choice(_DAMAGES)(data, random)
        del data[_LONGEST:]
    return bytes(data)


def cut(data: bytes, random: Random) -> list[bytes]:
    """The data in pieces: whole, byte by byte, or at random places, empty pieces included."""
    kind = random.randrange(3)
    if kind == 0 or len(data) > 1000:
        return [data]
    if kind == 1:
        return [data[i : i + 1] for i in range(len(data))]
    places = sorted(random.randint(0, len(data)) for _ in range(random.randint(1, 8)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def _flip_bit(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_byte(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 2, 3, 4, 5, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _set_number(data: bytearray, random: Random) -> None:
    """A 16 or 32 bit number of either byte order: lengths and ids are such."""
    form = random.choice((">I", "<I", ">H", "<H"))
    size = struct.calcsize(form)
    if len(data) >= size:
        value = random.choice(_EDGES) & ((1 << 8 * size) - 1)
        struct.pack_into(form, data, random.randrange(len(data) - size + 1), value)


def _delete(data: bytearray, random: Random) -> None:
    start = random.randint(0, len(data))
    del data[start : start + random.randint(1, 12)]


def _insert(data: bytearray, random: Random) -> None:
    place = random.randint(0, len(data))
    data[place:place] = random.randbytes(random.randint(1, 12))


def _insert_token(data: bytearray, random: Random) -> None:
    """What random bytes seldom are: a digit that is none of ASCII's, halves of characters, varints, nested groups."""
    place = random.randint(0, len(data))
    data[place : place + random.randint(0, 2)] = random.choice(_TOKENS)


def _repeat(data: bytearray, random: Random) -> None:
    start = random.randint(0, len(data))
    piece = data[start : start + random.randint(1, 64)]
    data[start:start] = piece * random.choice((1, 1, 2, 20))


def _truncate(data: bytearray, random: Random) -> None:
    del data[random.randint(0, len(data)) :]


_TOKENS = ("²".encode(), "٣".encode(), b"\xed\xa0\x80", b"\xff" * 9 + b"\x01", b"\x0b" * 120, b"=", b"\0")
_DAMAGES = (_flip_bit, _set_byte, _set_number, _set_number, _delete, _insert, _insert_token, _repeat, _truncate)
