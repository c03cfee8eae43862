"""What became of a view's rows between two looks, whatever number of ticks lie between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.store.contract import ViewChange
from headrace.testing.rows import Row

__all__ = ["NetChanges", "net_changes"]


@dataclass(frozen=True)
class NetChanges:
    """Rows that came, pairs (before, after) of rows that are others now, rows that went."""

    added: Sequence[Row]
    changed: Sequence[tuple[Row, Row]]
    removed: Sequence[Row]


def net_changes(
    ticks: Iterable[ViewChange], keys: Sequence[str], left_out: Iterable[str]
) -> NetChanges:
    """A row that a tick made and a later one replaced was never seen, so it is no change. Rows are
    paired by the columns `keys`; `left_out` are columns that are no part of a change."""
    came: dict[str, list[Row]] = defaultdict(list)
    went: dict[str, list[Row]] = defaultdict(list)
    for tick in ticks:
        for row in _rows(tick.before, left_out):
            _cancel_or_keep(row, came, went)
        for row in _rows(tick.after, left_out):
            _cancel_or_keep(row, went, came)
    befores: dict[str, list[Row]] = defaultdict(list)
    for row in (row for rows in went.values() for row in rows):
        befores[_text(row, keys)].append(row)
    added: list[Row] = []
    changed: list[tuple[Row, Row]] = []
    for row in (row for rows in came.values() for row in rows):
        same = befores[_text(row, keys)]
        if same:
            changed.append((same.pop(0), row))
        else:
            added.append(row)
    return NetChanges(added, changed, [row for rows in befores.values() for row in rows])


def _rows(table: pa.Table, left_out: Iterable[str]) -> list[Row]:
    rows: list[Row] = table.drop_columns(list(left_out)).to_pylist()
    return rows


def _cancel_or_keep(row: Row, others: dict[str, list[Row]], kept: dict[str, list[Row]]) -> None:
    text = _text(row, row)
    if others[text]:
        others[text].pop()
    else:
        kept[text].append(row)


def _text(row: Row, names: Iterable[str]) -> str:
    """Equal for equal values; that of a NaN too."""
    return repr([row[name] for name in names])
