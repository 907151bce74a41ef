"""The hook is a program and a module beside it, in an order in which the program never lacks its module."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nri_rdma.commands.install.changes import carry_out_all, to_remove, to_write
from nri_rdma.commands.install.hook import hook_files
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.hook_program import fault_of, foreign_at

HOOK = Path(__file__).parents[4] / "hooks/nri-rdma-oci-hook"
PLACE = "usr/local/lib/nri-rdma"
PROGRAM, MODULE = f"{PLACE}/nri-rdma-oci-hook", f"{PLACE}/nri_rdma_oci_hook.py"


def works(root: Path) -> bool:
    """Whether the program can be run, which leaves compiled code."""
    done = subprocess.run(["/usr/bin/python3", "-IS", root / PROGRAM, "--help"], capture_output=True, check=False)
    return done.returncode == 0 and done.stdout.startswith(b"usage: nri-rdma-oci-hook ")


def test_module_and_program_are_written_and_removed_with_what_python_made_of_them(tmp_path: Path) -> None:
    files = hook_files(tmp_path, HOOK)
    assert [str(file.path.relative_to(tmp_path)) for file in files] == [MODULE, PROGRAM]
    carry_out_all(to_write(files))
    assert works(tmp_path)
    assert [*(tmp_path / PLACE / "__pycache__").iterdir()] != []
    carry_out_all(to_remove(reversed(files)))
    assert [*(tmp_path / PLACE).iterdir()] == []


@pytest.mark.parametrize("has_older", [False, True], ids=["new", "from an older release"])
def test_after_each_step_the_program_works_or_is_not_there(tmp_path: Path, has_older: bool) -> None:
    files = hook_files(tmp_path, HOOK)
    if has_older:
        (tmp_path / PLACE).mkdir(parents=True)
        (tmp_path / PROGRAM).write_text(
            '#!/usr/bin/python3 -IS\nPROGRAM = "nri-rdma-oci-hook"\nprint("usage:", PROGRAM, "")\n'
        )
    for change in (*to_write(files), *to_remove(reversed(files))):
        change.carry_out()
        assert works(tmp_path) is (tmp_path / PROGRAM).exists()


@pytest.mark.parametrize("path", [PROGRAM, MODULE])
def test_a_file_of_somebody_else_in_either_place_is_left_alone(tmp_path: Path, path: str) -> None:
    (tmp_path / PLACE).mkdir(parents=True)
    (tmp_path / path).write_text("# theirs\n")
    with pytest.raises(NriRdmaError) as caught:
        to_write(hook_files(tmp_path, HOOK))
    assert (caught.value.code, path in str(caught.value)) == (ErrorCode.INSTALL, True)


def test_what_keeps_a_hook_from_being_run_is_named(tmp_path: Path) -> None:
    program, module = tmp_path / PROGRAM, tmp_path / MODULE
    assert fault_of(program) == f"{program} is not there or no program"
    program.mkdir(parents=True)
    assert fault_of(program) == f"{program} is not there or no program"
    program.rmdir()
    carry_out_all(to_write(hook_files(tmp_path, HOOK)))
    assert fault_of(program) == ""
    module.unlink()
    assert fault_of(program) == f"{module} is not there"
    program.chmod(0o644)
    assert fault_of(program) == f"{program} is not there or no program"


def test_the_hook_of_an_earlier_release_needs_no_module(tmp_path: Path) -> None:
    program = tmp_path / "nri-rdma-oci-hook"
    program.write_text('#!/usr/bin/python3 -IS\nPROGRAM = "nri-rdma-oci-hook"\n')
    program.chmod(0o755)
    assert fault_of(program) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("folder", [PLACE, f"{PLACE}/__pycache__", "usr/local"])
def test_a_hook_that_others_than_root_could_replace_is_known(tmp_path: Path, folder: str) -> None:
    carry_out_all(to_write(hook_files(tmp_path, HOOK)))
    assert foreign_at(tmp_path / PROGRAM) == ""
    (tmp_path / folder).mkdir(exist_ok=True)
    os.chown(tmp_path / folder, 65534, 65534)
    assert f"others than root may replace files in {tmp_path / folder} (owner 65534" in foreign_at(tmp_path / PROGRAM)
