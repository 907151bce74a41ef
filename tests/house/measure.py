"""Measures the shape of the package: `python -m tests.house.measure` prints today's figures; with `-v`, the places too.

The figures of the source are read with `ast`, nothing is imported for them. The figures of the running engine (walks,
memories) are taken by tests/house/walks.py, which looks the names of the engine up in the table below.
"""

from __future__ import annotations

import ast
import logging
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]

# Every name that a move of files changes.

PACKAGE = "nri_rdma"
GENERATED = ("pb/*", "ttrpc/pb/*")
TTRPC = ("ttrpc/*",)
"""The ttrpc library is a package of its own in all but name."""
ERRORS = ("errors.py",)
"""Its constructors take one parameter for each part of an error's text."""
NO_MIRROR = ("__init__.py", "*/__init__.py", "__main__.py")
"""Modules that need no test file of their name."""

ENGINE = ("engine/*",)
DOORS = ("doors/*",)
DECIDE = ("decide/*",)
SCHEDULER = (
    "attach/attachment.py",
    "attach/attachments.py",
    "attach/attempts.py",
    "attach/news.py",
    "attach/recovery.py",
    "attach/state_machine.py",
    "attach/undo.py",
)
FAN_OUT_GROUPS = (ENGINE, DOORS, DECIDE, SCHEDULER)
"""The files whose fan-out counts. Each group must match a file, so that a move cannot empty it unseen."""
WIRING = (("Engine", "make"),)
"""Methods (class, name) that wire objects together: what only they use is no fan-out of their file."""

ATTACHMENT = (("attach/attachment.py", "Attachment"), ("attach/attachment.py", "Sandbox"))
"""File and class of one attach; the first that exists counts."""

RIG_ENGINE = ("engine", "engine")
"""The attribute of the unit rig's daemon that holds the engine."""
RUN_POD = ("run_pod", "start")
CREATE_CONTAINER = ("create_container", "edits")
"""The engine's methods where walks begin."""
NO_STAY = ("model", "errors", "observe")
"""Rooms of values and telemetry: a call into them is no stay of a walk."""
NO_MEMORY = ("Workers",)
"""Classes that hold what is under way, under keys that last as long as a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of the package."""

    path: str
    """Relative to the package's folder."""
    module: str
    lines: int
    tree: ast.Module

    @property
    def room(self) -> str:
        """The first name below the package; "" for the package itself."""
        return room_of(self.module)

    def is_in(self, patterns: Iterable[str]) -> bool:
        """Return whether the path matches one of the patterns."""
        return any(fnmatch(self.path, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A figure and the place that has it."""

    figure: int
    where: str


def room_of(module: str) -> str:
    """Return the first name below the package; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def read_sources(folder: Path) -> tuple[Source, ...]:
    """Read all files of the package in this folder, generated ones too."""
    return tuple(_read(path, folder) for path in sorted(folder.rglob("*.py")))


def _read(path: Path, folder: Path) -> Source:
    text = path.read_text()
    relative = path.relative_to(folder)
    names = [folder.name, *relative.with_suffix("").parts]
    return Source(
        path=relative.as_posix(),
        module=".".join(names[:-1] if names[-1] == "__init__" else names),
        lines=len(text.splitlines()),
        tree=ast.parse(text, str(path)),
    )


def product(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return the sources that people wrote: all but the generated ones."""
    return tuple(source for source in sources if not source.is_in(GENERATED))


def without_ttrpc(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return the sources that people wrote, without the ttrpc library."""
    return tuple(source for source in product(sources) if not source.is_in(TTRPC))


def root_files(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the files directly in the package's folder."""
    return tuple(source.path for source in product(sources) if "/" not in source.path)


def product_lines(sources: Sequence[Source]) -> int:
    """Return the number of lines without the ttrpc library. Printed only: a limit on lines makes code dense."""
    return sum(source.lines for source in without_ttrpc(sources))


# Rooms


def rooms(sources: Sequence[Source]) -> frozenset[str]:
    """Return the files and folders directly in the package, without the package itself."""
    return frozenset(source.room for source in sources) - {""}


def arrows(sources: Sequence[Source]) -> frozenset[tuple[str, str]]:
    """Return the ordered pairs of rooms of which the first imports the second, anywhere in a file."""
    modules = frozenset(source.module for source in sources)
    pairs = {
        (source.room, room_of(module))
        for source in sources
        for _, module in _imports(source, modules, ast.walk(source.tree))
    }
    return frozenset((one, other) for one, other in pairs if one and other and one != other)


def floors(sources: Sequence[Source]) -> int:
    """Return the length of the longest chain of rooms. Raises CycleError for a circle."""
    below: dict[str, set[str]] = {room: set() for room in rooms(sources)}
    for one, other in arrows(sources):
        below[one].add(other)
    height: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():  # what a room imports comes before it
        height[room] = 1 + max((height[other] for other in below[room]), default=0)
    return max(height.values(), default=0)


def _imports(source: Source, modules: frozenset[str], nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the bound name and the module of each import of the package among these nodes."""
    package = source.module.partition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == package:
                    yield alias.asname or package, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _base(source, node)
            for alias in node.names if base.partition(".")[0] == package else ():
                submodule = f"{base}.{alias.name}"
                yield alias.asname or alias.name, submodule if submodule in modules else base


def _base(source: Source, node: ast.ImportFrom) -> str:
    """Return the absolute name of the module that a `from` import names."""
    if not node.level:
        return node.module or ""
    names = source.module.split(".")
    is_package = source.path.endswith("__init__.py")
    kept = names[: len(names) - node.level + is_package]
    return ".".join([*kept, node.module] if node.module else kept)


# Classes


def classes(sources: Sequence[Source]) -> tuple[Found, ...]:
    """Return the number of lines of each class without the ttrpc library, the largest first."""
    return _worst_first(
        Found(figure=(node.end_lineno or node.lineno) - node.lineno + 1, where=f"{source.path}:{node.name}")
        for source in without_ttrpc(sources)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    )


def constructors(sources: Sequence[Source]) -> tuple[Found, ...]:
    """Return the number of parameters of each written `__init__` without self, the widest first."""
    return _worst_first(
        Found(figure=_parameters(method.args) - 1, where=f"{source.path}:{node.name}")
        for source in without_ttrpc(sources)
        if not source.is_in(ERRORS)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and not _is_dataclass(node)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    )


def _parameters(written: ast.arguments) -> int:
    named = [*written.posonlyargs, *written.args, *written.kwonlyargs]
    return len(named) + (written.vararg is not None) + (written.kwarg is not None)


def _is_dataclass(node: ast.ClassDef) -> bool:
    called = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
    return any(ast.unparse(item) in {"dataclass", "dataclasses.dataclass"} for item in called)


def double_names(sources: Sequence[Source]) -> dict[str, tuple[str, ...]]:
    """Return the public names of classes and types that two or more modules define, without the ttrpc library."""
    places: dict[str, set[str]] = defaultdict(set)
    for source in without_ttrpc(sources):
        for node in source.tree.body:
            for name in _type_names(node):
                places[name].add(source.path)
    return {name: tuple(sorted(paths)) for name, paths in sorted(places.items()) if len(paths) > 1}


def _type_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        yield node.name
    for target in _targets(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ():
        if not isinstance(target, ast.Name) or target.id.startswith("_"):
            continue
        is_alias = isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)
        if is_alias or re.fullmatch(r"[A-Z][a-z]\w*", target.id):
            yield target.id


# Fan-out


def fan_outs(sources: Sequence[Source], groups: Sequence[Sequence[str]] = FAN_OUT_GROUPS) -> tuple[Found, ...]:
    """Return how many of the package's modules each file of these groups imports, the most first.

    Generated modules, the bare package and what only the wiring uses are left out. Raises ValueError for a group that
    matches no file.
    """
    modules = frozenset(source.module for source in sources)
    found = []
    for group in groups:
        members = [source for source in product(sources) if source.is_in(group)]
        if not members:
            raise ValueError(f"no file is in {', '.join(group)}: put the new names into the table of measure.py")
        found += [Found(figure=len(_used_modules(source, modules)), where=source.path) for source in members]
    return _worst_first(found)


def _used_modules(source: Source, modules: frozenset[str]) -> frozenset[str]:
    wiring = [
        method
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and (node.name, method.name) in WIRING
    ]
    wired = {id(node) for method in wiring for node in ast.walk(method)}
    others = [node for node in ast.walk(source.tree) if id(node) not in wired]
    used = {node.id for node in others if isinstance(node, ast.Name)}
    wired_names = {node.id for method in wiring for node in ast.walk(method) if isinstance(node, ast.Name)}
    found = {
        module for name, module in _imports(source, modules, others) if name in used or name not in wired_names
    }  # a name that nobody uses is imported for others
    return frozenset(module for module in found if "." in module and room_of(module) not in _generated_rooms())


def _generated_rooms() -> frozenset[str]:
    return frozenset(pattern.partition("/")[0] for pattern in GENERATED)


# The attachment


def outside_writes(
    sources: Sequence[Source], attachment: Sequence[tuple[str, str]] = ATTACHMENT
) -> tuple[tuple[str, int, str], ...]:
    """Return the assignments to an attribute of the attachment by another name than self, outside its file.

    Each is path, line and target. An attribute is known by its name alone. Raises ValueError without an attachment.
    """
    home, attributes = _attachment(sources, attachment)
    return tuple(
        (source.path, target.lineno, ast.unparse(target))
        for source in product(sources)
        if source is not home
        for node in ast.walk(source.tree)
        for target in _targets(node)
        if isinstance(target, ast.Attribute) and target.attr in attributes and _is_other_name(target.value)
    )


def _attachment(sources: Sequence[Source], attachment: Sequence[tuple[str, str]]) -> tuple[Source, frozenset[str]]:
    for path, name in attachment:
        for source in sources:
            for node in source.tree.body if source.path == path else ():
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return source, frozenset(_attributes(node))
    raise ValueError("there is no class of one attach: put its new name into the table of measure.py")


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """Yield what can be assigned: what self gets, declared fields, and properties with a setter."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
        elif isinstance(item, ast.FunctionDef) and f"{item.name}.setter" in map(ast.unparse, item.decorator_list):
            yield item.name
    for inner in ast.walk(node):
        for target in _targets(inner):
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                yield target.attr


def _is_other_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id != "self"


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield each single target that this node assigns."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _flat(target)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        yield node.target
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _flat(node.target)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _flat(node.optional_vars)


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for item in target.elts:
            yield from _flat(item)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


# Tests


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """Which modules have a test file of their name."""

    having: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def percent(self) -> float:
        """How many of the modules have one, in percent."""
        return 100 * len(self.having) / max(1, len(self.having) + len(self.missing))


def mirror(sources: Sequence[Source], unit_tests: Path) -> Mirror:
    """Compare with the folder of unit tests: a/b.py has a/test_b.py there."""
    having: list[str] = []
    missing: list[str] = []
    for source in product(sources):
        if source.is_in(NO_MIRROR):
            continue
        folder, _, name = source.path.rpartition("/")
        (having if (unit_tests / folder / f"test_{name}").is_file() else missing).append(source.path)
    return Mirror(having=tuple(having), missing=tuple(missing))


# Layers


def read_layers(pyproject: Path) -> tuple[tuple[str, ...], ...]:
    """Return the layers of import-linter's first contract of layers, the highest first."""
    contracts = tomllib.loads(pyproject.read_text())["tool"]["importlinter"]["contracts"]
    contract = next(contract for contract in contracts if contract["type"] == "layers")
    (container,) = contract["containers"]
    return tuple(
        tuple(f"{container}.{name.strip(' ()')}" for name in re.split(r"[|:]", row)) for row in contract["layers"]
    )


def _worst_first(found: Iterable[Found]) -> tuple[Found, ...]:
    return tuple(sorted(found, key=lambda item: (-item.figure, item.where)))


# The report


def main() -> None:
    """Print all figures; those of the running engine last, as they take a second."""
    sources = read_sources(PROJECT / PACKAGE)
    for name, figure in _figures(sources):
        print(f"{name:<28}{figure}")
    logging.getLogger(PACKAGE).addHandler(logging.NullHandler())  # one of the attaches is made to fail
    from tests.house.walks import report  # needs the product and its tests' rig

    for name, figure in report(read_layers(PROJECT / "pyproject.toml")):
        print(f"{name:<28}{figure}")
    if "-v" in sys.argv[1:]:
        _print_places(sources)


def _figures(sources: Sequence[Source]) -> Iterator[tuple[str, str]]:
    try:
        height = str(floors(sources))
    except CycleError as circle:
        height = f"none, there is a circle: {' <- '.join(circle.args[1])}"
    mirrored = mirror(sources, PROJECT / "tests/unit")
    yield "root files", str(len(root_files(sources)))
    yield "rooms, arrows, floors", f"{len(rooms(sources))}, {len(arrows(sources))}, {height}"
    yield "product lines", f"{product_lines(sources):,}"
    yield "largest classes", _worst(classes(sources))
    yield "widest constructors", _worst(constructors(sources))
    yield "fan-out", _worst(fan_outs(sources))
    yield "double names", str(len(double_names(sources)))
    yield "outside writes", str(len(outside_writes(sources)))
    every = len(mirrored.having) + len(mirrored.missing)
    yield "mirror tests", f"{len(mirrored.having)} of {every}, {mirrored.percent:.1f} %"


def _worst(found: Sequence[Found]) -> str:
    return ", ".join(f"{item.figure} {item.where}" for item in found[:4])


def _print_places(sources: Sequence[Source]) -> None:
    for name, paths in double_names(sources).items():
        print(f"double name {name}: {', '.join(paths)}")
    for path, line, target in outside_writes(sources):
        print(f"outside write {path}:{line}: {target}")
    for path in mirror(sources, PROJECT / "tests/unit").missing:
        print(f"no test of its name: {path}")


if __name__ == "__main__":
    main()
