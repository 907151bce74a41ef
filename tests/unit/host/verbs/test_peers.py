"""Two sides that measure, over TCP, with a library whose devices are the test's own."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nri_rdma.host.verbs.peers import call, serve
from tests.fakes.pyverbs import Hca, installed

SIDE: dict[str, Any] = {"wait_s": 10, "pair_s": 10}


def devices(*names: str) -> list[dict[str, Any]]:
    return [{"device": name, "port": 1} for name in names]


class Serving:
    """A side that listens, in a thread."""

    def __init__(self, *names: str, **more: Any) -> None:
        task = {"bind": "127.0.0.1", "tcp_port": 0, "devices": devices(*names), **SIDE, **more}
        self._lines = serve(task)
        self.port: int = next(self._lines)["listening"]["port"]
        self._threads = ThreadPoolExecutor(1)
        self._rest = self._threads.submit(list, self._lines)

    def end(self) -> list[dict[str, Any]]:
        self._threads.shutdown()
        return self._rest.result()


def called(port: int, *names: str, **more: Any) -> list[dict[str, Any]]:
    task = {"host": "127.0.0.1", "tcp_port": port, "devices": devices(*names), **SIDE}
    task |= {"pairs": "all", "iterations": 20, "message_bytes": 4096, "seconds": 0.01, **more}
    return list(call(task))


@pytest.fixture
def library() -> Iterator[None]:
    """Both sides spin in threads of this process: they take turns often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with installed(*(Hca(f"mlx5_{number}") for number in range(4)), Hca("bad", loses=True)):
        yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("library")
def test_each_pair_is_measured_and_both_sides_know_it() -> None:
    serving = Serving("mlx5_0", "mlx5_1")
    peer, *pairs = called(serving.port, "mlx5_2", "mlx5_3")
    assert peer == {"peer": devices("mlx5_0", "mlx5_1")}
    assert len(pairs) == 4
    for it in pairs:
        latency = it["latency_us"]
        assert 0 < latency["min"] <= latency["median"] <= latency["p99"]
        assert it["mib_per_s"] > 0
    assert serving.end() == [{"peer": devices("mlx5_2", "mlx5_3")}, *pairs]


@pytest.mark.usefixtures("library")
def test_the_first_can_be_measured_with_the_first_only() -> None:
    serving = Serving("mlx5_0", "mlx5_1")
    _, *pairs = called(serving.port, "mlx5_2", "mlx5_3", pairs="same")
    serving.end()
    assert [(it["client"]["device"], it["server"]["device"]) for it in pairs] == [
        ("mlx5_2", "mlx5_0"),
        ("mlx5_3", "mlx5_1"),
    ]


@pytest.mark.usefixtures("library")
def test_a_pair_that_fails_is_told_with_its_side_and_the_next_is_measured() -> None:
    serving = Serving("gone", "mlx5_0", pair_s=3)
    _, one, two, three, four = called(serving.port, "bad", "mlx5_1", pair_s=3)
    assert (one["side"], one["problem"]["step"]) == ("server", "open")
    assert (two["side"], two["problem"]["step"]) == ("client", "transfer")
    assert (three["side"], "latency_us" in four) == ("server", True)
    assert serving.end()[1:] == [one, two, three, four]


def test_a_problem_with_a_long_gid_table_does_not_end_the_measurement() -> None:
    table = tuple((f"fd00::5054:ff:fe00:{number:x}", 2) for number in range(64))
    with installed(Hca("many", gids=table), Hca("mlx5_0")):
        serving = Serving(devices=[{"device": "many", "port": 1, "gid_index": 200}, *devices("mlx5_0")])
        _, one, two = called(serving.port, "mlx5_0")
        assert (one["side"], one["problem"]["step"], "latency_us" in two) == ("server", "gid", True)
        assert one["problem"]["text"].endswith("...")
        assert serving.end()[1:] == [one, two]


@pytest.mark.usefixtures("library")
def test_a_stranger_is_told_that_he_is_not_understood() -> None:
    serving = Serving("mlx5_0")
    with socket.create_connection(("127.0.0.1", serving.port)) as stranger:
        stranger.sendall(b'{"protocol": "nri-rdma verify", "version": 2}\n')
        assert b'{"error": "the other side speaks version 2, this one 1' in stranger.recv(1000)
    assert "speaks version 2" in serving.end()[-1]["error"]


HELLO = {"protocol": "nri-rdma verify", "version": 1, "devices": devices("x")}
END = {"queue_pair": 1, "gid": "fe80::1", "gid_type": "RoCE v2", "lid": 0, "mtu": 3, "key": 1, "memory": 0}
ASKED = {"end": END, "server": 0, "iterations": 5, "message_bytes": 64}


@pytest.mark.parametrize(
    "change",
    [
        lambda asked: asked | {"server": 1},
        lambda asked: asked | {"message_bytes": 1 << 40},
        lambda asked: asked | {"iterations": True},
        lambda asked: asked | {"end": END | {"gid": "nobody"}},
        lambda asked: asked | {"end": END | {"memory": -1}},
        lambda asked: asked | {"end": 3},
        lambda asked: {"result": {}},
    ],
)
@pytest.mark.usefixtures("library")
def test_numbers_of_a_stranger_are_bounded(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    serving = Serving("mlx5_0")
    with socket.create_connection(("127.0.0.1", serving.port)) as stranger:
        for said in (HELLO, change(ASKED)):
            stranger.sendall(json.dumps(said).encode() + b"\n")
        assert serving.end()[-1]["error"].startswith("the other side sent ")


def test_a_side_that_is_not_there_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (line,) = serve({"bind": "127.0.0.1", "tcp_port": port, "devices": devices("x"), **SIDE})
        assert line["error"].startswith(
            f"127.0.0.1, TCP port {port}, cannot be used for listening: Address already in use"
        )
    (line,) = called(port, "x", wait_s=0.2)
    assert line["error"] == f"127.0.0.1, TCP port {port}, does not answer within 0.2 s: Connection refused"
    *_, line = serve({"bind": "127.0.0.1", "tcp_port": 0, "devices": devices("x"), "wait_s": 0.1, "pair_s": 1})
    assert line["error"] == "nobody has connected within 0.1 s"
