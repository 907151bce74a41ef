"""Doing something once inside a network namespace."""

import threading
from collections.abc import Callable
from typing import TypeVar

from nri_rdma.host.netlink.namespaces.netns_visit import enter

T = TypeVar("T")


def in_namespace(fd: int, work: Callable[[], T]) -> T:
    """What `work` returns when it runs once inside the namespace of `fd`, in a thread of its own; its exceptions pass
    through."""
    results: list[T] = []
    errors: list[BaseException] = []

    def visit() -> None:
        try:
            enter(fd)
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked, nothing is lost
            errors.append(error)

    thread = threading.Thread(target=visit, name="netns-visit", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
