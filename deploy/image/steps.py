"""Commands of this machine that the build calls, and the error that ends it."""

import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CACHE_VARIABLE = "NRI_RDMA_IMAGE_CACHE"
CACHE = Path(os.environ.get(CACHE_VARIABLE) or PROJECT / ".cache/image")
"""What was fetched stays here: a second build asks neither mirror nor package index."""
LOCKS = Path(__file__).resolve().parent


@contextmanager
def only_one() -> Iterator[None]:
    """Wait until no other build uses the cache, and keep others waiting."""
    CACHE.mkdir(parents=True, exist_ok=True)
    cache = os.open(CACHE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(cache, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"image: another build uses {CACHE}; waiting for its end", flush=True)
            fcntl.flock(cache, fcntl.LOCK_EX)
        yield
    finally:
        os.close(cache)


class ImageError(Exception):
    """What failed and what to do next, as a sentence."""


def run(command: Sequence[str], purpose: str, hint: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. Raise ImageError with its last words."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command,
            env=clean | dict(environment or {}),
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as missing:
        raise ImageError(f"{command[0]} is not on this machine. Next: use Debian 12 or 13.") from missing
    if done.returncode != 0:
        words = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        said = " / ".join(words[-3:]) or f"exit code {done.returncode}"
        raise ImageError(f"could not {purpose}: {said}. Next: {hint}")
    return done.stdout
