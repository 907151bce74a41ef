"""What runtimes are known to do, row by row: their releases and the NRI in their go.mod."""

import pytest

from nri_rdma.doors.nri.runtimes import Abilities, abilities_of, parse_release

OLD, MIDDLE, NEW = 0x7FF, 0x1FFF, 0x3FFF

ROWS = [
    # name, version, NRI's release, the events it knows, whether it sets RLIMIT_MEMLOCK
    ("containerd", "v1.7.0", "0.3.0", OLD, False),
    ("containerd", "v1.7.6", "0.3.0", OLD, False),
    ("containerd", "v1.7.7", "0.4.0", OLD, True),
    ("containerd", "v1.7.13", "0.4.0", OLD, True),
    ("containerd", "v1.7.14", "0.6.0", OLD, True),
    ("containerd", "v1.7.15", "0.6.0", OLD, True),
    ("containerd", "v1.7.16", "0.6.1", OLD, True),
    ("containerd", "v1.7.25", "0.6.1", OLD, True),
    ("containerd", "v1.7.26", "0.8.0", OLD, True),
    ("containerd", "v1.7.34", "0.8.0", OLD, True),
    ("v2", "v2.0.0", "0.8.0", OLD, True),
    ("v2", "v2.0.3", "0.8.0", OLD, True),
    ("containerd", "v2.0.4", "0.8.0", OLD, True),
    ("containerd", "v2.1.9", "0.8.0", OLD, True),
    ("containerd", "v2.2.0", "0.10.0", NEW, True),
    ("containerd", "v2.2.1", "0.11.0", NEW, True),
    ("containerd", "v2.2.7", "0.11.0", NEW, True),
    ("containerd", "v2.3.0", "0.12.0", NEW, True),
    ("containerd", "v2.9.0", "0.12.0", NEW, True),
    ("cri-o", "1.26.4", "0.2.0", OLD, False),
    ("cri-o", "1.27.0", "0.3.1", OLD, False),
    ("cri-o", "1.28.11", "0.3.1", OLD, False),
    ("cri-o", "1.29.0", "0.5.0", OLD, True),
    ("cri-o", "1.30.2", "0.6.0", OLD, True),
    ("cri-o", "1.31.0", "0.6.1", OLD, True),
    ("cri-o", "1.32.7", "0.9.0", OLD, True),
    ("cri-o", "1.33.0", "0.9.1", MIDDLE, True),
    ("cri-o", "1.34.1", "0.10.0", NEW, True),
    ("cri-o", "1.35.0", "0.11.0", NEW, True),
    ("cri-o", "1.36.0", "0.11.0", NEW, True),
    ("cri-o", "1.37.0", "0.12.0", NEW, True),
]


@pytest.mark.parametrize(("name", "version", "nri", "events", "rlimits"), ROWS)
def test_a_known_release_has_what_its_nri_has(name: str, version: str, nri: str, events: int, rlimits: bool) -> None:
    tells_timeouts = tuple(map(int, nri.split("."))) >= (0, 7, 0)
    found = abilities_of(name, version, "", tells_timeouts=tells_timeouts)
    assert (found.nri_text, found.events, found.applies_rlimits) == (nri, events, rlimits)
    assert found.before_0_7 is not tells_timeouts


def test_a_release_that_a_distribution_built_with_a_newer_nri_shows_by_its_time_outs() -> None:
    found = abilities_of("containerd", "1.7.6~ds1", "", tells_timeouts=True)
    assert (found.nri_text, found.applies_rlimits, found.before_0_7) == ("0.7.0", True, False)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("v1.7.24", (1, 7, 24)),
        ("1.7.24~ds1", (1, 7, 24)),
        ("v2.1.4+unknown", (2, 1, 4)),
        ("v2.3.1-5-gabcdef.m", (2, 3, 1)),
        ("2.2.0-rc.1", (2, 2, 0)),
        ("1.36", (1, 36, 0)),
        ("1.36.0-dev", (1, 36, 0)),
        ("", None),
        ("(devel)", None),
        ("unknown", None),
        ("v", None),
        ("1", None),
        ("²1.2.3", None),
        ("9" * 5000 + ".1.1", None),
    ],
)
def test_versions_are_read_as_distributions_write_them(text: str, release: tuple[int, int, int] | None) -> None:
    assert parse_release(text) == release


@pytest.mark.parametrize("nri_version", ["", "(devel)", "0.0.0-unknown"])
def test_without_a_release_of_nri_it_follows_from_the_runtimes(nri_version: str) -> None:
    assert abilities_of("containerd", "v1.7.6", nri_version, tells_timeouts=False).nri_text == "0.3.0"


def test_the_release_of_nri_that_a_runtime_tells_counts_first() -> None:
    assert abilities_of("containerd", "v2.3.0", "v0.12.2").nri_text == "0.12.2"
    assert abilities_of("new-runtime", "1.0.0", "v0.12.2-31-g8ec8b28").events == NEW


@pytest.mark.parametrize(
    ("name", "version"), [("", ""), ("containerd", "(devel)"), ("containerd", "1.6.20"), ("podman", "v5.0.0")]
)
def test_what_is_not_known_does_everything_and_knows_the_events_of_all(name: str, version: str) -> None:
    found = abilities_of(name, version, "")
    assert (found.nri, found.applies_rlimits, found.lacks, found.events) == (None, True, (), OLD)


def test_only_containerd_is_known_to_heed_our_answer_to_a_start() -> None:
    heeding = [abilities_of(name, "", "").heeds_start for name in ("containerd", "v2", "cri-o", "other", "")]
    assert heeding == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("name", "version", "leaves"),
    [
        ("containerd", "1.7.24~ds1", False),
        ("containerd", "v1.7.34", False),
        ("v2", "v2.0.0", True),
        ("containerd", "v2.0.14", True),
        ("containerd", "2.1.9+unknown", True),
        ("containerd", "v2.2.0-rc.1", True),
        ("containerd", "v2.2.5", True),
        ("containerd", "v2.2.6", False),
        ("containerd", "v2.2.9", False),
        ("containerd", "v2.3.0", True),
        ("containerd", "v2.3.2", True),
        ("containerd", "v2.3.3", False),
        ("containerd", "v2.4.0", False),
        ("containerd", "(devel)", False),
        ("containerd", "", False),
        ("cri-o", "2.1.0", False),
        ("podman", "v2.1.0", False),
        ("", "", False),
    ],
)
def test_some_releases_of_containerd_leave_parts_of_a_refused_sandbox(name: str, version: str, leaves: bool) -> None:
    assert abilities_of(name, version, "").leaves_refused is leaves


def test_what_it_lacks_is_told_in_words() -> None:
    assert abilities_of("cri-o", "1.28.0", "", tells_timeouts=False).lacks == (
        "RLIMIT_MEMLOCK of containers",
        "our refusal to start a container",
    )
    assert Abilities().lacks == ()
