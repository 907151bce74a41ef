"""A machine in namespaces of the test's own."""

from tests.contract.conftest import linux

__all__ = ["linux"]
