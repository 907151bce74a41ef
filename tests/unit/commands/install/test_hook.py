"""The hook is a program and a module beside it, in an order in which the program never lacks its module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nri_rdma.commands.common.changes import carry_out_all, to_remove, to_write
from nri_rdma.commands.install.hook import hook_files
from nri_rdma.commands.install.own_files import write
from nri_rdma.errors import ErrorCode, NriRdmaError

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


def test_what_is_there_already_is_tried_again(tmp_path: Path) -> None:
    """Its interpreter may have gone since."""
    files = hook_files(tmp_path, HOOK)
    carry_out_all(to_write(files))

    def refuse() -> None:
        raise NriRdmaError(ErrorCode.INSTALL, "it cannot be run")

    with pytest.raises(NriRdmaError, match="it cannot be run"):
        write(files, "podman", "", False, refuse)
    assert (tmp_path / PROGRAM).exists()
