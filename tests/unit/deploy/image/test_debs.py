"""debs.lock has every package of the image for every architecture, and its files are taken by their hashes."""

import pytest

from deploy.image import debs
from deploy.image.architecture import AMD64, ARCHITECTURES, Architecture
from deploy.image.steps import ImageError


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=lambda it: it.name)
def test_the_lock_has_every_package_of_the_image(architecture: Architecture) -> None:
    found = debs.locked((*debs.PACKAGES, debs.EMULATOR), architecture)
    assert [it.name for it in found] == [*debs.PACKAGES, debs.EMULATOR]
    assert {it.architecture for it in found} == {architecture.name, "all"}
    assert all(len(it.sha256) == 64 and it.path.startswith("pool/") for it in found)


def test_a_package_that_the_lock_lacks_is_named_with_the_next_step() -> None:
    with pytest.raises(ImageError, match=r"debs\.lock lacks bash for amd64\. Next: python -m deploy\.image --renew"):
        debs.locked(("libc6", "bash"), AMD64)


def test_comments_of_a_lock_are_no_packages() -> None:
    (only,) = debs.read_lock("# a comment\n\nlibc6 2.41-12 amd64 0123 pool/main/g/glibc/libc6_2.41-12_amd64.deb\n")
    assert (only.name, only.version, only.file) == ("libc6", "2.41-12", "libc6_2.41-12_amd64.deb")
