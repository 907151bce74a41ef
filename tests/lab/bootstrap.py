"""Root folders out of Debian packages, with mmdebstrap."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.aptsources import main_archive, read_sources
from tests.lab.errors import LabError

# Its mounts, and every process it starts, live in namespaces that die with us, however we end: nothing goes on
# writing, and nobody can remove the host's /dev through a left-over mount.
CONTAINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"),
)


def bootstrap(
    root: Path, log: Path, *, suites: Sequence[str], packages: Sequence[str], left_out: Sequence[str], variant: str
) -> None:
    """Packages of the first suite (`NAME/SUITE`: of another) in a new folder; variant `extract` configures nothing."""
    options = {
        "Acquire::Check-Valid-Until": "false",  # a testing suite's Release file can be past its date
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        **_apt_proxies(),
    }
    mirror = _debian_mirror()
    command = [
        *CONTAINED,
        *("mmdebstrap", "--mode=root", "--format=directory", f"--variant={variant}", "--verbose"),
        *(f'--aptopt={name} "{value}"' for name, value in options.items()),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in left_out),
        f"--include={','.join(packages)}",
        *(suites[0], str(root), *(f"deb {mirror} {suite} main" for suite in suites)),
    ]
    code = run_logged(command, log)
    if code != 0:
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-12:])
        raise LabError(f"mmdebstrap failed ({code}):\n  {last}\nNext: can apt-get reach its mirror?")


def run_logged(command: Sequence[str], log: Path) -> int:
    """The exit code; when we are interrupted, the end of the last process that the command started is awaited."""
    pipe, nothing, merged = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
    with log.open("ab") as out, subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=merged) as process:
        assert process.stdout is not None  # asked for above
        try:
            shutil.copyfileobj(process.stdout, out)
        except BaseException:
            process.kill()
            shutil.copyfileobj(process.stdout, out)
            raise
        return process.wait()


def _debian_mirror() -> str:
    """The archive that serves this machine's own release serves the lab's suites too."""
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', Path("/etc/os-release").read_text(), re.MULTILINE)
    codename = found.group(1) if found else "none"
    archive = main_archive(read_sources(Path("/etc/apt")), codename)
    if archive is None:
        raise LabError(
            f"no apt source of this machine names {codename} with the component main. "
            "Next: add Debian's own archive to /etc/apt/sources.list.d."
        )
    return archive.uris[0]


def _apt_proxies() -> dict[str, str]:
    """mmdebstrap does not read the machine's apt configuration; a machine behind a proxy needs this part of it."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r'^(Acquire::https?::Proxy\S*) "([^"]+)";$', dump, re.MULTILINE))
