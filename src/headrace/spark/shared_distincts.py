"""Distinct values of one expression under several filters, found by one grouping.

`count(DISTINCT x) FILTER (WHERE a)` and `count(DISTINCT x) FILTER (WHERE b)` are the values of
`CASE WHEN a THEN x END` and of `CASE WHEN b THEN x END`. A grouping for each would make every event
two structs and two groups. Instead the events are grouped by x once, and each group says which of
the filters one of its events met. Here the groups become the values of each distinct again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import sqlglot

from headrace.model.plan import Partial
from headrace.spark.aggregations import VALUE, Grouping

__all__ = ["SharedDistincts", "share_distincts"]

Keys = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SharedDistincts:
    """`grouping` stands for the distincts with these names; each is a column of its result."""

    grouping: Grouping
    distincts: tuple[str, ...]

    def split(self, table: pa.Table) -> dict[str | None, pa.Table]:
        """The keys and values of each distinct; those without any are left out."""
        found: dict[str | None, pa.Table] = {}
        for name in self.distincts:
            values = table.filter(table.column(name)).drop_columns(list(self.distincts))
            if values.num_rows:
                found[name] = values
        return found


def share_distincts(
    groupings: Sequence[Grouping], where: str | None
) -> tuple[list[Grouping], list[SharedDistincts]]:
    """The groupings of one view that stay as they are, and those that stand for several. `where` is
    the view's."""
    alike: dict[tuple[Keys, str], list[tuple[Grouping, str | None]]] = {}
    rest: list[Grouping] = []
    for grouping in groupings:
        if grouping.distinct is None:
            rest.append(grouping)
            continue
        keys, (_, text) = grouping.keys[:-1], grouping.keys[-1]
        condition, value = _parted(text)
        alike.setdefault((keys, value), []).append((grouping, condition))
    shared = []
    for (keys, value), members in alike.items():
        if len(members) == 1:
            rest.append(members[0][0])
        else:
            shared.append(_shared(keys, value, members, where))
    return rest, shared


def _shared(
    keys: Keys, value: str, members: Sequence[tuple[Grouping, str | None]], where: str | None
) -> SharedDistincts:
    met = ["true" if c is None else f"coalesce(({c}), false)" for _, c in members]
    conditions = [] if where is None else [f"({where})"]
    if "true" not in met:  # x itself is only asked for where one of the filters is met
        conditions.append(f"({' OR '.join(met)})")
    conditions.append(f"({value}) IS NOT NULL")
    names = tuple(grouping.distinct or "" for grouping, _ in members)
    flags = tuple(Partial(name, "max", sql, "") for name, sql in zip(names, met, strict=True))
    view = members[0][0].view
    whole = Grouping(view, names[0], " AND ".join(conditions), (*keys, (VALUE, value)), flags)
    return SharedDistincts(whole, names)


def _parted(text: str) -> tuple[str | None, str]:
    """a and x of `CASE WHEN a THEN x END`; of anything else None and the whole."""
    tokens = sqlglot.tokenize(text, read="spark")
    kinds = [token.token_type.name for token in tokens]
    if kinds[:2] != ["CASE", "WHEN"] or kinds[-1] != "END":
        return None, text
    depth, then = 0, []
    for number, kind in enumerate(kinds):
        depth += (kind == "CASE") - (kind == "END")
        if depth == 1 and kind == "ELSE":
            return None, text
        if depth == 1 and kind == "THEN":
            then.append(number)
        if depth == 0 and number < len(kinds) - 1:
            return None, text  # what follows belongs to another expression
    if len(then) != 1:
        return None, text
    condition = text[tokens[1].end + 1 : tokens[then[0]].start]
    return condition.strip(), text[tokens[then[0]].end + 1 : tokens[-1].start].strip()
