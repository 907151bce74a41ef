"""Makes a bare Debian able to run this project: `python3 -m tests.rig.setup`.

It installs the few Debian packages that are missing, builds the virtual environment, and fetches a container runtime
into a private folder; the machine's own package lists and runtimes stay as they are. Running it again does nothing
unless pyproject.toml or the list of packages changed. With `--venv-only` it makes the virtual environment and nothing
else: on any system, without root. Standard library only, and an older Python can read it far enough to be told so.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.rig import cache

# Raise it when a change of this file must run again on machines that are set up.
REVISION = 1
# The suites with containerd 2.1 and 1.7. Both packages need glibc 2.34, older than any machine we know.
CONTAINERD_SUITES = ("forky", "trixie")
# forky's runc wants a newer glibc than Debian 12 has, so these come from the machine's own suite.
PACKAGES_FROM_OWN_SUITE = ("runc", "containernetworking-plugins", "busybox-static")
KNOWN_SUITES = ("bookworm", "trixie")
OLDEST_PYTHON = (3, 11)
OLDEST_PIP = (25, 1)  # the first with --group
LIBRARY_PACKAGES = {"libseccomp.so.2": "libseccomp2"}
PROGRAMS = {"ip": "iproute2", "ethtool": "ethtool", "umount": "mount", "openssl": "openssl"}
"""What tests and the demo start on this machine, each with its Debian package."""
VENV_STAMP = cache.CACHE / "venv.stamp"
RUNTIME_STAMP = cache.RIG / "root.stamp"
LOCK = cache.CACHE / "setup.lock"
LOG = cache.CACHE / "setup.log"
APT = cache.RIG / "apt"


class SetupError(Exception):
    """What failed and what to do next, as a sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Sets up, or says in one sentence why it cannot."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.rig.setup", description="Makes a machine able to run this.")
    parser.add_argument("--venv-only", action="store_true", help="only the virtual environment: no root, any system")
    venv_only = parser.parse_args(arguments).venv_only
    done, work = (_venv_is_current, set_up_venv) if venv_only else (is_current, set_up)
    started = time.monotonic()
    try:
        check_python()
        if done():
            return 0
        cache.CACHE.mkdir(exist_ok=True)
        with _lock(LOCK):
            if done():
                return 0
            LOG.write_text("")
            work()
    except SetupError as failure:
        print(f"setup: {failure}", file=sys.stderr)
        return 1
    except OSError as failure:
        print(f"setup: {failure}. Next: see who owns {cache.CACHE}, and its free space.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted. Next: run it again; what was complete is kept.", file=sys.stderr)
        return 130
    _say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


def is_current() -> bool:
    """Whether everything the last set-up made is there, and was made for this very state of the project."""
    return _venv_is_current() and _runtime_is_current() and all(map(shutil.which, PROGRAMS))


def set_up() -> None:
    """Every step; the slow two, pip and the runtime, side by side."""
    install_system_packages()
    cache.RIG.mkdir(exist_ok=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        steps = [pool.submit(build_venv), pool.submit(fetch_runtime)]
    if failures := [str(failure) for step in steps if (failure := step.exception()) is not None]:
        raise SetupError(" ".join(failures))


def set_up_venv() -> None:
    """The virtual environment alone; nothing is installed on the machine for it."""
    if not _has_venv():
        raise SetupError(
            f"{sys.executable} cannot make virtual environments. Next: install the package with its modules venv and "
            "ensurepip (on Debian and Ubuntu: python3-venv), or name another Python: make SYSTEM_PYTHON=python3.13 ..."
        )
    build_venv()


def check_python() -> None:
    """Refuses a Python that the project does not run on."""
    if tuple(sys.version_info[:2]) < OLDEST_PYTHON:
        raise SetupError(
            f"{sys.executable} is Python {'.'.join(map(str, sys.version_info[:2]))}, but nri-rdma needs "
            f"{'.'.join(map(str, OLDEST_PYTHON))} or newer. Next: name one: make SYSTEM_PYTHON=python3.13 ..."
        )


def install_system_packages() -> None:
    """What the steps and tests call on this machine."""
    wanted = [] if _has_venv() else ["python3-venv"]
    wanted += [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if wanted:
        _apt_install(wanted)


def build_venv() -> None:
    """The virtual environment with the project in it, editable, and its development tools."""
    if _venv_is_current():
        return
    VENV_STAMP.unlink(missing_ok=True)
    python = cache.VENV / "bin/python"
    ours = str(cache.PROJECT / "nri_rdma/__init__.py")
    # In a checkout that was moved or copied, the programs beside this Python are still the old place's.
    if not _runs(python, f"import os, pip; os.chdir('/'); import nri_rdma; assert nri_rdma.__file__ == {ours!r}"):
        _say("making the virtual environment")
        _run([sys.executable, "-m", "venv", "--clear", str(cache.VENV)], "make the virtual environment")
    version = _run([str(python), "-c", "import pip; print(pip.__version__)"], "ask pip for its version").split(".")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    network = "Check that this machine reaches its package index, then run it again."
    if tuple(int(part) for part in version[:2]) < OLDEST_PIP:
        floor = ".".join(map(str, OLDEST_PIP))
        _run([*pip, f"pip>={floor}"], "bring pip up to date", network)
    _say("installing the project and its development tools with pip")
    _run([*pip, "-e", ".", "--group", "dev"], "install the project and its development tools", network)
    VENV_STAMP.write_text(_venv_key())
    _say("the virtual environment is complete")


def fetch_runtime() -> None:
    """Every containerd, runc, the CNI plugins and busybox, unpacked into the cache."""
    if _runtime_is_current():
        return
    RUNTIME_STAMP.unlink(missing_ok=True)
    own_suite = _codename()
    suites = _suites(own_suite)
    APT.mkdir(parents=True, exist_ok=True)
    (APT / "rig.sources").write_text(_private_sources(own_suite, suites))
    for folder in ("lists/partial", "cache/archives/partial", "packages"):
        (APT / folder).mkdir(parents=True, exist_ok=True)
    names = f"{', '.join(suites[:-1])} and {suites[-1]}"
    _say(f"reading the package lists of {names}")
    _apt_get(["update"], f"read the package lists of {names}", "Check the mirror in /etc/apt.")
    _say("fetching containerd, runc, CNI plugins and busybox")
    for stale in (APT / "packages").iterdir():
        stale.unlink()
    # All at once: reading the lists takes apt longer than fetching.
    wanted = [*PACKAGES_FROM_OWN_SUITE, *(f"containerd/{suite}" for suite in CONTAINERD_SUITES)]
    _apt_get(["download", *wanted], f"download {', '.join(wanted)}", "Run it again.", where=APT / "packages")
    _unpack(sorted((APT / "packages").glob("*.deb")))
    shutil.rmtree(APT)
    _check_libraries()
    if missing := cache.missing():
        names = ", ".join(str(path.relative_to(cache.ROOT)) for path in missing)
        raise SetupError(f"the packages of {own_suite} do not hold {names}. Next: report it with {LOG}.")
    RUNTIME_STAMP.write_text(_runtime_key())
    _say("the container runtime is complete")


def _suites(own_suite: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((own_suite, *CONTAINERD_SUITES)))


def _private_sources(codename: str, suites: tuple[str, ...]) -> str:
    from deploy import aptsources  # late: only Debian needs it, and an older Python cannot read it

    sources = aptsources.read_sources(Path("/etc/apt"))
    archive = aptsources.main_archive(sources, codename)
    if archive is None:
        raise SetupError(
            f"no apt source of this machine names {codename} with the component main. "
            "Next: add Debian's own archive to /etc/apt/sources.list.d."
        )
    stanzas = [archive.stanza(suites)]
    if (security := aptsources.security_archive(sources, codename)) is not None:
        stanzas.append(security.stanza((f"{codename}-security",)))
    return "\n".join(stanzas)


def _has_venv() -> bool:
    # Debian ships venv without ensurepip, and then venv makes an environment without pip.
    return _runs(Path(sys.executable), "import ensurepip, venv")


def _unpack(packages: Sequence[Path]) -> None:
    """Into a new folder first, so that whoever uses the old one never sees half of the new one."""
    fresh = cache.RIG / "root.new"
    old = cache.RIG / "root.old"
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    fresh.mkdir()
    for package in packages:
        target = fresh / "containerd-1.7" if package.name.startswith("containerd_1.7") else fresh
        target.mkdir(exist_ok=True)
        _run(["dpkg", "-x", str(package), str(target)], f"unpack {package.name}", "Check the free disk space.")
    if cache.ROOT.exists():
        cache.ROOT.rename(old)
    fresh.rename(cache.ROOT)
    shutil.rmtree(old, ignore_errors=True)


def _check_libraries() -> None:
    """Installs the shared libraries that runc and containerd miss here, or names them."""
    missing = _missing_libraries()
    if not missing:
        return
    if unknown := sorted(missing - LIBRARY_PACKAGES.keys()):
        raise SetupError(
            f"the fetched containerd or runc needs {', '.join(unknown)}, which this machine lacks. "
            "Next: install the Debian package that holds it."
        )
    _apt_install(sorted(LIBRARY_PACKAGES[name] for name in missing))


def _missing_libraries() -> set[str]:
    missing = set()
    containerds = [program for release in cache.FETCHED for program in release.programs()]
    for program in (*containerds, cache.RUNC, cache.CNI_PLUGINS / "ptp"):
        # A static program makes ldd answer 1 and nothing we look for.
        text = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        missing |= {line.split()[0] for line in text.splitlines() if "not found" in line}
    return missing


def _apt_install(packages: Sequence[str]) -> None:
    if os.geteuid() != 0:
        raise SetupError(f"the Debian packages {', '.join(packages)} are missing. Next: run it as root.")
    _say(f"installing {', '.join(packages)}")
    install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages]
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    if _logged(install, env=env).returncode != 0:
        # The machine's package lists may be missing or older than its mirror.
        _run(["apt-get", "update", "-q"], "read this machine's package lists", "Check the mirror in /etc/apt.", env=env)
        _run(install, f"install {', '.join(packages)}", "Install them by hand.", env=env)


def _apt_get(arguments: Sequence[str], purpose: str, hint: str, where: Path | None = None) -> None:
    """apt-get on private lists and caches: it reads this machine's keys and nothing else of its state."""
    from deploy import aptsources  # late, as above

    own = _codename()
    options = aptsources.options_beside(APT / "rig.sources", "amd64") | {
        "APT::Default-Release": f"/^{own}(-security)?$/",
        "Acquire::Check-Valid-Until": "false",  # a testing suite's Release file can be past its date
    }
    flags = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    _run(["apt-get", "-q", *flags, *arguments], purpose, hint, where=where)


def _codename() -> str:
    words = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    codename = words.get("VERSION_CODENAME", "").strip('"')
    if codename not in KNOWN_SUITES:
        name = words.get("PRETTY_NAME", "something else").strip('"')
        raise SetupError(f"the rig runs on Debian 12 and 13, this is {name}. Next: use one of these, or a container.")
    return codename


def _venv_is_current() -> bool:
    return _holds(VENV_STAMP, _venv_key()) and (cache.VENV / "bin/python").exists()


def _runtime_is_current() -> bool:
    return _holds(RUNTIME_STAMP, _runtime_key()) and not cache.missing()


def _venv_key() -> str:
    """What the virtual environment depends on; it cannot be moved, so its place belongs to it."""
    return _digest(str(cache.PROJECT), sys.version, (cache.PROJECT / "pyproject.toml").read_text())


def _runtime_key() -> str:
    return _digest(*CONTAINERD_SUITES, *PACKAGES_FROM_OWN_SUITE, _codename())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join((str(REVISION), *parts)).encode()).hexdigest()


def _holds(stamp: Path, key: str) -> bool:
    return stamp.exists() and stamp.read_text() == key


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another set-up is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _runs(python: Path, code: str) -> bool:
    if not python.exists():
        return False
    return subprocess.run([str(python), "-c", code], capture_output=True, check=False).returncode == 0


def _run(
    command: Sequence[str],
    purpose: str,
    hint: str = "Run it again.",
    where: Path | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """The command's output, or a sentence that names the purpose, the last words of the command and the next step."""
    done = _logged(command, where=where, env=env)
    if done.returncode == 0:
        return done.stdout
    words = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in words if re.match(r"(E|ERROR|\w+Error): ", line)] or words[-2:]
    said = " / ".join(errors[:3]) or f"exit code {done.returncode}"
    raise SetupError(f"could not {purpose}: {said}. Next: {hint} The whole output is in {LOG}.")


def _logged(
    command: Sequence[str], where: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    folder = where or cache.PROJECT
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as missing:
        raise SetupError(f"{command[0]} is not on this machine. Next: use Debian 12 or 13 (amd64).") from missing
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
    return done


def _say(text: str) -> None:
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
