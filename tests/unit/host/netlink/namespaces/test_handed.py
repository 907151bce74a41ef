"""A path leads to the descriptor that was handed over, for as long as it is."""

import os
from pathlib import Path

import pytest

from nri_rdma.host.netlink.namespaces.handed import HandedNamespaces
from tests.rig.descriptors import open_descriptors


def opened(handed: HandedNamespaces, path: Path) -> str:
    """Where a descriptor of the path leads."""
    fd = handed.open(str(path))
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    finally:
        os.close(fd)


def test_a_path_leads_to_what_was_handed_over_until_it_is_withdrawn(tmp_path: Path) -> None:
    there, given = tmp_path / "there", tmp_path / "given"
    there.touch()
    given.touch()
    handed = HandedNamespaces()
    with given.open() as file:
        handed.hand(str(there), file.fileno())
    assert opened(handed, there) == str(given), "the descriptor of who handed it over is closed already"
    assert os.path.samestat(handed.state(str(there)), given.stat())
    handed.withdraw(str(there))
    assert opened(handed, there) == str(there)
    assert os.path.samestat(handed.state(str(there)), there.stat())


def test_nothing_stays_open(tmp_path: Path) -> None:
    before, handed = open_descriptors(), HandedNamespaces()
    with (tmp_path / "one").open("w") as one, (tmp_path / "two").open("w") as two:
        for file in (one, two):
            handed.hand("/place", file.fileno())
    assert opened(handed, Path("/place")) == str(tmp_path / "two")
    for _ in range(2):
        handed.withdraw("/place")
    assert open_descriptors() <= before


def test_a_path_where_nothing_is_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        HandedNamespaces().open(str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError):
        HandedNamespaces().state(str(tmp_path / "nothing"))
