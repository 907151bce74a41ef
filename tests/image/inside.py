"""A program that runs in the image: it imports all that is there, and prints as JSON what fails and why."""

import ast
import importlib
import json
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(sys.argv[1])


def modules() -> Iterator[str]:
    """Yield every module of every package."""
    for found in pkgutil.walk_packages([str(PACKAGES)], onerror=lambda _name: None):
        if not found.name.endswith("__main__"):
            yield found.name


def imported_by_us() -> Iterator[str]:
    """Yield what our own code imports anywhere: many imports are late, in a function."""
    for path in (PACKAGES / "nri_rdma").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
                yield from (f"{node.module}:{alias.name}" for alias in node.names)


def failure(name: str) -> str:
    """Import MODULE, or NAME of MODULE:NAME; return why that cannot be, or nothing."""
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        if attribute and not hasattr(found, attribute):
            importlib.import_module(f"{module}.{attribute}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants it told
        return f"{type(error).__name__}: {error}"
    return ""


warnings.simplefilter("ignore")
ours = {name: failure(name) for name in sorted(set(imported_by_us()))}
every = {name: failure(name) for name in modules()}
failed = [{name: why for name, why in found.items() if why} for found in (ours, every)]
print(json.dumps({"ours": failed[0], "every": failed[1], "counts": [len(ours), len(every)]}))
