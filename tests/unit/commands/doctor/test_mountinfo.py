"""The doctor reads mountinfo: which mount a path is on, what it follows, and whether the process is in a container."""

from pathlib import Path, PurePosixPath

from nri_rdma.commands.doctor.mountinfo import MountPoint, are_of_container, mount_of, read_mounts

TEXT = """\
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
26 25 0:83 / /run rw shared:7 master:2 propagate_from:3 - tmpfs t rw
27 26 0:84 /a /run/with\\040space rw - tmpfs t rw
28 26 0:85 /b /run/with\\040space rw master:9 - tmpfs t rw
"""


def mounts(tmp_path: Path, text: str = TEXT) -> tuple[MountPoint, ...]:
    (tmp_path / "mountinfo").write_text(text)
    return read_mounts(tmp_path)


def test_a_line_is_read_with_its_peer_groups(tmp_path: Path) -> None:
    assert mounts(tmp_path)[1] == MountPoint(
        root="/", point=PurePosixPath("/run"), kind="tmpfs", groups=frozenset({7, 2}), sends=7
    )


def test_a_path_is_on_the_longest_mount_and_of_two_on_the_later(tmp_path: Path) -> None:
    all_of_them = mounts(tmp_path)
    for path, root in (("/etc", "/"), ("/run/x", "/"), ("/run/with space/y", "/b"), ("/runway", "/")):
        found = mount_of(all_of_them, PurePosixPath(path))
        assert found is not None
        assert (found.root, found.kind) == (root, "tmpfs" if path.startswith("/run/") else "ext4")
    assert mount_of((), PurePosixPath("/")) is None


def test_a_container_is_known_by_what_is_mounted_into_each(tmp_path: Path) -> None:
    assert not are_of_container(mounts(tmp_path))
    for path in ("/etc/hosts", "/dev/termination-log"):
        assert are_of_container(mounts(tmp_path, f"{TEXT}29 25 8:1 /x {path} rw - ext4 sda rw\n"))
