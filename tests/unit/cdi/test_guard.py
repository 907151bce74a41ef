"""The guard as CDI specs bring it."""

from __future__ import annotations

from nri_rdma.cdi.guard import guard
from nri_rdma.cdi.spec import HookName


def test_the_runtime_calls_the_guard_for_what_the_container_has_to_have_with_its_flags() -> None:
    made = guard("/opt/hook", ("--control-socket", "/s"), "--device", "vendor/kind=name")
    assert (made.hook_name, made.path) == (HookName.CREATE_RUNTIME, "/opt/hook")
    assert made.args == ("nri-rdma-hook", "verify", "--control-socket", "/s", "--device", "vendor/kind=name")
    assert made.timeout == 10
