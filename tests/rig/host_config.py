"""What an administrator configured on the host, while a test's pods have the netdevs that it is on."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.rig import hoststate
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.fabric import batch

_ADD = re.compile(r"\badd\b")


@contextmanager
def on_host(*commands: str, undo: tuple[str, ...] = (), ignoring: str = "$.") -> Iterator[None]:
    """Configure the host with these commands of `ip`, see at the end that pods have left it so, and remove it again:
    with the same commands and `delete` in place of `add`, and with those of `undo`. `ignoring` is a pattern of
    differences that the kernel makes."""

    def differences(before: hoststate.HostState) -> list[str]:
        return [it for it in hoststate.difference(before, hoststate.take()) if not re.search(ignoring, it)]

    batch(commands, "configure the host")
    try:
        before = _settled()
        yield
        with suppress(DeadlineError):
            wait_until(lambda: not differences(before), "the host as it was configured", 5)
        found = differences(before)
        assert not found, "\n".join(found)
    finally:
        added = [it for it in reversed(commands) if _ADD.search(it)]
        batch([*(_ADD.sub("delete", it, count=1) for it in added), *undo], "restore the host")


def _settled() -> hoststate.HostState:
    """The kernel makes what belongs to an address of IPv6 a little later."""
    looks = [hoststate.take()]

    def is_settled() -> bool:
        looks.append(hoststate.take())
        return not hoststate.difference(looks[-2], looks[-1])

    wait_until(is_settled, "the host to be settled", 5)
    return looks[-1]


def kernel_makes(kind: str) -> bool:
    """Whether the kernel has links of a kind that needs no more than a table's number."""
    made = ["unshare", "--net", "ip", "link", "add", "name", "probe", "type", kind, "table", "9"]
    return subprocess.run(made, capture_output=True, check=False).returncode == 0
