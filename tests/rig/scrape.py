"""A client of the daemon's page of metrics: as Prometheus asks, and with its own reader of the text."""

from __future__ import annotations

import http.client
import random
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Samples: TypeAlias = Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]
_ANY_PORT = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True, kw_only=True)
class Answered:
    """An answer of HTTP."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of metrics, read."""

    samples: Samples

    def value(self, name: str, **labels: str) -> float:
        """The value of a sample; a KeyError where there is none."""
        return self.samples[name][tuple(sorted(labels.items()))]

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric's samples that are not 0, by one label, added up."""
        found: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            key = dict(labels)[label]
            found[key] = found.get(key, 0.0) + value
        return {key: value for key, value in found.items() if value}


def ask(port: int, path: str, *, method: str = "GET", host: str = "127.0.0.1", seconds: float = 5.0) -> Answered:
    """What that path has. Raises OSError, and http.client's errors."""
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request(method, path, headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain"})
        answer = connection.getresponse()
        return Answered(status=answer.status, headers=dict(answer.getheaders()), text=answer.read().decode())
    finally:
        connection.close()


def scrape(port: int, *, host: str = "127.0.0.1", seconds: float = 5.0) -> Page:
    """The metrics of that port."""
    answered = ask(port, "/metrics", host=host, seconds=seconds)
    assert (answered.status, answered.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return read_page(answered.text)


def read_page(text: str) -> Page:
    """A page, read by Prometheus' own reader of the format."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            rows = samples.setdefault(sample.name, {})
            assert labels not in rows, f"{sample.name} has {labels} twice"
            rows[labels] = sample.value
    return Page(samples=samples)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has now, below those that the kernel gives to who asks for any: the runtime does so."""
    first = int(_ANY_PORT.read_text().split()[0])
    while True:
        port = random.randrange(first // 2, first)
        with suppress(OSError), socket.create_server((host, port)):
            return port
