"""Small changes to Python source, each of which a test should notice.

A change replaces the text of one node of the syntax tree; the rest of the file stays as it is. What no test can see is left
alone: docstrings, annotations, and what stands under ``if TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "|",
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """The text from byte *begin* to *end* of a file's UTF-8 is to be *replacement*. *line* is that of the begin, from 1.

    *statement* is the first and the last line of the statement around it, of which no more than the head where it has a body.
    *in_function* is false where it runs as its module is imported.
    """

    operator: str
    line: int
    begin: int
    end: int
    replacement: str
    statement: tuple[int, int]
    in_function: bool

    def apply(self, source: str) -> str:
        data = source.encode()
        return (data[: self.begin] + self.replacement.encode() + data[self.end :]).decode()


def mutations(source: str) -> list[Mutation]:
    """Every change that there is for *source*, in its order."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda mutation: (mutation.begin, mutation.end, mutation.operator))


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self._source = source
        lines = source.encode().splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._functions = 0
        self._statement = (1, 1)
        self.found: list[Mutation] = []

    def _begin(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source.encode()[self._begin(node) : self._end(node)].decode()

    def _add(self, operator: str, node: ast.expr | ast.stmt, replacement: str) -> None:
        self._note(operator, node.lineno, self._begin(node), self._end(node), replacement)

    def _note(self, operator: str, line: int, begin: int, end: int, replacement: str) -> None:
        in_function = self._functions > 0
        self.found.append(Mutation(operator, line, begin, end, replacement, self._statement, in_function))

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        around = self._statement
        self._statement = _head(node)
        super().visit(node)
        self._statement = around

    # ---------------------------------------------------------------------------------------- what is passed over

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        if any(ast.unparse(decorator).endswith(("overload", "abstractmethod")) for decorator in node.decorator_list):
            return
        self._functions += 1
        for statement in node.body:
            self.visit(statement)
        self._functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._functions += 1
        self.visit(node.body)
        self._functions -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            return
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and ast.unparse(node.annotation) != "TypeAlias":
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        # `Callback = Callable[...] | None` at the top of a module or class is a type.
        if self._functions or not isinstance(node.value, ast.Subscript | ast.BinOp) or not _is_type(node.value):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func) in ("cast", "TypeVar", "NewType"):
            for argument in node.args[1:]:
                self.visit(argument)
            return
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 the places of what is in an f-string are wrong."""

    # ---------------------------------------------------------------------------------------- statements

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call | ast.Await):
            self._add("statement", node, "pass")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add("statement", node, "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("raise", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("statement", node, "pass")
        self.visit(node.value)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and not node.value.value):
            self._add("return", node, "return None")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._add("loop", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add("loop", node, "break")

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for statement in node.orelse:
                self.visit(statement)
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._condition(test)
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        """Turn it round, where no comparison or ``not`` in it does the same."""
        if not isinstance(test, ast.Compare) and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            self._add("condition", test, f"(not ({self._text(test)}))")

    # ---------------------------------------------------------------------------------------- expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            self._between("comparison", node, node.left, node.comparators[0], _COMPARISONS[type(node.ops[0])])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        of_text = any(
            isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in (node.left, node.right)
        )
        if type(node.op) in _ARITHMETIC and not of_text:
            self._between("arithmetic", node, node.left, node.right, _ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:]):
            self._between("logic", node, left, right, other)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub) and not isinstance(node.operand, ast.Constant):
            self._add("sign", node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._add("constant", node, str(node.value + 1))
        elif isinstance(node.value, float):
            self._add("constant", node, str(node.value * 2))

    def _between(self, operator: str, node: ast.expr, left: ast.expr, right: ast.expr, new: str) -> None:
        """Replace the operator between two operands, with the text around it: parentheses of theirs are outside them."""
        begin, end = self._end(left), self._begin(right)
        between = self._source.encode()[begin:end].decode()
        closing, opening = between.rpartition(")")[:2], between.partition("(")[1:]
        replacement = "".join(closing) + f" {new} " + "".join(opening)
        if "\n" in between or "#" in between:
            return  # an operator at the end of a line, or at the beginning of one
        assert left.end_lineno is not None
        self._note(operator, left.end_lineno, begin, end, replacement)


def _is_type(node: ast.expr) -> bool:
    """Whether *node* looks as types do: names that begin with a capital, or are a built-in type's."""
    names = [found.id for found in ast.walk(node) if isinstance(found, ast.Name)]
    return any(name[0].isupper() and not name.isupper() for name in names)


def _head(node: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, without those of its body."""
    assert node.end_lineno is not None
    body = getattr(node, "body", None)
    return node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
