"""What is written for containerd by what it has: its release, its files, its handlers. Whether it takes that is for
tests/runtime/test_install_guard.py."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nri_rdma.commands.common.changes import carry_out_all, to_remove, to_write
from nri_rdma.commands.install.containerd import ContainerdFiles, guarded_spec
from nri_rdma.errors import NriRdmaError
from tests.rig.cache import PROJECT

OLD, NEW = (1, 7), (2, 3)
V2, V3 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
PREFIX = "rdma.example"
PATTERNS = [PREFIX, f"{PREFIX}/*"]


def dumped(table: str, **handlers: dict[str, object]) -> dict[str, object]:
    """What containerd says that its whole configuration is."""
    return {"version": 3, "plugins": {table: {"containerd": {"runtimes": handlers}}}}


def files_at(tmp_path: Path, release: tuple[int, int], text: str | None) -> ContainerdFiles:
    config = tmp_path / "config.toml"
    if text is not None:
        config.write_text(text)
    return ContainerdFiles(config=config, release=release)


def written(files: ContainerdFiles, table: str, *, edit: bool = False, **handlers: dict[str, object]) -> list[str]:
    """Has the files written; the paths of them."""
    made = files.last_files(files.handlers(dumped(table, **handlers), (), PREFIX), edit)
    carry_out_all(to_write(made))
    return [it.path.name for it in made]


def handler(path: Path, table: str, name: str = "runc") -> dict[str, object]:
    found: dict[str, object] = tomllib.loads(path.read_text())["plugins"][table]["containerd"]["runtimes"][name]
    return found


@pytest.mark.parametrize(("version", "table"), [(2, V2), (3, V3), (4, V3)])
def test_a_drop_in_has_the_version_of_the_main_file(tmp_path: Path, version: int, table: str) -> None:
    """containerd 2.0 to 2.2 merge files before they convert them."""
    files = files_at(tmp_path, NEW, f'version = {version}\nimports = ["conf.d/*.toml"]\n')
    assert written(files, V3, runc={}) == ["90-nri-rdma.toml"]
    drop_in = tmp_path / "conf.d/90-nri-rdma.toml"
    assert tomllib.loads(drop_in.read_text())["version"] == min(version, 3)
    assert handler(drop_in, table) == {
        "base_runtime_spec": str(tmp_path / "nri-rdma-base.json"),
        "pod_annotations": PATTERNS,
    }


def test_what_a_handler_has_of_others_is_in_ours(tmp_path: Path) -> None:
    theirs = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.gpu]\n'
    theirs += 'base_runtime_spec = "/etc/theirs.json"\npod_annotations = ["theirs/*"]\n'
    files = files_at(tmp_path, NEW, f'version = 3\nimports = ["{tmp_path}/conf.d/*.toml"]\n{theirs}')
    (gpu,) = files.handlers(dumped(V3, gpu={}, runc={}), ("gpu",), PREFIX)
    assert (gpu.base, gpu.spec.name) == (Path("/etc/theirs.json"), "nri-rdma-base.gpu.json")
    assert gpu.annotations == ("theirs/*", *PATTERNS)
    written(files, V3, gpu={}, runc={})
    again = files.handlers(dumped(V3, gpu={}, runc={}), (), PREFIX)
    assert again[0] == gpu, "our own drop-in is nobody else's"
    with pytest.raises(NriRdmaError, match="no runtime handler kata"):
        files.handlers(dumped(V3, gpu={}, runc={}), ("kata",), PREFIX)


def test_a_main_file_that_imports_no_folder_is_edited_only_if_the_user_says_so(tmp_path: Path) -> None:
    plain = 'version = 3\nimports = ["/etc/theirs.toml"]\n'
    files = files_at(tmp_path, NEW, plain)
    with pytest.raises(NriRdmaError, match=r"no folder of drop-ins is imported.*--edit-config"):
        written(files, V3, runc={})
    assert written(files, V3, edit=True, runc={}) == ["90-nri-rdma.toml", "config.toml"]
    imports = tomllib.loads(files.config.read_text())["imports"]
    assert imports == ["/etc/theirs.toml", str(tmp_path / "conf.d/90-nri-rdma.toml")]
    before = files.config.read_bytes()
    written(files, V3, runc={})
    assert files.config.read_bytes() == before, "said once"
    taken_away(files)
    assert files.config.read_text() == plain


def test_before_2_0_the_handlers_of_the_main_file_are_edited(tmp_path: Path) -> None:
    """There a drop-in would hide what the main file says, and a table all that a handler has by default."""
    plain = f'version = 2\nimports = ["conf.d/*.toml"]\n[plugins."{V2}".containerd.runtimes.gpu]\nruntime_type = "x"\n'
    files = files_at(tmp_path, OLD, plain)
    default: dict[str, object] = {
        "runtime_type": "io.containerd.runc.v2",
        "pod_annotations": [],
        "options": {"Root": ""},
    }
    with pytest.raises(NriRdmaError, match=r"before 2\.0"):
        written(files, V2, gpu={}, runc=default)
    assert written(files, V2, edit=True, gpu={}, runc=default) == ["config.toml"]
    ours = {"base_runtime_spec": str(tmp_path / "nri-rdma-base.json"), "pod_annotations": PATTERNS}
    assert handler(files.config, V2, "gpu") == {"runtime_type": "x"} | ours
    assert handler(files.config, V2, "runc") == {"runtime_type": default["runtime_type"]} | ours, (
        "others are empty anyway"
    )
    taken_away(files)
    assert files.config.read_text() == plain


@pytest.mark.parametrize(("release", "table", "version"), [(OLD, V2, 2), (NEW, V3, 3)])
def test_where_there_is_no_main_file_ours_is_it(
    tmp_path: Path, release: tuple[int, int], table: str, version: int
) -> None:
    files = files_at(tmp_path, release, None)
    assert written(files, table, runc={"runtime_type": "x"}) == ["config.toml"]
    assert tomllib.loads(files.config.read_text())["version"] == version
    assert written(files, table, runc={"runtime_type": "x"}) == ["config.toml"]
    taken_away(files)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_version_1_is_to_be_converted_first(tmp_path: Path) -> None:
    with pytest.raises(NriRdmaError, match="containerd config migrate"):
        written(files_at(tmp_path, OLD, "[plugins.cri]\n"), V2, edit=True, runc={})


def test_a_file_that_is_no_toml_is_told_and_left_alone(tmp_path: Path) -> None:
    files = files_at(tmp_path, NEW, "version = \n")
    with pytest.raises(NriRdmaError, match="cannot be read"):
        written(files, V3, runc={})
    with pytest.raises(NriRdmaError, match="cannot be read"):
        files.first_to_remove()


def test_other_effects_than_the_guard_are_refused(tmp_path: Path) -> None:
    files = files_at(tmp_path, NEW, "version = 3\n")
    before = dumped(V3, runc={"runtime_type": "x"}, other={})
    handlers = files.handlers(before, ("runc",), PREFIX)
    ours = dict(handlers[0].ours)
    files.refuse_other_effects(before, dumped(V3, runc={"runtime_type": "x", **ours}, other={}), handlers)
    with pytest.raises(NriRdmaError, match="would not give runc the guard"):
        files.refuse_other_effects(before, before, handlers)
    for after in (dumped(V3, runc=ours, other={}), dumped(V3, runc={"runtime_type": "x", **ours}, other=ours)):
        with pytest.raises(NriRdmaError, match="other settings of containerd would change"):
            files.refuse_other_effects(before, after, handlers)


@pytest.mark.parametrize("keeps_limits", [True, False])
def test_the_oci_configuration_is_what_the_hook_itself_would_write(keeps_limits: bool) -> None:
    hook = PROJECT / "hooks/nri-rdma-hook"
    theirs = {"path": "/usr/bin/theirs", "args": ["theirs"]}
    spec = {"process": {"rlimits": [1]}, "hooks": {"createRuntime": [theirs, {"path": "/old/nri-rdma-hook"}]}}
    flags = ("--control-socket", "/x.sock")
    command = [sys.executable, "-I", "-S", str(hook), "spec", *flags]
    done = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, check=True)
    wanted = json.loads(done.stdout)
    if keeps_limits:
        wanted["process"]["rlimits"] = [1]
    assert json.loads(guarded_spec(json.dumps(spec), hook, flags, keeps_limits=keeps_limits)) == wanted


def taken_away(files: ContainerdFiles) -> None:
    restored, own = files.first_to_remove()
    carry_out_all((*to_write(restored), *to_remove(own)))
    folder = files.config.parent / "conf.d"
    if folder.exists():
        folder.rmdir()


def test_a_base_spec_with_null_for_hooks_gets_the_hook() -> None:
    """Go writes null for an empty pointer without omitempty, and reads it."""
    made = json.loads(guarded_spec('{"hooks": null}', Path("/x/nri-rdma-hook"), (), keeps_limits=True))
    assert [it["path"] for it in made["hooks"]["createRuntime"]] == ["/x/nri-rdma-hook"]
