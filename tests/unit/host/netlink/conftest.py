"""A machine in namespaces of the test's own, for tests that need root."""

from tests.contract.conftest import linux

__all__ = ["linux"]
