"""A set-up that fails says what failed and what to do next."""

import re
import sys
from pathlib import Path

import pytest

from tests.rig import cache, setup


@pytest.fixture(autouse=True)
def _log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "LOG", tmp_path / "setup.log")


def test_a_failed_command_is_a_sentence_with_its_error_and_the_next_step() -> None:
    program = "import sys; print('noise'); print('E: no such package', file=sys.stderr); print('more'); sys.exit(100)"
    with pytest.raises(setup.SetupError) as caught:
        setup._run([sys.executable, "-c", program], "download runc", "Check the mirror.")
    assert str(caught.value).startswith("could not download runc: E: no such package. Next: Check the mirror.")
    assert "noise" in setup.LOG.read_text()


def test_a_missing_program_is_named() -> None:
    with pytest.raises(setup.SetupError, match="no-such-program is not on this machine"):
        setup._run(["no-such-program"], "do it")


def test_the_stamps_of_a_changed_project_differ() -> None:
    assert setup._digest("a", "b") != setup._digest("ab")


@pytest.mark.parametrize(
    ("own", "read"), [("bookworm", ("bookworm", "forky", "trixie")), ("trixie", ("trixie", "forky"))]
)
def test_the_package_lists_of_a_suite_are_read_once(own: str, read: tuple[str, ...]) -> None:
    assert setup._suites(own) == read


def test_a_containerd_that_is_not_unpacked_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "FETCHED", (*cache.FETCHED, cache.Release("containerd-9.9", tmp_path)))
    assert tmp_path / "containerd" in cache.missing()


def test_a_python_without_venv_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "_has_venv", lambda: False)
    with pytest.raises(setup.SetupError, match=r"cannot make virtual environments\. Next: .*python3-venv"):
        setup.set_up_venv()


def test_an_old_python_is_told_which_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(setup.SetupError, match=r"is Python 3\.9, but nri-rdma needs 3\.11 or newer\. Next: "):
        setup.check_python()


def test_the_virtual_environment_alone_needs_nothing_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(cache, "CACHE", tmp_path)
    monkeypatch.setattr(setup, "LOCK", tmp_path / "setup.lock")
    monkeypatch.setattr(setup, "VENV_STAMP", tmp_path / "venv.stamp")
    monkeypatch.setattr(setup, "build_venv", lambda: calls.append("venv"))
    for refused in ("install_system_packages", "fetch_runtime", "_codename"):
        monkeypatch.setattr(setup, refused, lambda: pytest.fail("only for the whole set-up"))
    assert setup.main(["--venv-only"]) == 0
    assert calls == ["venv"]


@pytest.mark.parametrize(("place", "made"), [("here", []), ("moved", ["make the virtual environment"])])
def test_the_virtual_environment_is_made_anew_in_a_checkout_that_was_moved(
    place: str, made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in (tmp_path / "here/nri_rdma/__init__.py", tmp_path / place / "pyproject.toml", tmp_path / "bin/python"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    path.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/here exec {sys.executable} "$@"\n')
    purposes: list[str] = []

    def run(_command: object, purpose: str, _hint: str = "") -> str:
        purposes.append(purpose)
        return "99.0"

    monkeypatch.setattr(cache, "PROJECT", tmp_path / place)
    monkeypatch.setattr(cache, "VENV", tmp_path)
    monkeypatch.setattr(setup, "VENV_STAMP", tmp_path / "venv.stamp")
    monkeypatch.setattr(setup, "_run", run)
    setup.build_venv()
    assert [it for it in purposes if it.startswith("make")] == made


def test_a_cache_that_cannot_be_written_is_a_sentence_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache, "CACHE", tmp_path)
    monkeypatch.setattr(setup, "LOCK", tmp_path)  # as little a file that can be opened as another user's
    monkeypatch.setattr(setup, "VENV_STAMP", tmp_path / "venv.stamp")
    assert setup.main(["--venv-only"]) == 1
    assert f"'{tmp_path}'. Next: see who owns {tmp_path}, and its free space." in capsys.readouterr().err


def test_the_readme_names_what_is_installed_on_the_machine() -> None:
    readme = " ".join((cache.PROJECT / "README.md").read_text().split())
    told = readme.partition("with apt what the machine lacks of ")[2].partition(";")[0]
    assert set(re.split(r", | and ", told)) == {
        "python3-venv",
        *setup.PROGRAMS.values(),
        *setup.LIBRARY_PACKAGES.values(),
    }
