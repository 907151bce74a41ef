"""Every mistake that can be planted in a source text: each changes one place of one function's body.

The kinds are those that reviews find in real code: a comparison the wrong way round, `and` for `or`, a condition that
always or never holds, a call that is left out, `True` for `False`. Numbers and texts stay as they are: what they are is
a choice, and a test that repeats it proves nothing.

Left out is what no test can notice: `while True` that always holds, `zip` that does not check what it is given
(`strict=False`; a wrong length is another mistake), and the border of a comparison with the running clock
(`time.monotonic() > by` for `>=`: no instant is met exactly).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_EDGES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
"""The border itself: `<` for `<=`."""
_UNHEARD = {"debug", "info"}
"""Log levels that promise nothing."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Place = tuple[int, int, int, int]


@dataclass(frozen=True)
class Mutation:
    """One mistake: the text between two places of a file, and what stands there instead."""

    first_line: int
    """Of the statement that it is in; lines count from 1."""
    last_line: int
    place: _Place
    """First line and column, last line and column behind the end; columns in bytes, from 0, as `ast` gives them."""
    kind: str
    before: str
    after: str

    def planted(self, source: str) -> str:
        """Return the source with this mistake in it."""
        lines = source.encode().splitlines(keepends=True)
        first, column, last, end = self.place
        head = b"".join(lines[: first - 1]) + lines[first - 1][:column]
        tail = lines[last - 1][end:] + b"".join(lines[last:])
        return (head + self.after.encode() + tail).decode()


def mutations(source: str) -> Iterator[Mutation]:
    """Yield every mistake that can be planted, in the order of the text."""
    for function in _functions(ast.parse(source)):
        for statement in _statements(function.body):
            yield from _of_statement(source, statement)


def _functions(tree: ast.AST) -> Iterator[_Function]:
    """Yield functions that are not inside another one: the inner ones are part of their statements."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Function):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []))
        for handler in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
            yield from _statements(handler.body)


def _of_statement(source: str, statement: ast.stmt) -> Iterator[Mutation]:
    """Yield the mistakes of a statement without the statements inside it."""
    own = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt | ast.excepthandler)]
    if isinstance(statement, ast.Match):
        own = [statement.subject]
    last = max((child.end_lineno or 0 for child in own if hasattr(child, "end_lineno")), default=statement.lineno)

    def mutation(node: ast.expr | ast.stmt, kind: str, after: str) -> Mutation:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        before = ast.get_source_segment(source, node) or ""
        return Mutation(statement.lineno, max(last, statement.lineno), place, kind, " ".join(before.split()), after)

    if isinstance(statement, ast.Expr) and _matters(statement.value):
        yield mutation(statement, "call left out", "pass")
    if isinstance(statement, ast.If | ast.While):
        if not (isinstance(statement.test, ast.Constant) and statement.test.value is True):
            yield mutation(statement.test, "always", "True")
        if not isinstance(statement, ast.While):
            yield mutation(statement.test, "never", "False")
    if isinstance(statement, _Function | ast.ClassDef):
        return
    for child in own:
        for expression in _expressions(child):
            for kind, changed in _of_expression(expression):
                yield mutation(expression, kind, f"({ast.unparse(changed)})")


def _matters(call: ast.expr) -> bool:
    if isinstance(call, ast.Await):
        call = call.value
    if not isinstance(call, ast.Call):
        return False
    return not (isinstance(call.func, ast.Attribute) and call.func.attr in _UNHEARD)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield expressions, but not the insides of f-strings: before Python 3.12 their places are wrong."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        if not (_is_zip(node) and isinstance(child, ast.keyword)):
            yield from _expressions(child)


def _is_zip(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip"


def _is_clock(node: ast.expr) -> bool:
    return ast.unparse(node) == "time.monotonic()"


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(left, [operator], [right]):
            yield "comparison turned", ast.Compare(left, [_TURNED[type(operator)]()], [right])
            if type(operator) in _EDGES and not (_is_clock(left) or _is_clock(right)):
                yield "border moved", ast.Compare(left, [_EDGES[type(operator)]()], [right])
        case ast.BoolOp(ast.And(), values):
            yield "and for or", ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            yield "or for and", ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not left out", operand
        case ast.IfExp(_, body, orelse):
            yield "always", body
            yield "never", orelse
        case ast.Constant(bool() as value):
            yield "true for false", ast.Constant(not value)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp() if any(
            part.ifs for part in node.generators
        ):
            copied = ast.parse(ast.unparse(node), mode="eval").body
            assert isinstance(copied, type(node))
            for part in copied.generators:
                part.ifs = []
            yield "condition left out", copied
