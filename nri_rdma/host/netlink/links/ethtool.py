"""Reads and sets what ethtool shows of a link: features, private flags, and the sizes of rings, channels and
coalescing.

Uses the generic netlink family `ethtool` (Documentation/networking/ethtool-netlink.rst), which identifies a link by its
ifindex. The older ioctl needs the link's name, which a pod may change meanwhile. pyroute2 supports features only by
that ioctl.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import TracebackType
from typing import Final, Self, TypeAlias

from nri_rdma.attach.ops import SetFeatures, SetPrivateFlags, SetTuning
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.sockets.patience import PATIENCE_S
from nri_rdma.host.netlink.sockets.spare_sockets import give_back, take_socket
from nri_rdma.model.link import features_text
from nri_rdma.wire import WireError
from nri_rdma.wire.netlink import (
    ACK,
    ERROR,
    HEADER,
    NESTED,
    encode_attribute,
    encode_request,
    encode_u32,
    read_answer,
    read_attributes,
    read_messages,
)

_NETLINK_GENERIC = 16  # include/uapi/linux/netlink.h
_GENL = struct.Struct("=BBxx")  # struct genlmsghdr: command, version
_CONTROL, _GETFAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2  # include/uapi/linux/genetlink.h
# include/uapi/linux/ethtool_netlink.h
_STRSET_GET, _FEATURES_GET, _FEATURES_SET, _PRIVFLAGS_GET, _PRIVFLAGS_SET = 1, 11, 12, 13, 14
_RINGS_GET, _CHANNELS_GET, _COALESCE_GET = 15, 17, 19
_SET_AFTER_GET = 1  # a SET command has the number of its GET command plus one
_HEADER, _DEV_INDEX, _FLAGS, _COMPACT_BITSETS = 1, 1, 3, 1
_HW, _WANTED, _ACTIVE, _BITS, _VALUE = 2, 3, 4, 3, 4
_BIT, _BIT_NAME, _BIT_IS_SET = 1, 2, 3
_PRIVATE_FLAGS = 2
_STRINGSETS, _STRINGSET, _SET_ID, _SET_STRINGS, _STRING_INDEX, _STRING_VALUE = 2, 1, 1, 3, 1, 2
_ETH_SS_FEATURES = 4  # include/uapi/linux/ethtool.h

_TUNING: Final[Mapping[int, tuple[str, Mapping[int, str]]]] = {
    _RINGS_GET: (
        "ring",
        {6: "rx", 7: "rx-mini", 8: "rx-jumbo", 9: "tx", 10: "rx-buf-len", 12: "cqe-size", 13: "tx-push"},
    ),
    _CHANNELS_GET: ("channels", {6: "rx", 7: "tx", 8: "other", 9: "combined"}),
    _COALESCE_GET: (
        "coalesce",
        {
            2: "rx-usecs",
            3: "rx-frames",
            4: "rx-usecs-irq",
            5: "rx-frames-irq",
            6: "tx-usecs",
            7: "tx-frames",
            8: "tx-usecs-irq",
            9: "tx-frames-irq",
            10: "stats-block-usecs",
            11: "adaptive-rx",
            12: "adaptive-tx",
            24: "cqe-mode-tx",
            25: "cqe-mode-rx",
        },
    ),
}
_ONE_BYTE: Final = frozenset(
    {"ring tx-push", *(f"coalesce {it}-{way}" for it in ("adaptive", "cqe-mode") for way in ("rx", "tx"))}
)
_U16, _U32 = struct.Struct("=H"), struct.Struct("=I")
_NUMBERS: Final = {1: struct.Struct("=B"), 2: _U16, 4: _U32}
_DATAGRAM_MAX = 1 << 16
_KEPT = 64
"""The number of feature texts to remember. A link's features are usually unchanged from pod to pod."""

_Attributes: TypeAlias = Mapping[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The settings that ethtool shows of a link, as the texts of the fields of LinkState with these names."""

    features: str = ""
    fixed_features: str = ""
    tuning: str = ""
    private_flags: str = ""


class EthtoolSocket:
    """A socket for ethtool requests about links of the calling thread's namespace. Every method raises KernelError if
    the kernel refuses or does not answer.

    If the kernel lacks the netlink family `ethtool` (CONFIG_ETHTOOL_NETLINK), all settings of a link are shown as "".
    """

    def __init__(self) -> None:
        self._socket = take_socket(_NETLINK_GENERIC)
        self._is_in_doubt = self._is_closed = False
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Return the socket for reuse. After an error it is closed instead, because late answers may still arrive.
        Closing twice does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_in_doubt:
            self._socket.close()
        else:
            give_back(_NETLINK_GENERIC, self._socket)

    def show(self, ifindex: int) -> Shown:
        """Return the settings that ethtool shows of a link. Raises KernelError: ENODEV if the namespace has no such
        link."""
        family = _family()
        if family is None:
            return Shown()
        kinds = (_FEATURES_GET, _PRIVFLAGS_GET, *_TUNING)
        with_names, compact = _header(ifindex, 0), _header(ifindex, _COMPACT_BITSETS)
        requests = [(kind, with_names if kind == _PRIVFLAGS_GET else compact) for kind in kinds]
        answers = self._ask(f"ask ethtool for link {ifindex}", family, requests)
        shown = dict(zip(kinds, map(_or_nothing, answers), strict=True))
        features = shown[_FEATURES_GET]
        return Shown(
            features=_features_text(family, features[_HW], features[_WANTED], fixed=False) if features else "",
            fixed_features=_features_text(family, features[_HW], features[_ACTIVE], fixed=True) if features else "",
            tuning="\n".join(line for kind in _TUNING for line in _sizes(kind, shown[kind])),
            private_flags=features_text(_named_bits(shown[_PRIVFLAGS_GET].get(_PRIVATE_FLAGS, b""))),
        )

    def set_features(self, ifindex: int, change: SetFeatures) -> None:
        """Set features of a link. Raises KernelError: ENODEV if the namespace has no such link, EOPNOTSUPP if the
        kernel or driver does not have a feature or does not let it be set."""
        wanted = _nested(_WANTED, _nested(_BITS, b"".join(_bit(name, on) for name, on in change.features)))
        self._set(f"{change.describe()} of link {ifindex}", ifindex, {_FEATURES_SET: wanted})

    def set_private_flags(self, ifindex: int, change: SetPrivateFlags) -> None:
        """Set private flags (settings of one driver) of a link. Raises KernelError: ENODEV if the namespace has no such
        link, EOPNOTSUPP or EINVAL if the driver does not have a flag."""
        wanted = _nested(_PRIVATE_FLAGS, _nested(_BITS, b"".join(_bit(name, on) for name, on in change.flags)))
        self._set(f"{change.describe()} of link {ifindex}", ifindex, {_PRIVFLAGS_SET: wanted})

    def set_tuning(self, ifindex: int, change: SetTuning) -> None:
        """Set sizes of rings, channels and coalescing of a link. All sizes are tried, even after a refusal. Raises
        KernelError: ENODEV if the namespace has no such link, EOPNOTSUPP or EINVAL if the driver does not accept a
        size."""
        wanted = dict(change.sizes)
        requests = {}
        for kind, (word, names) in _TUNING.items():
            sizes = ((number, f"{word} {name}") for number, name in names.items())
            body = b"".join(_size(number, name, wanted[name]) for number, name in sizes if name in wanted)
            if body:
                requests[kind + _SET_AFTER_GET] = body
        self._set(f"{change.describe()} of link {ifindex}", ifindex, requests)

    def _set(self, operation: str, ifindex: int, requests: Mapping[int, bytes]) -> None:
        """Send requests about a link; `requests` has the attributes of each request by its command number. Raises
        KernelError for the first refused request."""
        family = _family()
        if family is None:
            raise KernelError(operation, errno.EOPNOTSUPP, "this kernel has no ethtool over netlink")
        header = _header(ifindex, 0)
        commands = [(command, header + body) for command, body in requests.items()]
        for answer in self._ask(operation, family, commands, flags=ACK):
            if isinstance(answer, KernelError):
                raise answer

    def family(self) -> int | None:
        """Return the kernel's number of the netlink family `ethtool`; None if the kernel does not have this family."""
        body = encode_attribute(_FAMILY_NAME, b"ethtool\0")
        (answer,) = self._ask("find ethtool", _CONTROL, [(_GETFAMILY, body)])
        if isinstance(answer, KernelError):
            if answer.errno == errno.ENOENT:
                return None
            raise answer
        return _number(answer[_FAMILY_ID])

    def feature_names(self, family: int) -> tuple[str, ...]:
        """Return the names of the kernel's link features, in the order of their bits; "" for a bit without a name.
        `family` is the number of the netlink family `ethtool`."""
        wanted = _nested(_STRINGSETS, _nested(_STRINGSET, encode_u32(_SET_ID, _ETH_SS_FEATURES)))
        (answer,) = self._ask("read the names of features", family, [(_STRSET_GET, _nested(_HEADER, b"") + wanted)])
        if isinstance(answer, KernelError):
            raise answer
        sets = [dict(read_attributes(one)) for _, one in read_attributes(answer[_STRINGSETS])]
        texts = (dict(read_attributes(text)) for it in sets for _, text in read_attributes(it[_SET_STRINGS]))
        names = {_number(text[_STRING_INDEX]): text[_STRING_VALUE].rstrip(b"\0").decode() for text in texts}
        return tuple(names.get(bit, "") for bit in range(max(names, default=-1) + 1))

    def _ask(
        self, operation: str, family: int, requests: Sequence[tuple[int, bytes]], flags: int = 0
    ) -> list[_Attributes | KernelError]:
        """Send requests, each a command number and attributes, in one datagram. Return the answer or the error of each
        request.

        With the flag ACK, the kernel also confirms each request, possibly after an answer.
        """
        first = self._sequence + 1
        self._sequence += len(requests)
        datagram = b"".join(
            encode_request(family, flags, first + position, _GENL.pack(command, 1) + body)
            for position, (command, body) in enumerate(requests)
        )
        answers: list[_Attributes | KernelError] = [{} for _ in requests]
        pending = len(requests)
        was_in_doubt, self._is_in_doubt = self._is_in_doubt, True
        try:
            self._socket.send(datagram)
            while pending:
                for message in read_messages(self._socket.recv(_DATAGRAM_MAX)):
                    position = message.sequence - first
                    if not 0 <= position < len(requests):
                        continue
                    if message.kind != ERROR:
                        answers[position] = dict(read_attributes(message.whole[HEADER.size + _GENL.size :]))
                        pending -= not flags & ACK
                        continue
                    pending -= 1
                    answer = read_answer(message)
                    if answer.errno:
                        answers[position] = KernelError(operation, answer.errno, answer.reason)
        except BlockingIOError as error:
            raise KernelError(operation, errno.ETIMEDOUT, f"no answer in {PATIENCE_S} s") from error
        except OSError as error:
            raise KernelError(operation, error.errno or 0, error.strerror or "") from error
        except WireError as error:
            raise KernelError(operation, errno.EPROTO, str(error)) from error
        self._is_in_doubt = was_in_doubt
        return answers


@cache
def _family() -> int | None:
    """Return the kernel's number of the netlink family `ethtool`; None if the kernel does not have this family. All
    namespaces share the number until the next boot."""
    with EthtoolSocket() as ethtool:
        return ethtool.family()


@cache
def _names(family: int) -> tuple[str, ...]:
    with EthtoolSocket() as ethtool:
        return ethtool.feature_names(family)


def _header(ifindex: int, flags: int) -> bytes:
    return _nested(_HEADER, encode_u32(_DEV_INDEX, ifindex) + encode_u32(_FLAGS, flags))


def _nested(kind: int, value: bytes) -> bytes:
    return encode_attribute(kind | NESTED, value)


def _bit(name: str, on: bool) -> bytes:
    value = encode_attribute(_BIT_IS_SET, b"") if on else b""
    return _nested(_BIT, encode_attribute(_BIT_NAME, name.encode() + b"\0") + value)


def _named_bits(bitset: bytes) -> Iterator[tuple[str, bool]]:
    """Yield the name and the value of each bit in a netlink bitset. The bitset must be one that lists its bits by
    name."""
    for _, bit in read_attributes(dict(read_attributes(bitset)).get(_BITS, b"")):
        told = dict(read_attributes(bit))
        yield told.get(_BIT_NAME, b"").rstrip(b"\0").decode(errors="surrogateescape"), _BIT_IS_SET in told


def _size(number: int, name: str, value: int) -> bytes:
    return encode_attribute(number, bytes([value])) if name in _ONE_BYTE else encode_u32(number, value)


def _or_nothing(answer: _Attributes | KernelError) -> _Attributes:
    """Return an answer, or an empty one if the driver does not support the request (EOPNOTSUPP). Raises any other
    error."""
    if not isinstance(answer, KernelError):
        return answer
    if answer.errno == errno.EOPNOTSUPP:
        return {}
    raise answer


@lru_cache(_KEPT)
def _features_text(family: int, changeable: bytes, told: bytes, *, fixed: bool) -> str:
    """Return the text of LinkState.features or, with `fixed`, of LinkState.fixed_features. The bitset `changeable` says
    which features can be changed; the bitset `told` has the value to show of each feature.

    For changeable features, `told` are the wanted values: the actual ones also depend on other features, for example
    segmentation on checksums.
    """
    can_change, bits = _mask(changeable), _mask(told)
    named = ((bit, name) for bit, name in enumerate(_names(family)) if name)  # some bits have no name
    return features_text((name, bool(bits >> bit & 1)) for bit, name in named if (can_change >> bit & 1) != fixed)


def _mask(bitset: bytes) -> int:
    """Return a compact bitset of netlink as a number. Its 32-bit words start with the lowest."""
    words = _U32.iter_unpack(dict(read_attributes(bitset))[_VALUE])
    return sum(word << 32 * position for position, (word,) in enumerate(words))


def _sizes(kind: int, shown: _Attributes) -> Iterator[str]:
    """Yield lines such as ``ring rx 1024``. If adaptive coalescing is on, other coalescing values are left out, because
    the driver then changes them itself."""
    word, names = _TUNING[kind]
    values = {name: _number(shown[number]) for number, name in names.items() if number in shown}
    for name, value in values.items():
        way = name.partition("-")[0]
        if name.startswith("adaptive") or not values.get(f"adaptive-{way}"):
            yield f"{word} {name} {value}"


def _number(value: bytes) -> int:
    return int(_NUMBERS[len(value)].unpack(value)[0])
