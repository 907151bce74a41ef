"""The floor of an attach does what an attach has to do, no less; and no pod waits for a collector."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any  # Any: the JSON of `ip`

import pytest

from bench.collector import GROWN_MIB, STATES, TAKES, beside
from bench.hosts import Host
from bench.moves import Moves, compile_moves
from tests.rig.deadline import wait_until
from tests.rig.node import load

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("gcc") is None and shutil.which("cc") is None, reason="needs a C compiler"),
]

MTU = 4200


def links(namespace: Path) -> dict[str, dict[str, Any]]:
    """As `ip` shows them, without what counts."""
    shown = subprocess.run(
        ["nsenter", f"--net={namespace}", "ip", "-j", "address", "show"], capture_output=True, text=True, check=True
    )
    return {it["ifname"]: it for it in json.loads(shown.stdout)}


def without_lifetimes(shown: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Addresses of links that come up are made anew, after a moment."""
    return {name: {key: value for key, value in it.items() if key != "addr_info"} for name, it in shown.items()}


def have_carrier(shown: dict[str, dict[str, Any]]) -> bool:
    """Tell whether every link is as it stays: the kernel tells of a carrier up to a second after it came."""
    return all(
        link["operstate"] == "UP" and "NO-CARRIER" not in link["flags"]
        for link in shown.values()
        if link["ifname"] != "lo"
    )


def test_the_floor_moves_names_numbers_addresses_and_raises_its_links_and_brings_them_home(tmp_path: Path) -> None:
    program = compile_moves(tmp_path)
    with Host(tmp_path / "bare", load("sixteen")) as host:
        wait_until(lambda: have_carrier(links(host.path)), "the links to have their carrier")
        before = links(host.path)
        pod = host.make_pod("pod")
        names = list(host.ifindexes.items())[:3]
        words = [f"{ifindex},{name},rdma{at},10.9.{at}.1/24" for at, (name, ifindex) in enumerate(names)]
        run = [str(program), "in", str(pod), str(MTU), *words]
        took = subprocess.run(host.inside(run), capture_output=True, text=True, check=True).stdout.split()
        assert all(int(nanoseconds) > 0 for nanoseconds in took)
        assert len(took) == 2
        there, left = links(pod), links(host.path)
        for at, (name, ifindex) in enumerate(names):
            link = there[f"rdma{at}"]
            assert (link["ifindex"], link["mtu"], link["address"]) == (ifindex, MTU, before[name]["address"])
            assert "UP" in link["flags"]
            assert [it["local"] for it in link["addr_info"] if it["family"] == "inet"] == [f"10.9.{at}.1"]
            assert name not in left
        subprocess.run(
            host.inside([str(program), "home", str(pod), str(before[names[0][0]]["mtu"]), *words]),
            capture_output=True,
            check=True,
        )
        wait_until(lambda: have_carrier(links(host.path)), "the links to have their carrier again")
        assert without_lifetimes(links(host.path)) == without_lifetimes(before)
        assert set(links(pod)) == {"lo"}


def test_a_floor_that_fails_says_what_and_measures_nothing(tmp_path: Path) -> None:
    program = compile_moves(tmp_path)
    with Host(tmp_path / "bare", load("sixteen")) as host:
        host.ip("link set hca0 name other")
        host.ifindexes["hca0"] = 9999
        with pytest.raises(RuntimeError, match="move: No such device"):
            Moves(program, host, MTU).attach_and_return(1, 1500)


def test_without_a_compiler_the_bench_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="Next: apt-get install gcc"):
        compile_moves(tmp_path)


def test_no_pod_waits_for_a_collector_and_what_it_does_not_take_is_counted(tmp_path: Path) -> None:
    """The bench asks for 1.05 in more rounds; a test's machine has others on it."""
    found = beside(tmp_path, rounds=15, events=50)
    for state in STATES:
        it = found[state]
        assert it.row.ratio < 1.3, state
        assert it.grown_kib < GROWN_MIB * 1024, state
        log = (tmp_path / f"default-{STATES.index(state) + 1}.log").read_text()
        if state == TAKES:
            assert it.traces["exported"] > 0, it.traces
        else:
            assert it.traces["dropped"] > 0, it.traces
            assert it.traces["waiting"] <= 4096, it.traces
            assert "a batch of spans was not exported" in log or "spans were dropped" in log, state
        assert log.count("a batch of spans was not exported") <= 2, state  # one in a minute
