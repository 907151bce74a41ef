"""What a runtime is known to do of what a plugin asks, by what it says of itself in Configure. Pure.

A runtime knows the interface of the NRI release that it was built with: an adjustment that is younger is lost without
an error, an event that is younger makes the registration fail. Runtimes before NRI 0.12 do not tell their release; it
follows from name and version. The tables were read from the `go.mod` of the runtimes' releases. Distributions may build
with another release, mostly a newer one.

Law: what is not known is taken to be done. Only what is known to be lost is refused or told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Release = tuple[int, int, int]

EVENTS_0_2, EVENTS_0_9_1, EVENTS_0_10 = 0x7FF, 0x1FFF, 0x3FFF
"""The events that NRI knows, as bits: up to RemoveContainer; with those of UpdatePodSandbox; with the validation."""

_CONTAINERD: dict[Release, Release] = {
    (1, 7, 0): (0, 3, 0),
    (1, 7, 7): (0, 4, 0),
    (1, 7, 14): (0, 6, 0),
    (1, 7, 16): (0, 6, 1),
    (1, 7, 26): (0, 8, 0),
    (2, 2, 0): (0, 10, 0),
    (2, 2, 1): (0, 11, 0),
    (2, 3, 0): (0, 12, 0),
}
_CRI_O: dict[Release, Release] = {
    (1, 26, 0): (0, 2, 0),
    (1, 27, 0): (0, 3, 1),
    (1, 29, 0): (0, 5, 0),
    (1, 30, 0): (0, 6, 0),
    (1, 31, 0): (0, 6, 1),
    (1, 32, 0): (0, 9, 0),
    (1, 33, 0): (0, 9, 1),
    (1, 34, 0): (0, 10, 0),
    (1, 35, 0): (0, 11, 0),
    (1, 37, 0): (0, 12, 0),
}
_RELEASES = {"containerd": _CONTAINERD, "cri-o": _CRI_O}
"""The first release of each runtime with each release of NRI."""

_MISNAMED = {"v2": "containerd"}
"""containerd 2.0.0 to 2.0.3 takes the last part of its module's path for its name."""

_LEAVING: tuple[tuple[Release, Release], ...] = (((2, 0, 0), (2, 2, 6)), ((2, 3, 0), (2, 3, 3)))
"""The releases of containerd that leave what they made of a refused sandbox: from the first on, before the second. Read
from RunPodSandbox of their sources; 2.0 and 2.1 have no release with the mend."""

_SINCE_RLIMITS: Release = (0, 4, 0)
_SINCE_TIMEOUTS: Release = (0, 7, 0)
_NUMBERS = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?![0-9])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """`release` is the runtime's own, `nri` that of NRI, None when it is not known; `events` are the bits of the events
    that it knows.

    `before_0_7`: a plugin that it starts is told no pods (no Synchronize), and ends it by an error at Configure.
    """

    runtime: str = ""
    release: Release | None = None
    nri: Release | None = None
    events: int = EVENTS_0_2
    before_0_7: bool = False

    @property
    def applies_rlimits(self) -> bool:
        """Return whether a container gets the RLIMIT_MEMLOCK that we ask for: containerd 1.7.7, CRI-O 1.29."""
        return self.nri is None or self.nri >= _SINCE_RLIMITS

    @property
    def heeds_start(self) -> bool:
        """Return whether a container is not started when StartContainer is answered with an error. CRI-O logs the
        error and starts it; of others nothing is known, and nothing must depend on it (docs/adr/0009)."""
        return self.runtime == "containerd"

    @property
    def leaves_refused(self) -> bool:
        """Return whether it leaves the process, the network namespace and the record of a sandbox that a plugin
        refused, of which CRI knows nothing any more: containerd 2.0.0 to 2.2.5 and 2.3.0 to 2.3.2 (docs/adr/0019)."""
        release = self.release
        if self.runtime != "containerd" or release is None:
            return False
        return any(first <= release < mended for first, mended in _LEAVING)

    @property
    def lacks(self) -> tuple[str, ...]:
        """List what the runtime does not do of what we ask, in words."""
        words = []
        if not self.applies_rlimits:
            words.append("RLIMIT_MEMLOCK of containers")
        if self.runtime == "cri-o":
            words.append("our refusal to start a container")
        return tuple(words)

    @property
    def nri_text(self) -> str:
        """The release of NRI as people write it; "" when it is not known."""
        return ".".join(map(str, self.nri)) if self.nri is not None else ""


def abilities_of(name: str, version: str, nri_version: str, *, tells_timeouts: bool = True) -> Abilities:
    """From what Configure says: three texts, each of which may be empty, "(devel)" or anything else, and whether there
    are time-outs, which is so since NRI 0.7 whatever a distribution has built."""
    runtime = _MISNAMED.get(name, name)
    nri = _nri_release(nri_version) or _inferred(runtime, version)
    if nri is not None and tells_timeouts:
        nri = max(nri, _SINCE_TIMEOUTS)
    return Abilities(
        runtime=runtime if runtime in _RELEASES else "",
        release=parse_release(version),
        nri=nri,
        events=_events(nri),
        before_0_7=not tells_timeouts,
    )


def parse_release(text: str) -> Release | None:
    """`v1.7.24`, `1.7.24~ds1`, `2.2.0-rc.1+unknown`, `1.36`: the numbers; None when it does not begin with any."""
    match = _NUMBERS.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _nri_release(text: str) -> Release | None:
    """0.0.0 is what a build without module information says."""
    release = parse_release(text)
    return release if release is not None and release > (0, 0, 0) else None


def _inferred(runtime: str, version: str) -> Release | None:
    """Return the release by which a newer one is judged, the newest known that is not newer: it has what the last one
    has."""
    release = parse_release(version)
    if release is None:
        return None
    known = [nri for first, nri in _RELEASES.get(runtime, {}).items() if first <= release]
    return known[-1] if known else None


def _events(nri: Release | None) -> int:
    """Return the events to subscribe to. Of an unknown release only those that every release knows: an unknown bit
    would fail the registration."""
    if nri is None or nri < (0, 9, 1):
        return EVENTS_0_2
    return EVENTS_0_9_1 if nri < (0, 10, 0) else EVENTS_0_10
