"""Files checked as the command does, and what was told of them."""

from __future__ import annotations

from nri_rdma.commands.validate.files import Checked, check
from nri_rdma.errors import ErrorCode

PREFIX = "rdma.noderesource.dev"


def checked(text: str, prefix: str = PREFIX) -> Checked:
    return check(text.encode(), "FILE", prefix)


def told(text: str) -> list[tuple[int, int, str, ErrorCode]]:
    """Line, column, key path and code of each problem."""
    return [(it.line, it.column, it.path, it.code) for it in checked(text).problems]


def pod(annotations: str, containers: str = "[{name: main}, {name: side}]") -> str:
    lines = "".join(f"    {line}\n" for line in annotations.splitlines())
    return f"kind: Pod\nmetadata:\n  name: a\n  annotations:\n{lines}spec: {{containers: {containers}}}\n"
