"""What of a Debian package and of a wheel comes into the image, and where."""

from pathlib import PurePosixPath

import pytest

from deploy.image.architecture import AMD64, ARM64
from deploy.image.layout import is_left_out, long_path, place_of_debian


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("usr/bin/python3.13", "opt/nri-rdma/bin/python3.13"),
        ("usr/lib/python3.13/json/decoder.py", "opt/nri-rdma/lib/python3.13/json/decoder.py"),
        ("usr/lib/aarch64-linux-gnu/libssl.so.3", "opt/nri-rdma/lib/libssl.so.3"),
        ("etc/libibverbs.d/mlx5.driver", "etc/libibverbs.d/mlx5.driver"),
        ("usr/share/doc/libc6/copyright", "usr/share/doc/libc6/copyright"),
        ("usr/share/doc/libc6/changelog.Debian.gz", None),
        ("usr/lib/python3.13/ensurepip/__init__.py", None),
        ("usr/lib/x86_64-linux-gnu/libssl.so.3", None),
        ("usr/bin/ldd", None),
    ],
)
def test_a_file_of_a_debian_package_has_its_place_or_none(name: str, place: str | None) -> None:
    assert place_of_debian(name, ARM64) == (None if place is None else PurePosixPath(place))


def test_pyverbs_lies_beside_the_wheels() -> None:
    found = place_of_debian("usr/lib/python3/dist-packages/pyverbs/device.so", AMD64)
    assert found == PurePosixPath("opt/nri-rdma/local/lib/python3.13/dist-packages/pyverbs/device.so")


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("kubernetes/client/api/__init__.py", False),
        ("kubernetes/client/api/core_v1_api.py", True),
        ("kubernetes/client/api_client.py", False),
        ("kubernetes/aio/__init__.py", True),
        ("kubernetes/config/kube_config_test.py", True),
        ("grpc/_cython/cygrpc.pyx", True),
        ("bin/nri-rdma", True),
        ("click-8.5.1.dist-info/RECORD", True),
        ("click-8.5.1.dist-info/METADATA", False),
        ("nri_rdma/daemon/daemon.py", False),
    ],
)
def test_a_file_of_a_wheel_is_left_out_where_nothing_imports_it(name: str, left_out: bool) -> None:
    assert is_left_out(name) == left_out


def test_the_path_in_programs_has_room_for_a_longer_folder() -> None:
    assert long_path().startswith("/opt/nri-rdma/./")
    assert PurePosixPath(long_path()) == PurePosixPath("/opt/nri-rdma/lib")
    assert len(long_path()) > len("/var/lib/kubelet/plugins/rdma.noderesource.dev/lib")
