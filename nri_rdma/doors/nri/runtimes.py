"""The abilities of container runtimes, by the name and version that they report in Configure. Pure.

A runtime has the abilities of the NRI release with which it was built: it silently ignores a newer adjustment, and it
fails the registration of a plugin that subscribes to a newer event. A runtime before NRI 0.12 does not report its NRI
release, so this release is looked up by the runtime's version. The tables were read from the `go.mod` files of the
runtimes' releases. A distribution may build with another NRI release, usually a newer one.

Law: an unknown ability is assumed to exist. Only an ability that is known to be missing is refused or reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Release = tuple[int, int, int]

EVENTS_0_2, EVENTS_0_9_1, EVENTS_0_10 = 0x7FF, 0x1FFF, 0x3FFF
"""Bit masks of the events that releases of NRI have. 0.2 has those up to RemoveContainer; 0.9.1 adds UpdatePodSandbox,
and 0.10 adds ValidateContainerAdjustment."""

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
"""By runtime: its first version that was built with each release of NRI."""

_MISNAMED = {"v2": "containerd"}
"""Wrong names that runtimes report. containerd 2.0.0 to 2.0.3 report the last part of their Go module's path."""

_LEAVING: tuple[tuple[Release, Release], ...] = (((2, 0, 0), (2, 2, 6)), ((2, 3, 0), (2, 3, 3)))
"""Ranges of containerd releases (first affected, first repaired) that leave parts of a refused sandbox behind. Read
from RunPodSandbox in their sources; 2.0 and 2.1 have no repaired release."""

_SINCE_RLIMITS: Release = (0, 4, 0)
_SINCE_TIMEOUTS: Release = (0, 7, 0)
_NUMBERS = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?![0-9])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """The abilities of a runtime. `release` is its version, and `nri` the release of NRI with which it was built; None:
    unknown. `events` is the bit mask of the events that it has.

    `before_0_7`: the runtime does not list its pods to a plugin that it starts (no Synchronize), and it exits if the
    plugin answers Configure with an error.
    """

    runtime: str = ""
    release: Release | None = None
    nri: Release | None = None
    events: int = EVENTS_0_2
    before_0_7: bool = False

    @property
    def applies_rlimits(self) -> bool:
        """Return whether the runtime sets the RLIMIT_MEMLOCK that a plugin asks for: containerd since 1.7.7, CRI-O
        since 1.29."""
        return self.nri is None or self.nri >= _SINCE_RLIMITS

    @property
    def heeds_start(self) -> bool:
        """Return whether an error at StartContainer stops the start of the container.

        Only containerd is known to do so. CRI-O logs the error and starts the container (docs/adr/0009).
        """
        return self.runtime == "containerd"

    @property
    def leaves_refused(self) -> bool:
        """Return whether the runtime keeps the process, the network namespace and the record of a sandbox that a plugin
        refused, although CRI no longer lists the sandbox.

        Affected are containerd 2.0.0 to 2.2.5 and 2.3.0 to 2.3.2 (docs/adr/0019).
        """
        release = self.release
        if self.runtime != "containerd" or release is None:
            return False
        return any(first <= release < mended for first, mended in _LEAVING)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Return descriptions of the features of nri-rdma that this runtime does not support."""
        words = []
        if not self.applies_rlimits:
            words.append("RLIMIT_MEMLOCK of containers")
        if self.runtime == "cri-o":
            words.append("our refusal to start a container")
        return tuple(words)

    @property
    def nri_text(self) -> str:
        """The NRI release as text, such as "0.11.0"; "" if unknown."""
        return ".".join(map(str, self.nri)) if self.nri is not None else ""


def abilities_of(name: str, version: str, nri_version: str, *, tells_timeouts: bool = True) -> Abilities:
    """Return the abilities of a runtime from the texts of Configure, each of which may be empty or malformed.

    `tells_timeouts`: Configure contains timeouts. Then the runtime was built with NRI 0.7 or later, even if its version
    suggests an older release.
    """
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
    """Return the numbers at the start of a version like `v1.7.24`, `1.7.24~ds1`, `2.2.0-rc.1+unknown` or `1.36`; None
    if there are none."""
    match = _NUMBERS.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _nri_release(text: str) -> Release | None:
    """Return the NRI release; None for 0.0.0, which a build without module information reports."""
    release = parse_release(text)
    return release if release is not None and release > (0, 0, 0) else None


def _inferred(runtime: str, version: str) -> Release | None:
    """Return the NRI release with which this version of the runtime was built, by the tables; None if the version is
    unknown or older than the tables."""
    release = parse_release(version)
    if release is None:
        return None
    known = [nri for first, nri in _RELEASES.get(runtime, {}).items() if first <= release]
    return known[-1] if known else None


def _events(nri: Release | None) -> int:
    """Return the bit mask of the events to subscribe to. For an unknown NRI release it has only the events that every
    release has, because an unknown bit fails the registration."""
    if nri is None or nri < (0, 9, 1):
        return EVENTS_0_2
    return EVENTS_0_9_1 if nri < (0, 10, 0) else EVENTS_0_10
