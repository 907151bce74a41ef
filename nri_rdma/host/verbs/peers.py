"""Measures latency and bandwidth between the RDMA devices of two containers: one container listens, the other connects.

A task is a dict for JSON. Both sides have `devices` (each a task of the self-check), `tcp_port`, `wait_s` (how long to
wait for the peer) and `pair_s` (the time limit of a step of one pair). The listening side also has `bind`, its address.
The connecting side has `host`, `pairs` ("all": each device with each, or "same": the first with the first, the second
with the second and so on), `iterations`, `message_bytes` and `seconds` (the length of the bandwidth measurement).

Each result line is a dict, too: first `listening` (address and port), then `peer` (the peer's devices), then for each
pair `client` and `server` (device and port) with `latency_us` (`min`, `median`, `p99`, one way) and `mib_per_s`. If a
pair does not work, it has `problem` and `side` ("client", "server") instead. A line with `error` is about the
connection, and is the last line.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from ipaddress import IPv6Address
from statistics import median, quantiles
from typing import Any, TypeAlias  # Any: JSON

from nri_rdma.host.verbs.conversation import (
    Conversation,
    ConversationError,
    check_hello,
    connected,
    hello,
    number,
    part,
    real,
    text,
)
from nri_rdma.host.verbs.pingpong import End, PeerAddress
from nri_rdma.host.verbs.steps import MOST_CHARACTERS, STEPS, StepError

MOST_DEVICES = 16
MOST_PAIRS = MOST_DEVICES**2
MOST_ITERATIONS = 100_000
MOST_MESSAGE_BYTES = 8 << 20
MOST_SECONDS = 60
"""The longest time in seconds for which the bandwidth of a pair may be measured."""
_WARM_UP = 16
_MIB = 1 << 20
Line: TypeAlias = dict[str, Any]


def serve(task: Mapping[str, Any]) -> Iterator[Line]:
    """Listen for one peer that measures, and yield the result lines (see the module). An error becomes a line."""
    try:
        family = socket.AF_INET6 if ":" in task["bind"] else socket.AF_INET
        with socket.create_server((task["bind"], task["tcp_port"]), family=family) as listening:
            address, tcp_port, *_ = listening.getsockname()
            yield {"listening": {"address": address, "port": tcp_port}}
            listening.settimeout(task["wait_s"])
            connection, _ = listening.accept()
        with closing(connection):
            yield from _serve(task, Conversation(connection, 2 * task["pair_s"] + MOST_SECONDS))
    except (ConversationError, StepError) as error:
        yield {"error": str(error)}
    except TimeoutError:
        yield {"error": f"nobody has connected within {task['wait_s']:g} s"}
    except OSError as error:
        yield {"error": f"{task['bind']}, TCP port {task['tcp_port']}, cannot be used for listening: {error.strerror}"}


def call(task: Mapping[str, Any]) -> Iterator[Line]:
    """Connect to the listening peer, measure all pairs of devices, and yield the result lines (see the module). An
    error becomes a line."""
    try:
        with closing(connected(task["host"], task["tcp_port"], task["wait_s"])) as connection:
            yield from _call(task, Conversation(connection, 2 * task["pair_s"] + task["seconds"]))
    except (ConversationError, StepError) as error:
        yield {"error": str(error)}


def _serve(task: Mapping[str, Any], peer: Conversation) -> Iterator[Line]:
    told = peer.hear()
    try:
        check_hello(told)
    except ConversationError as error:
        peer.tell(error=str(error))
        raise
    peer.tell(**hello(_names(task)))
    yield {"peer": _devices(told)}
    for _ in range(MOST_PAIRS):
        asked = peer.hear()
        if "bye" in asked:
            return
        if "end" in asked:
            _answer(task, asked, peer)
            asked = peer.hear()
        yield _result(asked)


def _answer(task: Mapping[str, Any], asked: Line, peer: Conversation) -> None:
    """Let the device that `asked` names be the passive end of a pair while the peer measures. The peer sends the result
    afterwards."""
    device = task["devices"][number(asked, "server", 0, len(task["devices"]) - 1)]
    count = number(asked, "iterations", 1, MOST_ITERATIONS + _WARM_UP)
    size = number(asked, "message_bytes", 1, MOST_MESSAGE_BYTES)
    try:
        end = End(device, size)
    except StepError as error:
        peer.tell(problem=error.problem)
        return
    with closing(end):
        try:
            end.connect(_address(part(asked, "end")))
        except StepError as error:
            peer.tell(problem=error.problem)
            return
        peer.tell(end=_told(end.address))
        if number(peer.hear(), "go", 0, 1):
            with suppress(StepError):  # the peer misses the answers, and reports that
                end.pong(count, task["pair_s"])
            peer.hear()  # keeps the memory until the peer has finished


def _call(task: Mapping[str, Any], peer: Conversation) -> Iterator[Line]:
    names = _names(task)
    peer.tell(**hello(names))
    told = peer.hear()
    check_hello(told)
    others = _devices(told)
    yield {"peer": others}
    for here, there in _pairs(len(names), len(others), task["pairs"]):
        measured = _measured(task, task["devices"][here], there, peer)
        result = {"client": names[here], "server": others[there], **measured}
        peer.tell(result=result)
        yield result
    peer.tell(bye=True)


def _measured(task: Mapping[str, Any], device: Mapping[str, Any], there: int, peer: Conversation) -> Line:
    """Measure latency and bandwidth between our `device` and the peer's device number `there`, and return them. If a
    step fails, return the problem, and which side failed ("client" or "server")."""
    size, count = task["message_bytes"], task["iterations"] + _WARM_UP
    try:
        end = End(device, size)
    except StepError as error:
        return {"problem": error.problem, "side": "client"}
    with closing(end):
        peer.tell(end=_told(end.address), server=there, iterations=count, message_bytes=size)
        told = peer.hear()
        if "problem" in told:
            return {"problem": _problem(told), "side": "server"}
        try:
            end.connect(_address(part(told, "end")))
        except StepError as error:
            peer.tell(go=0)
            return {"problem": error.problem, "side": "client"}
        peer.tell(go=1)
        try:
            times = end.ping(count, task["pair_s"])[_WARM_UP:]
            moved, seconds = end.flood(task["seconds"], task["pair_s"])
        except StepError as error:
            return {"problem": error.problem, "side": "client"}
        finally:
            peer.tell(measured=True)
    return {"latency_us": _latency(times), "mib_per_s": round(moved / _MIB / seconds, 1)}


def _latency(times: Sequence[int]) -> dict[str, float]:
    """Return the minimum, median and 99th percentile of the one-way latency in microseconds. `times` are round-trip
    times in nanoseconds."""
    ways = [it / 2000 for it in times]
    p99 = quantiles(ways, n=100)[98] if len(ways) > 1 else ways[0]
    return {"min": round(min(ways), 2), "median": round(median(ways), 2), "p99": round(p99, 2)}


def _pairs(own: int, others: int, which: str) -> list[tuple[int, int]]:
    if which == "same":
        return [(it, it) for it in range(min(own, others))]
    return [(here, there) for here in range(own) for there in range(others)]


def _names(task: Mapping[str, Any]) -> list[Line]:
    return [{"device": it["device"], "port": it["port"]} for it in task["devices"][:MOST_DEVICES]]


def _told(address: PeerAddress) -> Line:
    return {**asdict(address), "gid": str(address.gid)}


# Checks of what the peer sends


def _devices(told: Line) -> list[Line]:
    found = told.get("devices")
    if not isinstance(found, list) or not 0 < len(found) <= MOST_DEVICES:
        raise ConversationError(f"the other side sent no list of 1 to {MOST_DEVICES} devices")
    return [_device(it) for it in found]


def _device(told: object) -> Line:
    if not isinstance(told, dict):
        raise ConversationError("the other side sent a device that is no object")
    return {"device": text(told, "device"), "port": number(told, "port", 1, 255)}


def _address(told: Line) -> PeerAddress:
    try:
        gid = IPv6Address(text(told, "gid"))
    except ValueError as error:
        raise ConversationError(f"the other side sent no GID: {error}") from error
    return PeerAddress(
        queue_pair=number(told, "queue_pair", 0, (1 << 24) - 1),
        gid=gid,
        gid_type=text(told, "gid_type"),
        lid=number(told, "lid", 0, (1 << 16) - 1),
        mtu=number(told, "mtu", 1, 5),
        key=number(told, "key", 0, (1 << 32) - 1),
        memory=number(told, "memory", 0, (1 << 64) - 1),
    )


def _problem(told: Line) -> Line:
    problem = part(told, "problem")
    number_of = None if problem.get("errno") is None else number(problem, "errno", 0, 4095)
    step = text(problem, "step")
    if step not in STEPS:
        raise ConversationError("the other side sent the name of a step that does not exist")
    return {"step": step, "errno": number_of, "text": text(problem, "text", MOST_CHARACTERS)}


def _result(told: Line) -> Line:
    result = part(told, "result")
    pair = {side: _device(result.get(side)) for side in ("client", "server")}
    if "problem" in result:
        side = text(result, "side")
        if side not in pair:
            raise ConversationError("the other side sent a side that is neither client nor server")
        return {**pair, "problem": _problem(result), "side": side}
    latency = part(result, "latency_us")
    return {
        **pair,
        "latency_us": {key: real(latency, key) for key in ("min", "median", "p99")},
        "mib_per_s": real(result, "mib_per_s"),
    }
