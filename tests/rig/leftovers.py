"""Removes what a rig left on the host: only what its record proves to be its own, and again without harm."""

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.rig.deadline import wait_until
from tests.rig.record import Record, all_records, may_sweep, own_network, sweeping

_CGROUPS = Path("/sys/fs/cgroup")
_CNI_RESULTS = Path("/var/lib/cni/results")
_SHIM_SOCKETS = Path("/run/containerd/s")
IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def sweep() -> None:
    """Removes rigs whose process died without a chance to clean up (kill -9)."""
    with sweeping():
        for record in all_records():
            if not record.owner_lives() and may_sweep(record.network):
                remove(record)


def remove(record: Record) -> None:
    """Ends the rig's processes, then undoes mounts, network namespaces, CNI results, cgroups and folders."""
    namespaces = network_namespaces(record)
    sockets = tuple(_shim_sockets(record))
    veths = tuple(_host_ends(record))
    _kill(record)
    _unmount_below(record.run)
    _unmount_below(record.root)
    for path in namespaces:
        _remove_namespace(path)
    for veth in veths:
        # The kernel ends a namespace, with its end of each veth, after the last reference, in its own time.
        wait_until(partial(_is_gone, Path("/sys/class/net", veth)), f"link {veth} to go with its namespace")
    for result in tuple(_cni_results(record)):
        result.unlink(missing_ok=True)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    _remove_empty(_CNI_RESULTS, _CNI_RESULTS.parent, _SHIM_SOCKETS, _SHIM_SOCKETS.parent / "fifo", _SHIM_SOCKETS.parent)
    _remove_cgroups(record)
    shutil.rmtree(record.root, ignore_errors=True)
    shutil.rmtree(record.run)
    _restore_forwarding(record)


def network_namespaces(record: Record) -> tuple[Path, ...]:
    """The namespaces of the rig's sandboxes: their own task bundles name them."""
    found = set()
    for bundle in record.state.glob("io.containerd.runtime.v2.task/*/*/config.json"):
        spec = json.loads(bundle.read_text())
        for namespace in spec.get("linux", {}).get("namespaces", ()):
            if namespace.get("type") == "network" and "/netns/cni-" in namespace.get("path", ""):
                found.add(Path(namespace["path"]))
    return tuple(sorted(found))


def _kill(record: Record) -> None:
    # A daemon would act on what it sees end. The server before its shims, shims before workloads: a parent would report
    # and clean up what we end.
    for find in (_daemons, _servers, _shims, _workloads):
        # Twice: what was being forked while we looked is seen the second time.
        for _ in range(2):
            for pid in tuple(find(record)):
                _end(pid)


def _end(pid: int) -> None:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        # waitid reaps a child; for others a zombie or nothing in /proc is the end.
        wait_until(lambda: _has_ended(pid), f"process {pid} to end after SIGKILL")
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _has_ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in {"Z", "X"}


def _daemons(record: Record) -> Iterator[int]:
    started_by_runtime = f"{record.run}/nri-plugins/"
    for pid, words in _processes():
        if str(record.run / "nri.sock") in words or any(word.startswith(started_by_runtime) for word in words):
            yield pid


def _servers(record: Record) -> Iterator[int]:
    return (pid for pid, words in _processes() if words[1:3] == ["--config", str(record.config)])


def _shims(record: Record) -> Iterator[int]:
    for pid, words in _processes():
        of_containerd = "containerd-shim" in words[0] and str(record.address) in words
        of_crio = words[0].endswith("/conmon") and any(word.startswith(f"{record.run}/") for word in words)
        if of_containerd or of_crio:
            yield pid


def _workloads(record: Record) -> Iterator[int]:
    for folder in _cgroup_folders(record):
        for procs in (folder / "cgroup.procs", *folder.glob("**/cgroup.procs")):
            try:
                yield from (int(line) for line in procs.read_text().split())
            except OSError as error:
                # A shim may remove the cgroup while we look.
                if error.errno not in {errno.ENOENT, errno.ENODEV}:
                    raise


def _processes() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we read the list
        if words[0]:
            yield int(folder.name), words


def _shim_sockets(record: Record) -> Iterator[Path]:
    """The sockets of the rig's shims; each bundle holds its shim's address."""
    for name in ("address", "bootstrap.json"):
        for file in record.state.glob(f"io.containerd.runtime.v2.task/*/*/{name}"):
            text = file.read_text().strip()
            address = json.loads(text).get("address", "") if name == "bootstrap.json" else text
            if (path := address.removeprefix("unix://")).startswith(str(_SHIM_SOCKETS)):
                yield Path(path)


def _cni_results(record: Record) -> Iterator[Path]:
    """What CNI remembers of the rig's sandboxes: on the rig's own network, and of the same sandboxes on loopback."""
    for result in _CNI_RESULTS.glob(f"{record.name}-*-*"):
        sandbox = result.name.removeprefix(f"{record.name}-").rpartition("-")[0]
        yield from _CNI_RESULTS.glob(f"*-{sandbox}-*")


def _host_ends(record: Record) -> Iterator[str]:
    """The host's end of the veth of each sandbox: CNI's results name it."""
    for file in _CNI_RESULTS.glob(f"{record.name}-*-*"):
        for interface in json.loads(file.read_text()).get("result", {}).get("interfaces", ()):
            if not interface.get("sandbox"):
                yield interface["name"]


def _unmount_below(folder: Path) -> None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    for point in reversed([it for it in points if it.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", point], check=True, capture_output=True)


def _remove_namespace(path: Path) -> None:
    if _is_mount_point(path):
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)
    path.unlink(missing_ok=True)


def _is_mount_point(path: Path) -> bool:
    # Path.is_mount asks about folders; a namespace is mounted on a file.
    real = str(path.resolve())
    return any(line.split()[4] == real for line in Path("/proc/self/mountinfo").read_text().splitlines())


def _is_gone(path: Path) -> bool:
    return not path.exists()


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _cgroup_folders(record: Record) -> tuple[Path, ...]:
    """The rig's cgroup in the unified hierarchy and in each of v1."""
    name = record.cgroup_parent.lstrip("/")
    return tuple(path for path in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")) if path.is_dir())


def _remove_cgroups(record: Record) -> None:
    for folder in _cgroup_folders(record):
        deepest_first = sorted((it for it in folder.glob("**/") if it.is_dir()), key=lambda it: -len(it.parts))
        for path in dict.fromkeys([*deepest_first, folder]):
            wait_until(partial(_rmdir_cgroup, path), f"cgroup {path} to be empty")


def _rmdir_cgroup(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # busy: a process of it is still being reaped
    return True


def _restore_forwarding(record: Record) -> None:
    """CNI's ptp plugin turns forwarding on; the last rig of a network turns it off again where it was off."""
    others = {other.network for other in all_records()}
    if record.ip_forward == "0" and record.network == own_network() and record.network not in others:
        IP_FORWARD.write_text("0")
