"""wheels.lock has what pyproject.toml asks for: who changes the one is told to renew the other."""

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.image import wheels


def test_the_lock_fits_what_the_project_needs() -> None:
    rows = re.findall(r"^(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}", wheels.WHEELS.read_text(), re.MULTILINE)
    locked = {canonicalize_name(name): version for name, version in rows}
    needed = [Requirement(it) for it in wheels.requirements()]
    unfit = [str(it) for it in needed if not it.specifier.contains(locked.get(canonicalize_name(it.name), "0"))]
    assert unfit == [], "python -m deploy.image --renew"
    assert {"kubernetes", "opentelemetry-exporter-otlp-proto-grpc"} <= locked.keys()
    assert locked.keys().isdisjoint(wheels.NOT_IMPORTED)
