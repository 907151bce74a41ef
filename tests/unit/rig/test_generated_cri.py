"""The rig's generated CRI messages are what its .proto file gives."""

from tests.rig import generate


def test_the_generated_cri_modules_are_current() -> None:
    assert generate.drift() == [], "run `make generate`, which writes tests/rig/pb anew"
