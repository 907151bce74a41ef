"""The program as a user starts it: arguments, two streams and an exit code.

It runs in this process, because one of its own would cost a fifth of a second each time; what depends on a process
(terminals, pipes, users, imports) is tested with one.
"""

import io
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from nri_rdma.commands.cli.main import main

PROJECT = Path(__file__).resolve().parents[4]
_OURS = ("NRI_RDMA_", "OTEL_", "NO_COLOR", "COLUMNS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How it ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def nri_rdma(
    *arguments: str | Path,
    columns: int = 80,
    environment: Mapping[str, str] | None = None,
    text: str = "",
    encoding: str = "utf-8",
) -> Done:
    """Run it to its end, on streams of that encoding. Settings of the tester's environment do not count."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    with ExitStack() as stack:
        stack.enter_context(
            patch.dict(os.environ, {**kept, "COLUMNS": str(columns), **(environment or {})}, clear=True)
        )
        stack.enter_context(patch.object(sys, "argv", ["nri-rdma", *map(str, arguments)]))
        stack.enter_context(patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()))))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            assert isinstance(end.code, int)
            return Done(returncode=end.code, stdout=_text(out), stderr=_text(err))
    raise AssertionError("main() ends the process")


def assert_one_error(done: Done, code: str, exit_code: int) -> str:
    """It ended so, with one line on stderr that begins with the code. Returns that line."""
    assert done.returncode == exit_code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"nri-rdma: {code}: ")
    return lines[0]


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
