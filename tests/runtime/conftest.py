"""What tests against a real runtime share."""

from tests.rig.fixtures import containerd, cri, eight, host_equal

__all__ = ["containerd", "cri", "eight", "host_equal"]
