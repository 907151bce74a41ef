"""Images are made once; only for who asked for them (python -m tests.image)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.image.__main__ import ALL
from deploy.image.architecture import ARCHITECTURES, Architecture
from deploy.image.steps import CACHE, CACHE_VARIABLE
from tests.image.root import Root, unpack
from tests.parts import PROJECT

RUN = "NRI_RDMA_IMAGE"
"""The environment's variable that python -m tests.image sets."""
collect_ignore_glob = [] if RUN in os.environ else ["test_*.py"]
_LONGEST_S = 600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests here their time: the first one makes an image."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(_LONGEST_S))


def make_archive(arch: str, archive: Path, cache: Path = CACHE) -> Path:
    """Make the image as a person does, and show the sizes of its parts."""
    command = [sys.executable, "-m", "deploy.image", "--arch", arch, "--out", str(archive)]
    environment = {**os.environ, CACHE_VARIABLE: str(cache)}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return archive


@pytest.fixture(scope="session", params=ARCHITECTURES.values(), ids=lambda it: it.name)
def architecture(request: pytest.FixtureRequest) -> Architecture:
    """Each architecture that there is an image for."""
    found: Architecture = request.param
    return found


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image of all architectures as one archive."""
    return make_archive(ALL, tmp_path_factory.mktemp("archive") / "image.tar")


@pytest.fixture(scope="session")
def root(archive: Path, architecture: Architecture, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """The image of one of them unpacked."""
    return unpack(archive, tmp_path_factory.mktemp(architecture.name) / "root", architecture)
