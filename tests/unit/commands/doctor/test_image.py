"""The check of an unpacked image: its libraries and this machine's devices."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.commands.doctor.examination import examine
from nri_rdma.commands.doctor.image import libraries
from nri_rdma.errors import ErrorCode, InventoryError
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, Bench
from tests.unit.host.made_elf import Library
from tests.unit.host.test_userspace import HOME, LIBC, OWN, RXE, VERBS, put, text

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine not in {"x86_64", "aarch64"}, reason="needs openat2"
)
MLX5 = Library(needs=RXE.needs, driver=("mlx5", 1, 1), machine=OWN)


def test_an_image_that_fits_is_ok(bench: Bench, tmp_path: Path) -> None:
    root = tmp_path / "image"
    put(root, f"{HOME}/libc.so.6", LIBC)
    put(root, f"{HOME}/libibverbs.so.1", VERBS)
    put(root, f"{HOME}/libibverbs/libmlx5-rdmav34.so", MLX5)
    text(root, "/etc/libibverbs.d/mlx5.driver", "driver mlx5\n")
    finding = libraries(replace(bench.machine, image_root=root))
    assert (finding.result, finding.found) == (
        OK,
        f"{HOME}/libibverbs.so.1 (no distribution) with the providers mlx5",
    )


def test_an_image_without_libraries_is_a_problem_with_the_package(bench: Bench, tmp_path: Path) -> None:
    text(tmp_path, "/etc/os-release", "ID=debian\n")
    finding = libraries(replace(bench.machine, image_root=tmp_path))
    assert finding.result is PROBLEM
    assert finding.found.startswith("USERSPACE-MISSING: the image has no libibverbs.so.1: ")
    assert "libibverbs1 and ibverbs-providers" in finding.fix


def test_what_cannot_be_checked_is_said(bench: Bench, tmp_path: Path) -> None:
    assert libraries(bench.machine).result is NA
    gone = libraries(replace(bench.machine, image_root=tmp_path / "none"))
    assert (gone.result, "cannot be opened" in gone.found) == (NA, True)
    put(tmp_path, f"{HOME}/libibverbs.so.1", VERBS)
    place = tmp_path / f".{HOME}/libibverbs.so.1"
    place.write_bytes(place.read_bytes()[:80])
    assert "cannot be read" in libraries(replace(bench.machine, image_root=tmp_path)).found
    bench.node = InventoryError(ErrorCode.INVENTORY, "no sysfs")
    assert libraries(replace(bench.machine, image_root=tmp_path)).found == "there is no RDMA device"


def test_the_check_is_made_where_an_image_is_given(bench: Bench, tmp_path: Path) -> None:
    assert "image" not in [it.check for it in examine(bench.machine)]
    assert [it.check for it in examine(replace(bench.machine, image_root=tmp_path))][-1] == "image"
