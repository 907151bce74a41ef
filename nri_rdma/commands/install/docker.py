"""What Docker needs to have containers with our annotations served: a shim of containerd where containerd looks for
shims, an OCI runtime in front of runc that this shim finds first, and the hook program.

`docker run --runtime nri-rdma.v1` names the shim, so no file of Docker's is changed, and Docker needs no restart. Where
the shim is missing no such container starts. Therefore it comes last and goes first.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from nri_rdma.commands.hooked_cdi import HOOK
from nri_rdma.commands.install.changes import OwnFile
from nri_rdma.commands.install.hook import PROGRAM_MODE, HookSettings, at, hook_files
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.engine_setups import DOCKER_SHIM

RUNTIME = "nri-rdma.v1"
"""The name for `docker run --runtime`: containerd makes the name of the shim of it."""
SHIM = DOCKER_SHIM
OCI_RUNTIME = HOOK.parent / "docker/runc"
"""The shim of runc looks for a program of that name in PATH."""
SINCE = (23, 0)
"""The first Docker that takes the name of a shim for a runtime."""
SERVICE_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where services of systemd look for programs, containerd among them."""
_SHIM_OF_RUNC, _RUNC = "containerd-shim-runc-v2", "runc"
_MARK = "#!/bin/sh\n# Made by `nri-rdma install docker`; `nri-rdma uninstall docker` removes it.\n"
_CGROUPS = '"cgroupsPath":'
_HIDING = r"\\/|\\u00(2[d-fD-F]|3[0-9]|[4-7])"
"""Matches an escape of JSON for a character that a prefix may have; Go escapes `&`, `<` and `>` and none of them."""
_FIX = "run `nri-rdma install docker`"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerFiles:
    """The files for Docker below a root folder; the default is this machine's."""

    settings: HookSettings
    root: Path = Path("/")

    @property
    def program(self) -> Path:
        """The hook's place."""
        return at(self.root, HOOK)

    @property
    def oci_runtime(self) -> OwnFile:
        """The program in front of runc."""
        text = oci_runtime(self.settings)
        return OwnFile(path=at(self.root, OCI_RUNTIME), data=text.encode(), is_ours=_is_ours, mode=PROGRAM_MODE)

    @property
    def shim(self) -> OwnFile:
        """The shim, which finds that program before runc."""
        return OwnFile(path=at(self.root, SHIM), data=shim().encode(), is_ours=_is_ours, mode=PROGRAM_MODE)

    def all(self, source: Path) -> tuple[OwnFile, ...]:
        """Return the hook (module and program, copies of `source`), and what calls it, in the order of writing. Raises
        OSError."""
        return (*hook_files(self.root, source), self.oci_runtime, self.shim)

    def refuse_lacking(self) -> None:
        """Raise NriRdmaError where containerd would not find what our programs become."""
        path = ":".join(str(at(self.root, Path(folder))) for folder in SERVICE_PATH)
        for name in (_SHIM_OF_RUNC, _RUNC):
            if shutil.which(name, path=path) is None:
                what = f"{name} is not there"
                hint = f"install containerd and runc, or link {name} into {SHIM.parent}"
                raise NriRdmaError(ErrorCode.INSTALL, what, where=":".join(SERVICE_PATH), hint=hint)


def shim() -> str:
    """Return the text of the shim. It starts no container where our runc is missing: runc itself would be found
    then, and would start it bare."""
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
    """Return the text of the program in front of runc. It is a shell script because every container with the runtime
    pays it, several times; Python starts for those that ask.

    Docker gives a shim that it has no settings of no word on who makes cgroups; their path says it. Docker writes the
    one of a container after its annotations, one of which may have that name.

    What is looked for is a line of bytes, whatever the locale: a key at the end of one may have its colon on the next.
    Escapes that may hide a part of a key are a question, too; the hook reads them. Go escapes none of these.
    """
    key = f'"{settings.annotation_prefix}'
    escaped = settings.annotation_prefix.replace(".", "\\.")  # nothing else in a prefix has a meaning for grep
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
    """Raise NriRdmaError for a Docker that takes no shim's name, by what `docker --version` prints."""
    found = re.match(r"Docker version (\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < SINCE:
        what = f"Docker {SINCE[0]} or newer is needed, and this is {' '.join(text.split())!r}"
        raise NriRdmaError(ErrorCode.INSTALL, what, where="docker --version", hint="upgrade Docker")


def _is_ours(data: bytes) -> bool:
    return data.startswith(_MARK.encode())
