"""What `inventory` says, for programs."""

import json
from pathlib import Path
from typing import Any

from tests.unit.commands.cli.program import nri_rdma


def inventory(*arguments: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(nri_rdma("inventory", *arguments, "-o", "json").stdout)
    return document
