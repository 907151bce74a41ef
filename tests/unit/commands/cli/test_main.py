"""The program's manners: exit codes, errors on one line, a fast start."""

import os
import pty
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nri_rdma import __version__
from nri_rdma.daemon.locks import Sole
from tests.unit.commands.cli.program import PROJECT, Done, assert_one_error, nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon

COMMANDS = (
    *("run", "doctor", "cdi", "inventory", "topology", "explain", "validate", "verify", "snapshot", "status", "trace"),
    "preflight",
    "config",
    "completion",
    "install",
    "uninstall",
    "claims",
)
HEAVY = ("pyroute2", "google.protobuf", "opentelemetry", "yaml", "nri_rdma.daemon", "nri_rdma.doors.control")


@pytest.mark.parametrize("name", [name for name in HEAVY if name.startswith("nri_rdma")])
def test_what_must_not_be_imported_exists(name: str) -> None:
    assert find_spec(name) is not None, "the check below would pass for a name that nothing has"


def test_version_is_the_packages() -> None:
    done = nri_rdma("--version")
    assert (done.returncode, done.stdout) == (0, f"nri-rdma {__version__}\n")


GROUPS = {"config": ("show", "check"), "cdi": ("list", "check", "generate")}


@pytest.mark.parametrize(
    "command", [(), *((name,) for name in COMMANDS), *((group, name) for group in GROUPS for name in GROUPS[group])]
)
def test_every_help_has_an_example(command: tuple[str, ...]) -> None:
    done = nri_rdma(*command, "--help")
    assert done.returncode == 0
    assert "Example:\n    nri-rdma " in done.stdout


def test_without_a_command_it_tells_what_there_is() -> None:
    done = nri_rdma()
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.partition("Commands:\n")[2].splitlines()] == sorted(COMMANDS)


def test_help_and_version_import_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from nri_rdma.commands.cli.main import main\n"
        "for words in (['--version'], ['--help'], ['trace', '--help'], ['explain', '--help']):\n"
        "    sys.argv[1:] = words\n"
        "    try:\n        main()\n"
        "    except SystemExit:\n        pass\n"
        f"    print(words, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert [line for line in done.stderr.splitlines() if not line.endswith(" []")] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["inventory", "--no-such-flag"],
        ["inventory", "-o", "xml"],
        ["explain", "/no/such/file.yaml"],
        ["validate"],
        ["validate", "/no/such/file.yaml"],
        ["inventory", "--snapshot", "/no/such/file.json"],
        ["trace", "--last", "0"],
        ["run", "--dry-run", "--memlock", "lots"],
        ["run", "--state-dir", "/proc/version/state"],
    ],
)
def test_what_was_typed_wrong_ends_with_two(arguments: list[str]) -> None:
    assert_one_error(nri_rdma(*arguments), "SETTING", 2)


@pytest.mark.parametrize("command", ["status", "trace"])
def test_without_a_daemon_it_ends_with_three(command: str, tmp_path: Path) -> None:
    told = assert_one_error(nri_rdma(command, "--state-dir", tmp_path), "DAEMON-ABSENT", 3)
    assert f"No such file or directory, {tmp_path}/control.sock. Next: start it" in told


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be able to give it up")
@pytest.mark.parametrize("command", ["status", "run"])
def test_without_privilege_it_ends_with_four(command: str, daemon: InsideDaemon) -> None:
    daemon.settings.state_dir.chmod(0o700)
    ended = subprocess.run(
        [sys.executable, "-m", "nri_rdma", command, "--state-dir", str(daemon.settings.state_dir)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROJECT,
        user=65534,
        group=65534,
        extra_groups=[],
    )
    done = Done(returncode=ended.returncode, stdout=ended.stdout, stderr=ended.stderr)
    assert "run it as root" in assert_one_error(done, "PRIVILEGE", 4)


@pytest.mark.parametrize("state_dir", ["state", "elsewhere"])
def test_a_second_daemon_of_a_runtime_ends_with_one_and_names_the_first(tmp_path: Path, state_dir: str) -> None:
    sole = Sole(tmp_path / "state", tmp_path / "nri.sock")
    done = nri_rdma("run", "--state-dir", tmp_path / state_dir, "--nri-socket", tmp_path / "nri.sock")
    assert f"another daemon (pid {os.getpid()}) " in assert_one_error(done, "STATE-LOCKED", 1)
    sole.release()


@pytest.mark.parametrize("command", ["inventory", "trace"])
def test_a_reader_that_goes_away_is_no_error_worth_a_word(command: str, daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    place = ["--sysfs-root", str(daemon.settings.sysfs_root)]
    place = place if command == "inventory" else ["--state-dir", str(daemon.settings.state_dir)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "nri_rdma", command, *place],
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=False,
            cwd=PROJECT,
        )
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [("inventory", ">&-", 0), ("trace -", "<&-", 2), ("trace -", "<&- >&- 2>&-", 2)],
)
def test_a_closed_stream_is_no_bug(arguments: str, closed: str, code: int) -> None:
    command = ["sh", "-c", f'exec "$0" -m nri_rdma {arguments} {closed}', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def in_a_terminal(*arguments: str, no_color: str = "") -> str:
    """What the program writes to a terminal."""
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": no_color}
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-m", "nri_rdma", *arguments], stdout=theirs, env=environment, cwd=PROJECT, check=True
        )
        os.close(theirs)
        return read_all(ours)
    finally:
        os.close(ours)


def read_all(fd: int) -> str:
    """Everything until the terminal is closed at its other end."""
    data = b""
    try:
        while piece := os.read(fd, 65536):
            data += piece
    except OSError:  # EIO: how Linux tells the end of a terminal
        pass
    return data.decode()


def test_a_terminal_gets_bold_and_a_pipe_does_not(daemon: InsideDaemon) -> None:
    arguments = ["status", "--state-dir", str(daemon.settings.state_dir)]
    assert "\x1b[1m" in in_a_terminal(*arguments)
    assert "\x1b" not in nri_rdma(*arguments).stdout


def test_no_color_is_honoured(daemon: InsideDaemon) -> None:
    told = in_a_terminal("status", "--state-dir", str(daemon.settings.state_dir), no_color="1")
    assert "mlx5_0" in told
    assert "\x1b" not in told


def test_a_word_with_a_typo_is_refused_with_the_right_one() -> None:
    text = assert_one_error(nri_rdma("statsu"), "SETTING", 2)
    assert text.endswith("No such command 'statsu'. Next: write 'status', or see nri-rdma --help.")


def test_the_help_of_explain_begins_with_what_authors_need() -> None:
    text = nri_rdma("explain", "--help").stdout.partition("Options:")[2]
    assert max(text.index(name) for name in ("--snapshot", "--cdi-device", "--gpu")) < text.index("--sysfs-root")


def test_a_configuration_file_that_is_not_there_cannot_be_mended(tmp_path: Path) -> None:
    text = assert_one_error(nri_rdma("inventory", "--config", tmp_path / "no.toml"), "SETTING", 2)
    assert "there is no such configuration file" in text
    assert "Next: write it, or name another with --config" in text
