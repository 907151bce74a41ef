"""What a page of metrics costs: events and memory of a daemon that serves one beside the same daemon that does not."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from bench.driver import asking_pod
from bench.figures import Row, paired_row
from bench.messages import create_container, pod, run_pod
from bench.pods import refuse_error
from bench.processes import Place, await_rest, on_one_cpu, resident_kib
from bench.rounds import alternating, synchronized

WITH, WITHOUT = "with-metrics", "without-metrics"
ADDRESS = "127.0.0.1:9178"
MOST = 1.03
SCRAPES, REST_S = 30, 0.3
US_PER_NS, MS_PER_S = 1e-3, 1e3


def rows(folder: Path, rounds: int, events: int) -> list[Row]:
    """Two daemons, with a shared device in a pod each; the page of one is read once before. The network namespace is
    the bench's own."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    place = Place(folder)
    found: list[Row] = []
    with ExitStack() as stack:
        stack.enter_context(on_one_cpu())
        without = synchronized(stack, place, WITHOUT, place.daemon_command(WITHOUT))
        flag = f"--metrics-address={ADDRESS}"
        with_metrics = synchronized(stack, place, WITH, place.daemon_command(WITH, flag))
        scraped_s()
        for peer in (without, with_metrics):
            refuse_error(peer.call(run_pod(asking_pod())))
            await_rest(peer.pid)
        calls = {
            "sandbox event": run_pod(pod(1)),
            "create, nothing asked": create_container(pod(1)),
            "create": create_container(asking_pod(), traced=True),
        }
        for name, call in calls.items():
            floor, ours = alternating(without, with_metrics, call, rounds, events)
            found.append(paired_row(f"{name}, with metrics", floor, ours, unit="us", scale=US_PER_NS, target=MOST))
        mine, bare = (resident_kib(peer.pid) / 1024 for peer in (with_metrics, without))
        found.append(Row(figure="memory with metrics", value=mine, unit="MiB", floor=bare, ratio=mine / bare))
        scrape_ms = sorted(_scraped_after_a_rest_s() * MS_PER_S for _ in range(SCRAPES))[SCRAPES // 2]
        found.append(Row(figure="scrape", value=scrape_ms, unit="ms", floor=0, ratio=0))
    return found


def _scraped_after_a_rest_s() -> float:
    """The same, when the thread that serves the page does not rest from the one before."""
    time.sleep(REST_S)
    return scraped_s()


def scraped_s() -> float:
    """Read the page, and return how long that took, in seconds."""
    begin = time.perf_counter()
    with urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=10) as page:
        page.read()
    return time.perf_counter() - begin
