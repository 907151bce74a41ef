"""libibverbs and its providers below a root, found as its loader and libibverbs would find them."""

from __future__ import annotations

import math
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from nri_rdma.host import userspace
from nri_rdma.host.elf import MOST_BYTES
from nri_rdma.host.root_folder import RootFolder
from nri_rdma.host.userspace import MOST_CONFIGURED, MOST_FOLDERS, MOST_S, read_userspace
from nri_rdma.model.userspace import Lack, Provider, Userspace
from tests.unit.host.made_elf import AARCH64, X86_64, Library

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in {"x86_64", "aarch64"},
    reason="needs openat2, and libraries of this machine",
)
OWN, OTHER = (X86_64, AARCH64) if os.uname().machine == "x86_64" else (AARCH64, X86_64)
HOME = f"/usr/lib/{os.uname().machine}-linux-gnu"
LIBC = Library(defines=[("read", "GLIBC_2.2.5"), ("strtol", "GLIBC_2.36")], machine=OWN)
VERBS = Library(
    defines=[("ibv_open", "IBVERBS_1.1"), ("verbs_init", "IBVERBS_PRIVATE_34")],
    needs={"libc.so.6": [("read", "GLIBC_2.2.5")]},
    texts=["lib%s-rdmav34.so", "/etc/libibverbs.d", f"{HOME}/libibverbs/lib%s-rdmav34.so"],
    machine=OWN,
)
RXE = Library(
    needs={"libibverbs.so.1": [("verbs_init", "IBVERBS_PRIVATE_34")], "libc.so.6": [("read", "GLIBC_2.2.5")]},
    driver=("rxe", 1, 2),
    machine=OWN,
)

Read = Callable[..., Userspace]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root that has all."""
    put(tmp_path, f"{HOME}/libc.so.6", LIBC)
    put(tmp_path, f"{HOME}/libibverbs.so.1.14", VERBS)
    (tmp_path / f".{HOME}/libibverbs.so.1").symlink_to("libibverbs.so.1.14")
    put(tmp_path, f"{HOME}/libibverbs/librxe-rdmav34.so", RXE)
    text(tmp_path, "/etc/libibverbs.d/rxe.driver", "# soft RoCE\n driver rxe\n")
    text(tmp_path, "/etc/os-release", 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n')
    return tmp_path


def put(root: Path, path: str, library: Library) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(library.build())


def text(root: Path, path: str, words: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(words)


def seen(root: Path, *providers: str, library_path: str = "") -> Userspace:
    folder = RootFolder(str(root))
    try:
        return read_userspace(folder, providers or ("rxe",), library_path)
    finally:
        folder.close()


def rxe(root: Path) -> Provider:
    provider = seen(root).provider("rxe")
    assert provider is not None
    return provider


def test_all_that_is_there_is_found(image: Path) -> None:
    assert seen(image) == Userspace(
        family="debian",
        distribution="Debian GNU/Linux 12 (bookworm)",
        path=f"{HOME}/libibverbs.so.1",
        release="34",
        has_glibc=True,
        providers=(Provider(name="rxe", path=f"{HOME}/libibverbs/librxe-rdmav34.so", is_listed=True, abi=(1, 2)),),
    )


def test_an_empty_image_has_nothing(tmp_path: Path) -> None:
    assert seen(tmp_path) == Userspace()


@pytest.mark.parametrize(
    ("said", "family"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "fedora"),
        ('ID="rhel"\n', "fedora"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "suse"),
        ("ID=alpine\n", "alpine"),
        ("ID=arch\n", "arch"),
        ("nothing\n", ""),
    ],
)
def test_the_distribution_is_known_by_its_family(image: Path, said: str, family: str) -> None:
    text(image, "/etc/os-release", said)
    assert seen(image).family == family


def test_what_the_image_says_of_itself_is_shown_without_control_characters(image: Path) -> None:
    text(image, "/etc/os-release", 'ID=x\nPRETTY_NAME="a\x1b[31mb"\n')
    assert seen(image).distribution == "a?[31mb"


def test_libraries_are_found_in_the_loaders_order(image: Path) -> None:
    put(image, "/opt/verbs/libibverbs.so.1", VERBS)
    put(image, "/opt/conda/lib/libibverbs.so.1", VERBS)
    assert seen(image).path == f"{HOME}/libibverbs.so.1"
    text(image, "/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    text(image, "/etc/ld.so.conf.d/verbs.conf", "# ours\n/opt/verbs  # here\n")
    assert seen(image).path == "/opt/verbs/libibverbs.so.1"
    assert seen(image, library_path="relative:/opt/conda/lib").path == "/opt/conda/lib/libibverbs.so.1"


def test_a_configuration_that_includes_itself_ends(image: Path) -> None:
    text(image, "/etc/ld.so.conf", "include ld.so.conf\ninclude ld.so.conf\n")
    assert seen(image).path


def test_an_endless_configuration_is_given_up_soon_and_that_is_said(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(userspace, "MOST_S", math.inf)  # the processor's time is measured, however busy it is
    lines = "include /etc/l/*.conf\n" * 2900
    text(image, "/etc/ld.so.conf", lines)
    for number in range(64):
        text(image, f"/etc/l/{number}.conf", lines)
    started = time.process_time()
    assert seen(image).unseen == f"/etc/ld.so.conf of the image has more than {MOST_CONFIGURED} files and includes"
    assert time.process_time() - started < 5


def test_a_configuration_with_many_folders_is_read_up_to_its_bound(image: Path) -> None:
    put(image, "/opt/verbs/libibverbs.so.1", VERBS)
    text(image, "/etc/ld.so.conf", "".join(f"/opt/{number}\n" for number in range(MOST_FOLDERS)) + "/opt/verbs\n")
    assert seen(image).path == f"{HOME}/libibverbs.so.1", "the loader's own folders always count"


def test_a_library_path_with_many_folders_hides_no_library(image: Path) -> None:
    many = ":".join(f"/opt/{number}" for number in range(MOST_FOLDERS))
    assert seen(image, library_path=many).path == f"{HOME}/libibverbs.so.1"


def test_a_library_for_this_machine_is_not_named_as_one_for_another(image: Path) -> None:
    (image / f".{HOME}/libibverbs.so.1").unlink()
    put(image, "/usr/lib32/libibverbs.so.1", VERBS)
    assert (seen(image).path, seen(image).foreign) == ("", ())


def test_an_image_that_is_not_read_in_time_is_given_up(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(step=MOST_S // 4)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert seen(image) == Userspace(unseen=f"the image was not read within {MOST_S} s")


def test_what_many_libraries_define_is_not_kept(image: Path) -> None:
    """An image can have 60,000 libraries with 7 MB of versions each."""
    many = Library(defines=[("read", f"V_{number}") for number in range(5000)], machine=OWN)
    put(image, f"{HOME}/many.so", many)
    peaks = []
    for libraries in (1, 20):
        for number in range(libraries):
            (image / f".{HOME}/{number}.so").unlink(missing_ok=True)
            (image / f".{HOME}/{number}.so").symlink_to("many.so")
        needs = {f"{number}.so": [("read", "V_1")] for number in range(libraries)}
        put(image, f"{HOME}/libibverbs.so.1.14", replace(VERBS, needs=needs))
        tracemalloc.start()
        assert not seen(image).lacks
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


def test_a_library_for_another_machine_is_passed_over_and_named_where_there_is_no_other(image: Path) -> None:
    put(image, f"{HOME}/libibverbs.so.1.14", replace(VERBS, machine=OTHER))
    put(image, "/usr/lib/libibverbs.so.1", VERBS)
    assert seen(image).path == "/usr/lib/libibverbs.so.1"
    (image / "usr/lib/libibverbs.so.1").unlink()
    told = seen(image)
    assert told.path == ""
    assert told.foreign[0] == (f"{HOME}/libibverbs.so.1", "aarch64" if OTHER == AARCH64 else "x86_64")


def test_a_library_of_32_bits_is_for_another_machine(image: Path) -> None:
    put(image, "/usr/lib/i386-linux-gnu/libibverbs.so.1", replace(VERBS, machine=3, bits=32))
    (image / f".{HOME}/libibverbs.so.1").unlink()
    assert seen(image).foreign == (("/usr/lib/i386-linux-gnu/libibverbs.so.1", "i386"),)


def test_the_loader_of_musl_is_seen(image: Path) -> None:
    put(image, f"/lib/ld-musl-{os.uname().machine}.so.1", LIBC)
    (image / f".{HOME}/libc.so.6").unlink()
    told = seen(image)
    assert (told.has_musl, told.has_glibc, told.lacks) == (True, False, (Lack(library="libc.so.6"),))


def test_an_image_without_libibverbs_has_glibc_beside_the_loader_of_musl(image: Path) -> None:
    put(image, f"/lib/ld-musl-{os.uname().machine}.so.1", LIBC)
    (image / f".{HOME}/libibverbs.so.1").unlink()
    told = seen(image)
    assert (told.path, told.has_musl, told.has_glibc) == ("", True, True)


@pytest.mark.parametrize("name", ["libibverbs.so.1", "libc.so.6", "libibverbs/librxe-rdmav34.so"])
def test_a_library_that_is_too_large_to_read_is_not_told_as_missing(image: Path, name: str) -> None:
    os.truncate(image / f".{HOME}/{name}", MOST_BYTES + 1)
    assert seen(image) == Userspace(unseen=f"{HOME}/{name} cannot be read: it has {MOST_BYTES + 1} bytes")


def test_a_version_that_a_library_lacks_is_named(image: Path) -> None:
    put(image, f"{HOME}/libibverbs/librxe-rdmav34.so", replace(RXE, needs={"libc.so.6": [("strtol", "GLIBC_2.38")]}))
    assert rxe(image).lacks == (Lack(library="libc.so.6", version="GLIBC_2.38"),)


def test_a_symbol_that_libibverbs_lacks_is_named(image: Path) -> None:
    needs = {"libibverbs.so.1": [("verbs_new", "IBVERBS_PRIVATE_34")]}
    put(image, f"{HOME}/libibverbs/librxe-rdmav34.so", replace(RXE, needs=needs))
    assert rxe(image).lacks == (Lack(library="libibverbs.so.1", version="IBVERBS_PRIVATE_34", symbol="verbs_new"),)


def test_providers_of_another_release_are_named_where_there_is_none_for_this_one(image: Path) -> None:
    (image / f".{HOME}/libibverbs/librxe-rdmav34.so").rename(image / f".{HOME}/libibverbs/librxe-rdmav33.so")
    assert rxe(image) == Provider(name="rxe", is_listed=True, others=(f"{HOME}/libibverbs/librxe-rdmav33.so",))


def test_a_provider_that_no_file_lists_is_told(image: Path) -> None:
    text(image, "/etc/libibverbs.d/rxe.driver", "driver siw\n")
    assert not rxe(image).is_listed


def test_a_provider_may_be_listed_with_its_path_or_be_among_the_libraries(image: Path) -> None:
    (image / f".{HOME}/libibverbs/librxe-rdmav34.so").unlink()
    put(image, "/opt/librxe-rdmav34.so", RXE)
    text(image, "/etc/libibverbs.d/rxe.driver", "driver /opt/librxe\n")
    assert rxe(image).path == "/opt/librxe-rdmav34.so"
    text(image, "/etc/libibverbs.d/rxe.driver", "driver rxe\n")
    put(image, f"{HOME}/librxe-rdmav34.so", RXE)
    assert rxe(image).path == f"{HOME}/librxe-rdmav34.so"


def test_libibverbs_itself_says_where_its_providers_and_its_configuration_are(image: Path) -> None:
    texts = ["/opt/conda/etc/libibverbs.d", "/opt/conda/lib/libibverbs/lib%s-rdmav57.so"]
    put(image, f"{HOME}/libibverbs.so.1.14", replace(VERBS, texts=texts))
    put(image, "/opt/conda/lib/libibverbs/librxe-rdmav57.so", RXE)
    text(image, "/opt/conda/etc/libibverbs.d/rxe.driver", "driver rxe\n")
    assert (rxe(image).path, rxe(image).is_listed) == ("/opt/conda/lib/libibverbs/librxe-rdmav57.so", True)


def test_a_provider_without_the_numbers_supports_nobody_knows_what(image: Path) -> None:
    put(image, f"{HOME}/libibverbs/librxe-rdmav34.so", replace(RXE, driver=None))
    assert rxe(image).abi is None


def test_a_library_that_cannot_be_read_is_said_and_nothing_is_known(image: Path) -> None:
    data = (image / f".{HOME}/libibverbs.so.1.14").read_bytes()
    (image / f".{HOME}/libibverbs.so.1.14").write_bytes(data[:80])
    assert seen(image) == Userspace(unseen=f"{HOME}/libibverbs.so.1 cannot be read: it ends before its tables do")
