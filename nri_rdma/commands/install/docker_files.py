"""The files that let Docker containers ask for devices by annotations: a containerd shim in a folder where containerd
looks for shims, an OCI runtime that this shim runs in place of runc, and the hook program.

`docker run --runtime nri-rdma.v1` names the shim, so none of Docker's files is changed, and Docker needs no restart.
The shim is written last and removed first: without the other files it would start no container.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from nri_rdma.commands.cdi.hooked_devices import HOOK
from nri_rdma.commands.common.changes import OwnFile
from nri_rdma.commands.install.hook import PROGRAM_MODE, HookSettings, at, hook_files
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.engine_setups import DOCKER_SHIM

RUNTIME = "nri-rdma.v1"
"""The name for `docker run --runtime`, from which containerd derives the file name of the shim."""
SHIM = DOCKER_SHIM
OCI_RUNTIME = HOOK.parent / "docker/runc"
"""The program that is run instead of runc. The runc shim looks for a program named `runc` in PATH."""
SINCE = (23, 0)
"""The first Docker release that accepts a shim's name as a runtime."""
SERVICE_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""The PATH of systemd services such as containerd."""
_SHIM_OF_RUNC, _RUNC = "containerd-shim-runc-v2", "runc"
_MARK = "#!/bin/sh\n# Made by `nri-rdma install docker`; `nri-rdma uninstall docker` removes it.\n"
_CGROUPS = '"cgroupsPath":'
_HIDING = r"\\/|\\u00(2[d-fD-F]|3[0-9]|[4-7])"
"""Matches a JSON escape of a character that an annotation prefix may contain. Go's encoder writes no such escape: it
escapes only `&`, `<` and `>`."""
_FIX = "run `nri-rdma install docker`"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerFiles:
    """The files for Docker. `root` is the folder that stands for `/`; the default is this machine's `/`."""

    settings: HookSettings
    root: Path = Path("/")

    @property
    def program(self) -> Path:
        """The path of the hook program."""
        return at(self.root, HOOK)

    @property
    def oci_runtime(self) -> OwnFile:
        """The program that the shim runs in place of runc. It asks the daemon first, then runs runc."""
        text = oci_runtime(self.settings)
        return OwnFile(path=at(self.root, OCI_RUNTIME), data=text.encode(), is_ours=_is_ours, mode=PROGRAM_MODE)

    @property
    def shim(self) -> OwnFile:
        """The shim that Docker starts. It runs the runc shim with a PATH in which our OCI runtime comes before runc."""
        return OwnFile(path=at(self.root, SHIM), data=shim().encode(), is_ours=_is_ours, mode=PROGRAM_MODE)

    def all(self, source: Path) -> tuple[OwnFile, ...]:
        """Return all files in the order of writing: the hook's module and program, copied from `source`, then the OCI
        runtime and the shim. Raises OSError if `source` cannot be read."""
        return (*hook_files(self.root, source), self.oci_runtime, self.shim)

    def refuse_lacking(self) -> None:
        """Raise NriRdmaError if containerd would not find runc or runc's shim, which our programs run in the end."""
        path = ":".join(str(at(self.root, Path(folder))) for folder in SERVICE_PATH)
        for name in (_SHIM_OF_RUNC, _RUNC):
            if shutil.which(name, path=path) is None:
                what = f"{name} is not there"
                hint = f"install containerd and runc, or link {name} into {SHIM.parent}"
                raise NriRdmaError(ErrorCode.INSTALL, what, where=":".join(SERVICE_PATH), hint=hint)


def shim() -> str:
    """Return the text of the shim, a shell script. The shim refuses to start a container if our OCI runtime is missing,
    because runc's shim would then run runc itself, and the container would start without its devices."""
    refusal = f"nri-rdma: OCI-STATE: there is no program, {OCI_RUNTIME}. Next: {_FIX}."
    return f"""{_MARK}\
# containerd runs it for `docker run --runtime {RUNTIME}`. It is the shim of runc, which finds our runc first.
if [ ! -x {OCI_RUNTIME} ]; then
    case " $* " in *" start "*) echo {shlex.quote(refusal)} >&2; exit 1 ;; esac
fi
PATH={OCI_RUNTIME.parent}:$PATH
export PATH
exec {_SHIM_OF_RUNC} "$@"
"""


def oci_runtime(settings: HookSettings) -> str:
    """Return the text of the program that runs in place of runc. It is a shell script, because each container runs it
    several times. Python starts only for containers that ask for devices.

    The script adds the option --systemd-cgroup if systemd manages cgroups. Docker does not pass this option to a
    runtime that is named by its shim, but the form of `cgroupsPath` shows it. The last `cgroupsPath` in the file is the
    container's; earlier ones may be annotations of that name.

    The script searches the bytes of config.json line by line, independent of the locale. A key at the end of a line
    counts, because its colon may be on the next line. If a JSON escape might hide part of a key, the hook is run, too,
    and parses the file; Go does not write such escapes.
    """
    key = f'"{settings.annotation_prefix}'
    escaped = settings.annotation_prefix.replace(".", "\\.")  # a prefix has no other character special to grep
    keys = f'"{escaped}(/[^"]*)?"[[:space:]]*(:|$)'
    hook = shlex.join((str(HOOK), *settings.words("create"), "--", _RUNC))
    refusal = f"nri-rdma: OCI-STATE: this hook cannot be run, {HOOK}. Next: {_FIX}."
    log_line = f'{{"level":"error","msg":"{refusal}"}}'
    return f"""{_MARK}\
# It is runc. What a container asks for by annotations is added to its configuration before.
PATH=:$PATH:
while :; do
    case $PATH in
    *:{OCI_RUNTIME.parent}:*) PATH=${{PATH%%:{OCI_RUNTIME.parent}:*}}:${{PATH#*:{OCI_RUNTIME.parent}:}} ;;
    *) break ;;
    esac
done
PATH=${{PATH#:}}
PATH=${{PATH%:}}
export PATH
case " $* " in
*" create "* | *" restore "*)
    bundle=. log=/dev/null before=
    for word; do
        case $before in
        --bundle) bundle=$word ;;
        --log) log=$word ;;
        esac
        before=$word
    done
    found=$([ -f "$bundle/config.json" ] || exit 2
        LC_ALL=C grep -aoE {shlex.quote(f'{keys}|{_HIDING}|{_CGROUPS} *"[^"]*"')} "$bundle/config.json")
    [ $? -gt 1 ] && found={shlex.quote(key)}
    case $found in
    *{shlex.quote(_CGROUPS)}*)
        cgroups=${{found##*{shlex.quote(_CGROUPS)}}}
        cgroups=${{cgroups#*'"'}}
        case ${{cgroups%%'"'*}} in
        /*) ;;
        *:*:*) set -- --systemd-cgroup "$@" ;;
        esac
        ;;
    esac
    case $found in
    *{shlex.quote(key)}* | *\\\\*)
        [ -x {HOOK} ] && read -r first < {HOOK} && interpreter=${{first#??}} &&
            [ -x "${{interpreter%% *}}" ] && exec {hook} "$@"
        echo {shlex.quote(log_line)} >> "$log"
        exit 1
        ;;
    esac
    ;;
esac
exec {_RUNC} "$@"
"""


def refuse_version(text: str) -> None:
    """Raise NriRdmaError if Docker is too old to accept a shim's name as a runtime. `text` is the output of `docker
    --version`."""
    found = re.match(r"Docker version (\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < SINCE:
        what = f"Docker {SINCE[0]} or newer is needed, and this is {' '.join(text.split())!r}"
        raise NriRdmaError(ErrorCode.INSTALL, what, where="docker --version", hint="upgrade Docker")


def _is_ours(data: bytes) -> bool:
    return data.startswith(_MARK.encode())
