"""What is said of an image whose libraries cannot use the devices of its container."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.decide.userspace import PROVIDERS, driver_of, problems_of, providers_of
from nri_rdma.errors import ErrorCode, UserspaceError
from nri_rdma.model.userspace import KernelDevice, Lack, Provider, Userspace
from tests.unit.model.hardware import nic

HOME = "/usr/lib/x86_64-linux-gnu"
FINE = Provider(name="mlx5", path=f"{HOME}/libibverbs/libmlx5-rdmav34.so", is_listed=True, abi=(1, 1))
IMAGE = Userspace(
    family="debian",
    distribution="Debian 12",
    path=f"{HOME}/libibverbs.so.1",
    release="34",
    has_glibc=True,
    providers=(FINE,),
)
CX7 = KernelDevice(name="mlx5_0", driver="mlx5_core", abi=1)
CX8 = KernelDevice(name="mlx5_1", driver="mlx5_core", abi=1)


def told(userspace: Userspace, *devices: KernelDevice) -> list[UserspaceError]:
    return list(problems_of(userspace, devices or (CX7,), "default/a, container b", "x86_64"))


def only(userspace: Userspace, *devices: KernelDevice) -> tuple[ErrorCode, str]:
    (error,) = told(userspace, *devices)
    return error.code, error.what


def with_provider(**changes: object) -> Userspace:
    return replace(IMAGE, providers=(replace(FINE, **changes),))  # type: ignore[arg-type]  # its own fields


def test_an_image_that_fits_is_fine() -> None:
    assert told(IMAGE, CX7, CX8) == []


def test_nothing_is_said_of_what_could_not_be_seen_nor_where_there_is_no_device() -> None:
    assert told(Userspace(unseen="it is on a mount")) == []
    assert problems_of(Userspace(), (), "", "x86_64") == ()


def test_an_error_names_cause_place_package_and_the_way_around() -> None:
    (error,) = told(Userspace(family="debian", distribution="Debian 12"))
    assert str(error) == (
        "nri-rdma: USERSPACE-MISSING: the image has no libibverbs.so.1: its programs find no RDMA device, and most go"
        " on over TCP (Debian 12), default/a, container b. Next: install libibverbs1 and ibverbs-providers, both of one"
        ' release; a container that does not use RDMA: leave it out of `containers`, or write `userspace: "off"`.'
    )


@pytest.mark.parametrize(
    ("family", "packages"),
    [
        ("debian", "install libibverbs1 and ibverbs-providers, both of one release;"),
        ("fedora", "install libibverbs, which has the providers;"),
        ("suse", "install libibverbs1 and libibverbs, both of one release;"),
        ("arch", "install libibverbs of rdma-core with its providers;"),
    ],
)
def test_the_packages_are_those_of_the_distribution(family: str, packages: str) -> None:
    (error,) = told(Userspace(family=family))
    assert error.hint.startswith(packages)


def test_an_image_with_musl_needs_its_own_libraries() -> None:
    code, what = only(Userspace(family="alpine", has_musl=True))
    assert code is ErrorCode.USERSPACE_MISSING
    assert what.startswith("the image has no libibverbs.so.1, and musl as its C library: ")
    copied = replace(IMAGE, has_musl=True, has_glibc=False, lacks=(Lack(library="libc.so.6"),))
    code, what = only(copied)
    assert code is ErrorCode.USERSPACE_MISMATCH
    assert what.startswith(f"the image's {HOME}/libibverbs.so.1 is for glibc, and its C library is musl: ")


def test_libraries_of_another_architecture_are_named() -> None:
    code, what = only(Userspace(foreign=(("/usr/lib/libibverbs.so.1", "aarch64"),)))
    assert code is ErrorCode.USERSPACE_MISMATCH
    assert what == "the image's /usr/lib/libibverbs.so.1 is for aarch64, and this node's programs are for x86_64"


def test_what_libibverbs_itself_lacks_is_all_that_is_said() -> None:
    lacking = replace(IMAGE, lacks=(Lack(library="libnl-3.so.200"), Lack(library="libc.so.6")), providers=())
    code, what = only(lacking)
    assert code is ErrorCode.USERSPACE_MISSING
    assert what.startswith(f"the image's {HOME}/libibverbs.so.1 needs libnl-3.so.200, which the image does not have")


def test_a_device_without_its_provider_is_named() -> None:
    code, what = only(replace(IMAGE, providers=(Provider(name="mlx5"),)), CX7, CX8)
    assert code is ErrorCode.USERSPACE_MISSING
    assert what == "the image's libibverbs has no provider mlx5: mlx5_0, mlx5_1 cannot be used (Debian 12)"


def test_a_provider_of_another_release_is_named_with_the_one_that_is_looked_for() -> None:
    code, what = only(with_provider(path="", others=("/lib/libmlx5-rdmav33.so",)))
    assert code is ErrorCode.USERSPACE_MISMATCH
    assert "/lib/libmlx5-rdmav33.so is of another release than its libibverbs, which looks for" in what
    assert "libmlx5-rdmav34.so: mlx5_0 cannot be used" in what


def test_a_provider_that_no_file_lists_is_not_loaded() -> None:
    code, what = only(with_provider(is_listed=False))
    assert (code, "no file in the image's libibverbs.d names the provider mlx5" in what) == (
        ErrorCode.USERSPACE_MISSING,
        True,
    )


@pytest.mark.parametrize(
    ("lack", "code", "words"),
    [
        (Lack(library="libc.so.6", version="GLIBC_2.38"), ErrorCode.USERSPACE_MISMATCH, "libc.so.6 with GLIBC_2.38"),
        (Lack(library="libefa.so.1"), ErrorCode.USERSPACE_MISSING, "libefa.so.1, which the image does not have"),
        (
            Lack(library="libibverbs.so.1", version="IBVERBS_PRIVATE_34", symbol="verbs_new"),
            ErrorCode.USERSPACE_MISMATCH,
            "verbs_new (IBVERBS_PRIVATE_34) of libibverbs.so.1, which its release lacks",
        ),
    ],
)
def test_what_a_provider_lacks_is_named(lack: Lack, code: ErrorCode, words: str) -> None:
    assert only(with_provider(lacks=(lack,)))[0] is code
    assert words in only(with_provider(lacks=(lack,)))[1]


@pytest.mark.parametrize(("abi", "fits"), [(0, False), (1, True), (3, True), (4, False), (None, True)])
def test_the_kernels_version_has_to_be_one_that_the_provider_supports(abi: int | None, fits: bool) -> None:
    problems = told(with_provider(abi=(1, 3)), replace(CX7, abi=abi))
    assert (problems == []) is fits


def test_a_version_that_the_provider_does_not_support_is_told_in_the_words_of_libibverbs() -> None:
    thor = KernelDevice(name="bnxt_re0", driver="bnxt_en", abi=6)
    image = replace(IMAGE, providers=(replace(FINE, name="bnxt_re"),))
    assert only(image, thor) == (
        ErrorCode.USERSPACE_MISMATCH,
        "the kernel's driver of bnxt_re0, bnxt_en, has version 6 of its interface, and the image's provider bnxt_re"
        " supports 1 (Debian 12)",
    )


def test_versions_that_nobody_could_read_are_not_compared() -> None:
    assert told(with_provider(abi=None), replace(CX7, abi=9)) == []


def test_each_kind_of_device_is_told_once() -> None:
    unknown = KernelDevice(name="new0", driver="brand_new")
    rxe = KernelDevice(name="rxe0", driver="rdma_rxe")
    assert [it.what.split(":")[0] for it in told(replace(IMAGE, providers=()), CX7, CX8, rxe, unknown)] == [
        "the image's libibverbs has no provider mlx5",
        "the image's libibverbs has no provider rxe",
    ]


def test_the_driver_of_a_soft_device_is_known_by_its_kind() -> None:
    soft = replace(nic(0), pci=None, driver="")
    assert driver_of(soft) == "rdma_rxe"
    assert driver_of(replace(soft, node_type="RNIC")) == "siw"
    assert driver_of(replace(nic(0), driver="mlx5_core.sf")) == "mlx5_core"


def test_only_the_providers_of_known_drivers_are_looked_for() -> None:
    assert providers_of((CX7, CX8, KernelDevice(name="new0", driver="brand_new"))) == {"mlx5"}
    assert PROVIDERS["ice"] == "irdma"
