"""A look at a namespace that plays the host: all that must be as before when its devices are home.

In code that is not under test: `ip`, and the files of /proc/sys.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.rig import hoststate, sysctls
from tests.rig.deadline import wait_until

SETTLED_S = 30
_MORE = {
    "links": "ip -j -d link show",
    "proxies": "ip neighbour show proxy",
    "tokens": "ip token show",
    "sysctls": hoststate.READ_SYSCTLS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """`more` is what hoststate leaves out: how addresses are generated, link modes, and whom the host answers for."""

    state: hoststate.HostState
    more: Mapping[str, object]
    sysctls: Mapping[str, str]


def take(netns: Path) -> Look:
    """The host now."""
    texts = hoststate.shown(netns, _MORE)
    return Look(
        state=hoststate.take(netns),
        more={
            link["ifname"]: (link.get("inet6_addr_gen_mode"), link["linkmode"]) for link in json.loads(texts["links"])
        }
        | {name: texts[name] for name in ("proxies", "tokens")},
        sysctls=sysctls.read(texts["sysctls"]),
    )


def take_settled(netns: Path) -> Look:
    """The host once all that happens by itself is done: carrier there, no address tentative, and two looks agree."""

    def settled() -> Look | None:
        look, addresses = take(netns), hoststate.shown(netns, {"addresses": "ip -j address show"})["addresses"]
        under_way = "NO-CARRIER" in addresses or '"tentative":true' in addresses
        return look if not under_way and not difference(look, take(netns)) else None

    return wait_until(settled, "the host to settle", SETTLED_S)


def difference(before: Look, after: Look) -> list[str]:
    """What is not as it was, one sentence each; empty when the host is equal."""
    found = hoststate.difference(before.state, after.state) + sysctls.difference(before.sysctls, after.sysctls)
    return found if before.more == after.more else [*found, f"{before.more} became {after.more}"]
