"""The machine's own mirror is found in every format of apt's sources."""

from pathlib import Path

from deploy import aptsources
from deploy.aptsources import Source

DEB822 = """\
# comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""

ONE_LINE = """\
# deb http://off.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/etc/apt/keyrings/k.gpg] http://mirror.example/debian bookworm main contrib # ours
deb http://mirror.example/security bookworm-security main
"""


def test_a_deb822_file_gives_its_enabled_binary_sources() -> None:
    first, second = aptsources.parse_deb822(DEB822)
    assert first == Source(
        uris=("http://mirror.example/debian",),
        suites=("bookworm", "bookworm-updates"),
        components=("main", "non-free-firmware"),
        signed_by="/usr/share/keyrings/debian-archive-keyring.gpg",
    )
    assert second.suites == ("bookworm-security",)


def test_a_key_given_in_full_survives_the_way_back_to_apt() -> None:
    second = aptsources.parse_deb822(DEB822)[1]
    (again,) = aptsources.parse_deb822(second.stanza(("bookworm-security",)))
    assert again.signed_by == second.signed_by
    assert "\n ." in second.stanza(("x",))


def test_a_one_line_file_gives_its_binary_sources() -> None:
    first, second = aptsources.parse_one_line(ONE_LINE)
    assert first == Source(
        uris=("http://mirror.example/debian",),
        suites=("bookworm",),
        components=("main", "contrib"),
        signed_by="/etc/apt/keyrings/k.gpg",
    )
    assert second.uris == ("http://mirror.example/security",)


def test_the_main_archive_is_the_one_with_the_release_and_main() -> None:
    other = Source(uris=("http://other.example",), suites=("bookworm",), components=("contrib",))
    own = Source(uris=("http://own.example",), suites=("stable",), components=("main",))
    security = Source(uris=("http://own.example/s",), suites=("bookworm-security",), components=("main",))
    assert aptsources.main_archive((other, security, own), "bookworm") is own
    assert aptsources.main_archive((other, security), "bookworm") is None
    assert aptsources.security_archive((other, own, security), "bookworm") is security


def test_both_kinds_of_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example/debian trixie main\n")
    (folder / "debian.sources").write_text(DEB822)
    (folder / "old.list.disabled").write_text("deb http://off.example/debian trixie main\n")
    uris = [source.uris[0] for source in aptsources.read_sources(tmp_path)]
    assert uris == ["http://a.example/debian", "http://mirror.example/debian", "http://mirror.example/debian-security"]


def test_a_machine_without_sources_has_none(tmp_path: Path) -> None:
    assert aptsources.read_sources(tmp_path) == ()
