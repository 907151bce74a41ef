"""What links have for themselves under /proc/sys/net, as its files show it, in code that is not under test."""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.rig.hoststate import READ_SYSCTLS, shown


def take(netns: Path) -> Mapping[str, str]:
    """Every value of a namespace by ``ipv4/conf/eth0/rp_filter``; what nobody can read (a secret that is not set) is
    left out."""
    return read(shown(netns, {"sysctls": READ_SYSCTLS})["sysctls"])


def read(text: str) -> Mapping[str, str]:
    """The same out of what READ_SYSCTLS printed."""
    lines = (line.removeprefix("/proc/sys/net/").partition(":") for line in text.splitlines())
    return {name: value for name, _, value in lines}


def put(netns: Path, values: Mapping[str, str]) -> set[str]:
    """Write values; returns the names of those that cannot be written."""
    script = 'while read -r name value; do (echo "$value" > "/proc/sys/net/$name") 2>/dev/null || echo "$name"; done'
    done = subprocess.run(
        ["nsenter", f"--net={netns}", "sh", "-c", script],
        input="".join(f"{name} {value}\n" for name, value in values.items()),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What is not as it was, one sentence each."""
    return [
        f"sysctl {name} was {before.get(name, 'absent')}, is {after.get(name, 'absent')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def of_link(values: Mapping[str, str], link: str) -> Iterable[tuple[str, str]]:
    """Those of one link, by ``ipv4/conf/rp_filter``."""
    for name, value in values.items():
        family, table, of, key = name.split("/")
        if of == link:
            yield f"{family}/{table}/{key}", value
