"""The programs that have Docker's containers ask: shell scripts, which are run here with a runc that tells its call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.commands.common.changes import carry_out_all, to_write
from nri_rdma.commands.install.docker_files import DockerFiles, oci_runtime, refuse_version, shim
from nri_rdma.commands.install.hook import HookSettings
from nri_rdma.errors import ErrorCode, NriRdmaError

PREFIX = "rdma.noderesource.dev"
SETTINGS = HookSettings(annotation_prefix=PREFIX, socket=Path("/run/a b'c/oci.sock"))
TELLS = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\nexit 7\n'
HOOK = Path(__file__).parents[4] / "hooks/nri-rdma-oci-hook"
SHELLS = [it for it in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(it[0])]


class Programs:
    """Both scripts below a folder, beside a runc, a shim of runc and a hook that tell how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hook = folder / "usr/local/lib/nri-rdma/nri-rdma-oci-hook"
        self.ours = folder / "usr/local/lib/nri-rdma/docker/runc"
        self.shim = folder / "usr/local/bin/containerd-shim-nri-rdma-v1"
        self.real = folder / "usr/bin/runc"
        for path, text in {
            self.hook: TELLS,
            self.ours: self.here(oci_runtime(SETTINGS)),
            self.shim: self.here(shim()),
            self.real: TELLS,
            folder / "usr/bin/containerd-shim-runc-v2": TELLS + "exec runc $PATH",
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        self.log = folder / "log.json"
        self.config = folder / "bundle/config.json"
        self.config.parent.mkdir()

    def here(self, text: str) -> str:
        return text.replace("/usr/local/", f"{self.folder}/usr/local/")

    def run(
        self, program: Path, *words: str, shell: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.ours.parent}:{self.real.parent}:/usr/bin:/bin", **variables}
        command = [*shell, str(program), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=20)

    def create(self, spec: Any, shell: tuple[str, ...] = ()) -> list[str]:
        """Have a container made with this configuration, as containerd's shim does; what was called in the end."""
        self.config.write_text(json.dumps(spec, separators=(",", ":")))  # as Go writes it
        done = self.run(self.ours, *self.words, shell=shell)
        assert done.returncode == 7, done.stderr
        return done.stdout.splitlines()

    @property
    def words(self) -> list[str]:
        own = ["--root", "/r", "--log", str(self.log), "--log-format", "json"]
        return [*own, "create", "--bundle", str(self.config.parent), "--pid-file", "/p", "ab12"]

    @property
    def asked(self) -> list[str]:
        """The hook's words for a container that asks."""
        own = ["create", "--annotation-prefix", PREFIX, "--socket", "/run/a b'c/oci.sock"]
        return [self.hook.name, *own, "--", "runc"]


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_who_does_not_ask_is_made_by_runc_with_the_same_words(programs: Programs, shell: list[str]) -> None:
    others = {"rdma.noderesource.device/pod": "1", "x": f"{PREFIX}/pod", "rdma-noderesource.dev/pod": "1"}
    spec = {"annotations": others, "linux": {"cgroupsPath": "/docker/ab12"}}
    shell_of = (shutil.which(shell[0]) or "", *shell[1:])
    assert programs.create(spec, shell_of) == ["runc", *programs.words]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("key", [PREFIX, f"{PREFIX}/pod", f"{PREFIX}/container.a"])
def test_who_asks_is_made_by_the_hook_which_becomes_runc(programs: Programs, shell: list[str], key: str) -> None:
    shell_of = (shutil.which(shell[0]) or "", *shell[1:])
    assert programs.create({"annotations": {key: "1"}}, shell_of) == [*programs.asked, *programs.words]


def test_a_prefix_of_another_kind_is_seen_too(programs: Programs) -> None:
    settings = HookSettings(annotation_prefix="my-org.example/rdma")
    programs.ours.write_text(programs.here(oci_runtime(settings)))
    for key, is_asked in (("my-org.example/rdma/pod", True), ("my-org_example/rdma", False), (PREFIX, False)):
        programs.config.write_text(json.dumps({"annotations": {key: "1"}}))
        done = programs.run(programs.ours, *programs.words)
        assert (done.stdout.startswith("nri-rdma-oci-hook\n"), done.stderr) == (is_asked, "")


LOCALES = ("C", "C.UTF-8", "en_US.UTF-8")
STRANGE = {
    "a line before the colon": b'{"annotations": {"rdma.noderesource.dev/pod"\n\t: "1"}}',
    "a carriage return": b'{"annotations": {"rdma.noderesource.dev/pod"\r\n: "1"}}',
    "an escaped slash": b'{"annotations": {"rdma.noderesource.dev\\/pod":"1"}}',
    "an escaped dot": b'{"annotations": {"rdma\\u002enoderesource.dev/pod":"1"}}',
    "an escaped letter": b'{"annotations": {"\\u0072dma.noderesource.dev/pod":"1"}}',
    "a byte that is no text": b'{"a": "\xff\xfe", "annotations": {"rdma.noderesource.dev/pod":"1"}}',
    "a byte of zero": b'{"a": "\x00", "annotations": {"rdma.noderesource.dev/pod":"1"}}',
    "a byte of zero before the key": b'\x00{"annotations": {"rdma.noderesource.dev/pod":"1"}}',
}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("how", STRANGE)
@pytest.mark.parametrize("locale", LOCALES)
def test_who_asks_in_json_that_go_does_not_write_is_for_the_hook(
    programs: Programs, shell: list[str], how: str, locale: str
) -> None:
    programs.config.write_bytes(STRANGE[how])
    shell_of = (shutil.which(shell[0]) or "", *shell[1:])
    done = programs.run(programs.ours, *programs.words, shell=shell_of, LC_ALL=locale)
    assert done.stdout.splitlines() == [*programs.asked, *programs.words]


def test_what_go_escapes_is_no_question(programs: Programs) -> None:
    """Python would start for each `sh -c "a && b"`."""
    programs.config.write_bytes(b'{"process": {"args": ["a \\u0026\\u0026 b \\u003c c \\u003e d \\u2028 \\\\ \\n"]}}')
    assert programs.run(programs.ours, *programs.words).stdout.splitlines() == ["runc", *programs.words]


def test_a_configuration_that_is_no_file_is_for_the_hook_at_once(programs: Programs) -> None:
    os.mkfifo(programs.config)
    done = programs.run(programs.ours, *programs.words)
    assert done.stdout.splitlines() == [*programs.asked, *programs.words]


@pytest.mark.parametrize(
    "place", ["{real}:{ours}", "{ours}:{ours}:{real}", "/x:{ours}:/y:{real}", "{real}:{ours}:{ours}"]
)
def test_our_runc_does_not_run_itself_wherever_in_the_path_it_is(programs: Programs, place: str) -> None:
    programs.real.write_text('#!/bin/sh\necho "$PATH"\n')
    path = place.format(ours=programs.ours.parent, real=programs.real.parent) + ":/usr/bin:/bin"
    done = programs.run(programs.ours, "state", "ab12", PATH=path)
    without = [it for it in path.split(":") if it != str(programs.ours.parent)]
    assert done.stdout.splitlines() == [":".join(without)]


@pytest.mark.parametrize("words", [["state", "ab12"], ["delete", "--force", "ab12"], ["--version"], []], ids=str)
def test_all_else_is_runc_at_once(programs: Programs, words: list[str]) -> None:
    done = programs.run(programs.ours, *words)
    assert (done.returncode, done.stdout.splitlines()) == (7, ["runc", *words])


def test_cgroups_that_systemd_makes_are_told_by_their_path(programs: Programs) -> None:
    """Docker tells runc itself by an option of the shim, which a shim that it has no settings of does not get."""
    systemd = {"linux": {"cgroupsPath": "system.slice:docker:ab12"}}
    assert programs.create(systemd) == ["runc", "--systemd-cgroup", *programs.words]
    asks = {**systemd, "annotations": {f"{PREFIX}/pod": "1"}}
    assert programs.create(asks) == [*programs.asked, "--systemd-cgroup", *programs.words]
    for path in ("/docker/ab12", "/a:b/c:d", ""):
        assert "--systemd-cgroup" not in programs.create({"linux": {"cgroupsPath": path}})
    assert "--systemd-cgroup" in programs.create({"linux": {"cgroupsPath": ":docker:ab12"}})


def test_an_annotation_does_not_say_who_makes_cgroups(programs: Programs) -> None:
    """Docker writes annotations before `linux`."""
    for of_author, path in (("a:b:c", "/docker/ab12"), ("/x", "system.slice:docker:ab12")):
        spec = {"annotations": {"cgroupsPath": of_author}, "linux": {"cgroupsPath": path}}
        assert ("--systemd-cgroup" in programs.create(spec)) == (":" in path)


def test_a_container_that_is_restored_from_a_checkpoint_is_for_the_hook_too(programs: Programs) -> None:
    programs.config.write_text(json.dumps({"annotations": {PREFIX: "1"}}))
    words = ["restore", "--bundle", str(programs.config.parent), "ab12"]
    assert programs.run(programs.ours, *words).stdout.splitlines() == [*programs.asked, *words]


def test_a_configuration_that_cannot_be_read_is_for_the_hook_which_says_why(programs: Programs) -> None:
    done = programs.run(programs.ours, *programs.words)
    assert done.stdout.splitlines() == [*programs.asked, *programs.words]


@pytest.mark.parametrize("fault", ["missing", "no program", "no interpreter"])
def test_without_the_hook_who_asks_is_refused_where_docker_looks(programs: Programs, fault: str) -> None:
    programs.config.write_text(json.dumps({"annotations": {PREFIX: "1"}}))
    match fault:
        case "missing":
            programs.hook.unlink()
        case "no program":
            programs.hook.chmod(0o644)
        case "no interpreter":
            programs.hook.write_text("#!/bin/nothing -IS\n")
    done = programs.run(programs.ours, *programs.words)
    assert (done.returncode, done.stdout) == (1, "")
    told = json.loads(programs.log.read_text())
    assert told["level"] == "error"
    assert told["msg"].startswith("nri-rdma: OCI-STATE: ")
    assert "nri-rdma install docker" in told["msg"]


def test_the_shim_has_that_of_runc_find_our_runc_first(programs: Programs) -> None:
    words = ["-namespace", "moby", "-id", "ab12", "start"]
    done = programs.run(programs.shim, *words)
    assert done.stdout.splitlines() == ["containerd-shim-runc-v2", *words]
    real = programs.folder / "usr/bin/containerd-shim-runc-v2"
    real.write_text('#!/bin/sh\necho "$PATH"\ncommand -v runc\n')
    path, found = programs.run(programs.shim).stdout.splitlines()
    assert (path.split(":")[0], found) == (str(programs.ours.parent), str(programs.ours))


def test_without_our_runc_no_container_starts_and_one_that_runs_is_cleaned_up(programs: Programs) -> None:
    programs.ours.unlink()
    done = programs.run(programs.shim, "-id", "ab12", "start")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("nri-rdma: OCI-STATE: ")
    assert programs.run(programs.shim, "-id", "ab12", "delete").stdout.startswith("containerd-shim-runc-v2\n")


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        ("Docker version 28.5.2+dfsg3, build 89c5e8f\n", True),
        ("Docker version 23.0.0, build e92dd87", True),
        ("Docker version 20.10.24+dfsg1, build 297e128", False),
        ("podman version 5.4.2", False),
        ("", False),
    ],
)
def test_a_docker_that_takes_no_shims_name_is_refused(text: str, is_fine: bool) -> None:
    if is_fine:
        refuse_version(text)
        return
    with pytest.raises(NriRdmaError) as caught:
        refuse_version(text)
    assert caught.value.code is ErrorCode.INSTALL


def test_all_files_are_known_as_ours_again_and_can_be_run(tmp_path: Path) -> None:
    files = DockerFiles(settings=SETTINGS, root=tmp_path).all(HOOK)
    carry_out_all(to_write(files))
    assert [file.path.stat().st_mode & 0o777 for file in files] == [0o644, *[0o755] * 3]
    for file in files:
        assert file.is_ours(file.path.read_bytes()), file.path
        assert not file.is_ours(b"#!/bin/sh\nexec runc\n"), file.path


@pytest.mark.parametrize("missing", ["containerd-shim-runc-v2", "runc"])
def test_that_docker_is_not_whole_is_told(tmp_path: Path, missing: str) -> None:
    files = DockerFiles(settings=SETTINGS, root=tmp_path)
    for name in ("usr/sbin/runc", "usr/bin/containerd-shim-runc-v2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    files.refuse_lacking()
    next(tmp_path.rglob(missing)).unlink()
    with pytest.raises(NriRdmaError) as caught:
        files.refuse_lacking()
    assert missing in str(caught.value)
