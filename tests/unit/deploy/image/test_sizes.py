"""A file is counted for the part that a person knows it by."""

import pytest

from deploy.image import layout
from deploy.image.sizes import part_of


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (f"{layout.SITE}/grpc/_cython/cygrpc.so", "grpc"),
        (f"{layout.SITE}/nri_rdma/__init__.py", "nri_rdma"),
        (f"{layout.STANDARD_LIBRARY}/json/decoder.py", "lib/python3.13: the standard library"),
        (f"{layout.FOLDER}/lib/libc.so.6", "lib/: shared libraries"),
        (f"{layout.PYTHON}", "bin/: interpreter, hooks"),
    ],
)
def test_a_file_has_its_part(name: str, part: str) -> None:
    assert part_of(name) == part
