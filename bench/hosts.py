"""Network namespaces with links in them: hosts and pods of the bench's own.

A host is a namespace with the netdevs of a described node, each a veth whose other end is up in a second namespace.
All are kept by files below one folder, and end with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rig.node import Node

_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_MS_BIND, _MNT_DETACH = 4096, 2  # sys/mount.h
_libc = ctypes.CDLL(None, use_errno=True)


def make_namespace(path: Path) -> None:
    """A network namespace that the file `path` keeps. Raises OSError."""
    path.touch()

    def work() -> None:
        _check(_libc.unshare(_CLONE_NEWNET), "unshare")
        source = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        _check(_libc.mount(source.encode(), os.fsencode(path), None, _MS_BIND, None), f"mount {path}")

    _in_thread(work)


def bind(source: Path, path: Path) -> None:
    """Another path of a namespace. Raises OSError."""
    path.touch()
    _check(_libc.mount(os.fsencode(source), os.fsencode(path), None, _MS_BIND, None), f"mount {path}")


def unbind(path: Path) -> None:
    """Take a path of a namespace away. Raises OSError."""
    _check(_libc.umount2(os.fsencode(path), _MNT_DETACH), f"umount {path}")
    path.unlink()


def in_namespace(path: Path, work: Callable[[], None]) -> None:
    """Do it in that namespace; its exceptions pass through."""

    def enter_and_work() -> None:
        with path.open() as file:
            _check(_libc.setns(file.fileno(), _CLONE_NEWNET), f"enter {path}")
        work()

    _in_thread(enter_and_work)


class Host(AbstractContextManager["Host"]):
    """A namespace with the netdevs of a node, from construction to close()."""

    def __init__(self, folder: Path, node: Node) -> None:
        folder.mkdir(parents=True)
        self.path, self._peers, self.pods = folder / "host", folder / "peers", folder / "pods"
        self.pods.mkdir()
        self._made: list[Path] = []
        try:
            for path in (self.path, self._peers):
                make_namespace(path)
                self._made.append(path)
            self.ip(f"link set lo up\n{_links(node, self._peers)}")
            self._batch(self._peers, "\n".join(f"link set p{number} up" for number in range(len(node.netdevs))))
        except BaseException:
            self.close()
            raise
        shown = json.loads(self._run(self.path, ["ip", "-j", "link", "show"]))
        wanted = {netdev.name for netdev in node.netdevs}
        self.ifindexes = {it["ifname"]: int(it["ifindex"]) for it in shown if it["ifname"] in wanted}

    def inside(self, command: list[str]) -> list[str]:
        """The command, to be run in the host's namespace; the process is the command's own."""
        return ["nsenter", f"--net={self.path}", *command]

    def ip(self, batch: str) -> None:
        """Lines for `ip -batch`, in the host's namespace. Raises RuntimeError."""
        self._batch(self.path, batch)

    def names(self) -> frozenset[str]:
        """The links that the host has now."""
        return frozenset(it["ifname"] for it in json.loads(self._run(self.path, ["ip", "-j", "link", "show"])))

    def make_pod(self, name: str) -> Path:
        """The namespace of a new pod."""
        path = self.pods / name
        make_namespace(path)
        self._made.append(path)
        return path

    def remove_pod(self, path: Path) -> None:
        """The end of a pod's namespace."""
        unbind(path)
        self._made.remove(path)

    def close(self) -> None:
        """Let everything go."""
        while self._made:
            unbind(self._made.pop())

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def _batch(self, namespace: Path, text: str) -> None:
        self._run(namespace, ["ip", "-batch", "-"], text)

    def _run(self, namespace: Path, command: list[str], text: str = "") -> str:
        done = subprocess.run(
            ["nsenter", f"--net={namespace}", *command], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def _links(node: Node, peers: Path) -> str:
    return "\n".join(
        f"link add name {netdev.name} address {netdev.mac} mtu {netdev.mtu}"
        f" type veth peer name p{number} mtu {netdev.mtu} netns {peers}\nlink set {netdev.name} up"
        for number, netdev in enumerate(node.netdevs)
    )


def _in_thread(work: Callable[[], None]) -> None:
    """In a thread that ends: a namespace is a thread's, and must not stay on one that goes on."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _check(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
