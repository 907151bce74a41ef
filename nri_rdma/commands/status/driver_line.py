"""The lines about our DRA driver in `status` and `explain`: whether the kubelet knows it, and what it has published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any  # Any: the daemon's JSON document

from nri_rdma.commands.common.screen import age

UNSERVED_S = 60.0
"""How many seconds the registration with the kubelet, or the publication of devices, may be missing before a person
should look. The kubelet, the API server and the daemon start within this time."""
BRING_BACK = (
    "Bring the netdevs back to the host's network namespace (`ip -all netns exec ip link` finds them in others), or"
    " bind the devices to their drivers anew"
)
_STATES = ("attached", "failed", "returning", "waiting")
_WORDS = {"waiting": "waiting for their pods"}


def driver_facts(driver: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
    """Yield the lines of `status` about our DRA driver. `now` is the time in seconds since the epoch."""
    known = driver["registration"]
    since = age(max(0.0, now - known["since"]))
    if known["error"]:
        yield "Claims", f"WARNING, the kubelet does not know the driver {driver['name']}, for {since}: {known['error']}"
    else:
        yield "Claims", f"driver {driver['name']}: registered with the kubelet {since} ago"
    yield from (("", line) for line in _published(driver["published"], now))
    yield "", _claims(driver["claims"])
    yield from (("", f"WARNING, {line}") for line in _about_devices(driver))


def driver_attention(driver: Mapping[str, Any], now: float) -> Iterator[str]:
    """Yield a sentence for each problem of the driver that needs a person's attention."""
    known, published = driver["registration"], driver["published"]
    if known["error"] and now - known["since"] > UNSERVED_S:
        yield f"the kubelet does not know the driver {driver['name']}, so that no claim is prepared: {known['error']}"
    if published["error"] and now - published["error_since"] > UNSERVED_S:
        yield f"the devices for claims are not published: {published['error']}"
    yield from _about_devices(driver)


def driver_sentence(driver: Mapping[str, Any], now: float) -> str:
    """Return the sentence of `explain` about the driver, for pods with claims."""
    told = [driver["registration"]["error"], driver["published"]["error"], *_about_devices(driver)]
    problems = [it for it in told if it]
    if problems:
        return f"The node's driver of claims needs attention: {'; '.join(problems).rstrip('.')}."
    return f"The node's driver of claims serves: {'; '.join(_published(driver['published'], now)) or 'no device yet'}."


def _published(published: Mapping[str, Any], now: float) -> Iterator[str]:
    if published["slices"]:
        slices = f"{published['slices']} slice{'' if published['slices'] == 1 else 's'}"
        devices = f"{published['devices']} device{'' if published['devices'] == 1 else 's'}"
        written = published["written"]
        when = f"written {age(max(0.0, now - written))} ago" if written else "found so at the start"
        yield f"{devices} published in {slices}, generation {published['generation']}, {when}"
    if published["error"]:
        since = age(max(0.0, now - published["error_since"]))
        yield f"WARNING, not published as they are now, for {since}: {published['error']}"


def _claims(claims: Mapping[str, int]) -> str:
    """Return words for the number of prepared claims and their states."""
    told = [f"{claims[it]} {_WORDS.get(it, it)}" for it in _STATES if claims[it]]
    count = sum(claims[it] for it in _STATES)
    words = f"{count} claim{'' if count == 1 else 's'} prepared"
    return f"{words}: {', '.join(told)}" if told else words


def _about_devices(driver: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each problem with the driver's devices."""
    yield from _rivals(driver["rivals"])
    if withheld := driver.get("withheld"):  # older daemons do not send this field
        yield f"without their netdevs, claims do not get these devices: {', '.join(withheld)}. {BRING_BACK}"


def _rivals(rivals: Mapping[str, list[str]]) -> Iterator[str]:
    for name, devices in rivals.items():
        what = f"the driver {name} publishes devices of ours, too: {', '.join(devices)}"
        yield f"{what}. A device can have one driver: take it out of that driver's filter, or out of our pools"
