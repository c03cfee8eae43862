"""How large a query's values and rows can get, judged before it runs.

A size is in characters, where a column of a view counts as COLUMN_CHARACTERS. It is followed from
the views through common table expressions and subqueries to the outermost SELECT, and so is the
number of relations, since DuckDB writes a common table expression out wherever it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.model.errors import QueryError
from headrace.store.reading.functions import (
    FIXED,
    GATHERING,
    LENGTHENING,
    MULTIPLYING,
    SUMMED,
    WIDENED,
)

__all__ = ["Sizes"]

ROW_CHARACTERS_MAX = 16_384
COLUMN_CHARACTERS = 32
FIXED_CHARACTERS = 8
GATHERED_CHARACTERS = 2_048
VIEW_COLUMNS = 16
RELATIONS_MAX = 64
GROUPING_SETS_MAX = 64
ARRAY_LENGTH_MAX = 64
WIDENING = 16
EXTREMES = {"min": 1, "max": 1} | dict.fromkeys(
    ("arg_max", "arg_max_null", "arg_min", "arg_min_null", "argmax", "argmin", "max_by", "min_by"),
    2,
)

Node = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Of what a query node or relation gives: its relations written out, its widest column and
    its row."""

    relations: int = 0
    column: int = COLUMN_CHARACTERS
    row: int = 0

    def beside(self, other: Shape) -> Shape:
        return Shape(
            self.relations + other.relations,
            max(self.column, other.column),
            self.row + other.row,
        )


VIEW = Shape(1, COLUMN_CHARACTERS, VIEW_COLUMNS * COLUMN_CHARACTERS)


@dataclass(frozen=True)
class _Level:
    """Where an expression stands. `names` are the sizes of the outputs named before it, which
    DuckDB lets it use; `inner` are the relations of the subqueries met so far."""

    ctes: Mapping[str, Shape]
    source: Shape
    is_outermost: bool = False
    names: dict[str, int] = field(default_factory=dict)
    inner: list[int] = field(default_factory=list)


class Sizes:
    """`check_view` is called with the path of every name that is no common table expression."""

    def __init__(self, check_view: Callable[[list[str]], None]) -> None:
        self._check_view = check_view

    def check(self, node: Node) -> None:
        """Raises QueryError (413) for what could get too large."""
        self._query(node, {}, Shape(), is_outermost=True)

    # Relations

    def _query(
        self, node: Node, ctes: Mapping[str, Shape], outer: Shape, *, is_outermost: bool = False
    ) -> Shape:
        known = dict(ctes)
        for entry in (node.get("cte_map") or {}).get("map") or ():
            value = entry["value"]
            inner = value.get("query_node") or value["query"]["node"]
            known[entry["key"].lower()] = self._query(inner, known, outer)
        if node["type"] == "RECURSIVE_CTE_NODE":
            return self._recursive(node, known, outer)
        if node["type"] == "SELECT_NODE":
            return self._select(node, known, outer, is_outermost)
        if node["type"] != "SET_OPERATION_NODE":
            raise QueryError("the query writes", hint="only one SELECT statement is accepted")
        arms = [node[side] for side in ("left", "right") if node.get(side)]
        shapes = [self._query(arm, known, outer) for arm in (*arms, *(node.get("children") or ()))]
        self._modifiers(node, _Level(known, _widest(shapes)))
        return self._bounded(_widest(shapes))

    def _recursive(self, node: Node, ctes: Mapping[str, Shape], outer: Shape) -> Shape:
        name = node["cte_name"].lower()
        first = self._query(node["left"], ctes, outer)
        second = self._query(node["right"], {**ctes, name: first}, outer)
        third = self._query(node["right"], {**ctes, name: second}, outer)
        if third.column - second.column > max(second.column - first.column, 0):
            raise QueryError(
                f"the recursive query {name} makes longer and longer values",
                hint="recurse over numbers and keys, and put texts together afterwards",
            )
        return self._bounded(_widest([first, second]))

    def _select(
        self, node: Node, ctes: Mapping[str, Shape], outer: Shape, is_outermost: bool
    ) -> Shape:
        if len(node.get("group_sets") or ()) > GROUPING_SETS_MAX:
            raise _too_large(f"more than {GROUPING_SETS_MAX} grouping sets")
        source = self._relation(node.get("from_table"), ctes, outer)
        seen = Shape(source.relations, max(source.column, outer.column), source.row)
        level = _Level(ctes, seen, is_outermost)
        row, widest = 0, 1
        for item in node["select_list"]:
            size = self._size(item, level)
            is_star = item.get("class") == "STAR"
            row += max(source.row, 1) if is_star else size
            widest = max(widest, size)
            if item.get("alias"):
                level.names[item["alias"].lower()] = size
        for name, part in node.items():
            if name not in ("select_list", "from_table", "cte_map", "modifiers"):
                self._expressions(part, level)
        self._modifiers(node, level)
        return self._bounded(Shape(source.relations + sum(level.inner), widest, row))

    def _modifiers(self, node: Node, level: _Level) -> None:
        for modifier in node.get("modifiers") or ():
            self._expressions(modifier, level)

    def _relation(self, table: Node | None, ctes: Mapping[str, Shape], outer: Shape) -> Shape:
        kind = table["type"] if table else "EMPTY"
        if table is None or kind == "EMPTY":
            return Shape(1, 1)
        if kind == "BASE_TABLE":
            return self._named(table["qualified_name"]["path"], ctes)
        if kind == "SUBQUERY":
            return self._query(table["subquery"]["node"], ctes, outer)
        if kind == "SHOW_REF":
            if not table.get("query"):
                raise QueryError("SHOW is not available in queries", hint="GET /v1/views lists all")
            return VIEW.beside(self._query(table["query"], ctes, outer))
        found = Shape()
        level = _Level(ctes, outer)
        if kind == "JOIN":
            for side in ("left", "right"):  # a lateral right side sees the left
                found = found.beside(self._relation(table[side], ctes, _widest([outer, found])))
            self._expressions(table.get("condition"), _Level(ctes, found))
        elif kind == "TABLE_FUNCTION":
            sizes = [self._size(a, level) for a in _arguments(table["function"])]
            found = Shape(1, max([COLUMN_CHARACTERS, *sizes]), sum(sizes) + 2 * FIXED_CHARACTERS)
        elif kind == "EXPRESSION_LIST":
            rows = [[self._size(v, level) for v in values] for values in table["values"]]
            found = Shape(1, max(map(max, rows)), max(map(sum, rows)))
        elif kind == "PIVOT":
            found = VIEW.beside(self._relation(table["source"], ctes, outer))
            rest = {name: part for name, part in table.items() if name != "source"}
            self._expressions(rest, _Level(ctes, found))
        else:
            raise QueryError(f"{kind} is not available in queries", hint="name views in FROM")
        return self._bounded(found)

    def _named(self, path: list[str], ctes: Mapping[str, Shape]) -> Shape:
        if len(path) == 1 and path[0].lower() in ctes:
            return ctes[path[0].lower()]
        self._check_view(path)
        return VIEW

    def _bounded(self, shape: Shape) -> Shape:
        if max(shape.row, shape.column) > ROW_CHARACTERS_MAX:
            raise _too_large(f"a row could get longer than {ROW_CHARACTERS_MAX} characters")
        if shape.relations > RELATIONS_MAX:
            raise _too_large(f"more than {RELATIONS_MAX} relations, written out")
        return shape

    # Expressions

    def _expressions(self, part: Any, level: _Level) -> None:
        for expression in _outermost_expressions(part):
            self._bounded(Shape(0, self._size(expression, level)))

    def _size(self, node: Node, level: _Level) -> int:
        kind, detail = node["class"], str(node.get("type", ""))
        if kind == "CONSTANT":
            return _constant_size(node)
        if kind == "COLUMN_REF":
            names = node["column_names"]
            return max(level.source.column, level.names.get(str(names[-1]).lower(), 0))
        if kind == "POSITIONAL_REFERENCE":
            return level.source.column
        if kind == "STAR":
            self._expressions([v for k, v in node.items() if k != "class"], level)
            return level.source.column
        if kind == "SUBQUERY":
            shape = self._query(node["subquery"]["node"], level.ctes, level.source)
            level.inner.append(shape.relations)
            self._expressions(node.get("child"), level)
            return shape.column
        if kind == "LAMBDA":
            raise QueryError("lambdas are not available in queries", hint="use unnest and a join")
        if kind == "TYPE":
            return _type_size(node)
        if kind == "FUNCTION":
            return self._call(node, _name(node), level)
        inner = level
        if kind == "WINDOW":
            inner = replace(level, is_outermost=False)
            if _name(node) in GATHERING:
                raise _refused(_name(node), "as a window function")
        sizes = [self._size(e, inner) for e in _outermost_expressions(list(node.values()))]
        if kind == "WINDOW" and _name(node) in FIXED:
            return FIXED_CHARACTERS
        is_truth = kind in ("COMPARISON", "CONJUNCTION", "BETWEEN")
        if is_truth or detail.startswith(("COMPARE_", "OPERATOR_IS", "OPERATOR_NOT")):
            self._bounded(Shape(0, max(sizes, default=1)))
            return FIXED_CHARACTERS
        return sum(sizes) + (FIXED_CHARACTERS if kind == "CAST" else 0)

    def _call(self, node: Node, name: str, level: _Level) -> int:
        arguments = _arguments(node)
        sizes = [self._size(argument, level) for argument in arguments]
        self._expressions([node.get("filter"), node.get("order_bys")], level)
        self._bounded(Shape(0, max(sizes, default=1)))
        if node.get("export_state"):
            raise _refused(name, "with its state")
        if name in FIXED:
            return FIXED_CHARACTERS
        if name in SUMMED:
            if len(arguments) > EXTREMES.get(name, len(arguments)):
                raise _refused(name, "for several rows at once")
            return sum(sizes)
        if name in WIDENED:
            return WIDENING * sum(sizes)
        if name in MULTIPLYING:
            return _multiplied(name, sizes)
        if name in LENGTHENING:
            return _lengthened(name, arguments, sizes)
        if name in GATHERING:
            if not level.is_outermost:
                raise _refused(name, "outside the outermost SELECT")
            return GATHERED_CHARACTERS
        raise _refused(name)


def _widest(shapes: list[Shape]) -> Shape:
    return Shape(
        sum(shape.relations for shape in shapes),
        max((shape.column for shape in shapes), default=1),
        max((shape.row for shape in shapes), default=0),
    )


def _outermost_expressions(part: Any) -> Iterator[Node]:
    if isinstance(part, dict):
        if "class" in part:
            yield part
        else:
            for value in part.values():
                yield from _outermost_expressions(value)
    elif isinstance(part, list):
        for value in part:
            yield from _outermost_expressions(value)


def _arguments(node: Node) -> list[Node]:
    return list(_outermost_expressions(node.get("arguments") or node.get("children") or []))


def _name(node: Node) -> str:
    return str(node.get("function_name", "")).lower()


def _constant_size(node: Node) -> int:
    literal = node.get("literal") or {}
    return max(len(str(literal.get("text", ""))), 1)


def _type_size(node: Node) -> int:
    for child in node.get("children") or ():
        if child["class"] == "TYPE":
            _type_size(child)
        elif str(node.get("type_name", "")).lower() == "array":
            length = _whole_number(child)
            if length is None or length > ARRAY_LENGTH_MAX:
                raise _too_large(f"an array type of more than {ARRAY_LENGTH_MAX} elements")
    return 0


def _multiplied(name: str, sizes: list[int]) -> int:
    if name == "concat_ws":
        return sum(sizes) + sizes[0] * len(sizes)
    if name == "array_to_string":
        return sizes[0] * (1 + max(sizes[1:], default=0))
    return sizes[0] * max(sizes[2:], default=1)


def _lengthened(name: str, arguments: list[Node], sizes: list[int]) -> int:
    times = _whole_number(arguments[1]) if len(arguments) > 1 else None
    if times is None:
        raise QueryError(
            f"{name}() by a value that is not written in the query is not available",
            hint=f"write the number: {name}(text, 20)",
        )
    return sizes[0] * times if name == "repeat" else sizes[0] + times


def _whole_number(node: Node) -> int | None:
    literal = node.get("literal") or {}
    text = str(literal.get("text", ""))
    return int(text) if node["class"] == "CONSTANT" and text.isascii() and text.isdigit() else None


def _refused(name: str, where: str = "") -> QueryError:
    return QueryError(
        f"{name}() is not available in queries {where}".rstrip(),
        hint="docs/reference/queries.md says which functions are",
    )


def _too_large(what: str) -> QueryError:
    return QueryError(
        f"the query may need too much memory or time: {what}", hint="narrow it down", status=413
    )
