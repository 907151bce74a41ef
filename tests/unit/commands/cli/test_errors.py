"""What the system says is told with a code of ours and the next step."""

from __future__ import annotations

import errno
import os

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.commands.cli.errors import told
from nri_rdma.errors import ErrorCode, NriRdmaError, StateError


def _os_error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            _os_error(errno.EACCES, "/run/x"),
            "nri-rdma: PRIVILEGE: Permission denied: /run/x. Next: run it as root.",
        ),
        (KernelError("open netlink", errno.EPERM), "nri-rdma: PRIVILEGE: open netlink: EPERM. Next: run it as root."),
        (
            KernelError("list links", errno.ENOMEM, "rail0"),
            "nri-rdma: INVENTORY: list links: ENOMEM (rail0). Next: see which kernel and which host this is.",
        ),
        (
            _os_error(errno.ENOENT, "/x/y"),
            "nri-rdma: SETTING: No such file or directory: /x/y."
            " Next: name an existing path; a file that is to be written needs an existing directory.",
        ),
        (_os_error(errno.ENOSPC), "nri-rdma: SETTING: No space left on device. Next: see --help for the paths."),
    ],
)
def test_an_error_of_the_system_has_a_code_and_a_next_step(error: KernelError | OSError, text: str) -> None:
    assert str(told(error)) == text


def test_an_error_of_ours_stays_as_it_is() -> None:
    error: NriRdmaError = StateError(ErrorCode.STATE_LOCKED, "another daemon runs")
    assert told(error) is error
