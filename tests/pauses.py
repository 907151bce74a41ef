"""Plants pauses into all threads but the test's own: `python -m pytest -p tests.pauses tests/unit/engine`.

Most tests that fail now and then take something for done that another thread is about to do. That thread stops here for
up to LONGEST_S at one of a hundred calls, so that such a test fails within a few runs. A limit of time that is exceeded
here shows nothing. What such a test needs is in tests/README.md.
"""

from __future__ import annotations

import random
import threading
import time
from types import FrameType

SHARE = 0.01
"""The share of calls and returns at which a thread pauses."""
LONGEST_S = 0.03
PARTS = ("/nri_rdma/", "/tests/", "/concurrent/futures/", "/threading.py")
"""Parts of the paths of files whose functions are paused: this project's, and what its threads wait with."""


def pause(frame: FrameType, event: str, _argument: object) -> None:
    """Sleep now and then at the beginning or the end of a function; a function for `threading.setprofile`."""
    if event not in ("call", "return") or random.random() >= SHARE:
        return
    if any(part in frame.f_code.co_filename for part in PARTS):
        time.sleep(random.random() * LONGEST_S)


def pytest_configure() -> None:
    """Have every thread that starts from now on pause."""
    threading.setprofile(pause)
