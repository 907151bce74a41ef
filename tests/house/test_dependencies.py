"""The dependencies of pyproject.toml are what nri_rdma imports, and the sentence beside each says where."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "nri_rdma"
PYPROJECT = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
_MODULE = re.compile(r"[a-z]\w*(\.\w+)+")
_LINE = re.compile(r'^ +"([\w.-]+)[^"]*", +# .*; imported in ([\w/, ]+)$', re.MULTILINE)


def _named(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def declared() -> frozenset[str]:
    """Return the names of all dependencies, those of the extras included."""
    project = tomllib.loads(PYPROJECT)["project"]
    every = [*project["dependencies"], *(it for extra in project["optional-dependencies"].values() for it in extra)]
    return frozenset(_named(re.split(r"[\[<>=!~; ]", it)[0]) for it in every)


@cache
def imported() -> Mapping[str, frozenset[str]]:
    """Return the files that import each package of others, or name a module of it in a string: relative to nri_rdma."""
    owners = _owners()
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for module, is_said in _modules(ast.parse(path.read_text(encoding="utf-8"))):
            if module.partition(".")[0] not in {*sys.stdlib_module_names, "nri_rdma"} and (
                module in owners or not is_said
            ):
                found[owners.get(module, module)].add(path.relative_to(PACKAGE).as_posix())
    return {name: frozenset(files) for name, files in found.items()}


def test_what_is_imported_is_declared() -> None:
    assert sorted(imported().keys() - declared()) == [], "name it in pyproject.toml, or do without it"


def test_what_is_declared_is_imported() -> None:
    assert sorted(declared() - imported().keys()) == [], "nothing imports it: take it out of pyproject.toml"


@pytest.mark.parametrize("name", sorted(declared()))
def test_the_sentence_of_a_dependency_says_where_it_is_imported(name: str) -> None:
    homes = {_named(it[1]): it[2].split(", ") for it in _LINE.finditer(PYPROJECT)}.get(name)
    assert homes, f"give {name} a comment that ends with `; imported in FOLDER, FOLDER`"
    at_home = {home: {it for it in imported().get(name, frozenset()) if it.startswith(f"{home}/")} for home in homes}
    assert sorted(imported().get(name, frozenset()) - set().union(*at_home.values())) == [], "these import it, too"
    assert [home for home, files in at_home.items() if not files] == [], "nothing imports it there"


def _modules(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a file imports, and the strings in it that may name one."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((it.name, False) for it in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module, False
            case ast.Constant(value=str(text)) if _MODULE.fullmatch(text):
                yield text, True


def _owners() -> Mapping[str, str]:
    """Return which installed package has each module. Several may share a folder, such as those of OpenTelemetry."""
    return {
        ".".join((*file.parent.parts, *(() if stem == "__init__" else (stem,)))): _named(it.name)
        for it in distributions()
        for file in map(PurePosixPath, it.files or ())
        if file.suffix in {".py", ".so"} and (stem := file.name.partition(".")[0])
    }
