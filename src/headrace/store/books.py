"""The store's own tables: what it holds views for, how far they came, and what became of events.

They are tables of a backend like those of the kinds. `progress` and `streams` have one row each for
a view and a stream, replaced by every tick that moves it; `ledger`, `feed`, `dead_letters` and
`dropped` grow by the tick and are pruned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import pyarrow as pa

from headrace.kinds.contract import PROGRESS
from headrace.model.plan import BoundColumn
from headrace.model.tables import HIGH, LOW, VIEW, Fetch, TableDefinition, TableDelta
from headrace.model.types import parse_type
from headrace.store.contract import Counts, StreamCounts

__all__ = [
    "BOOKS",
    "CATALOG",
    "DEAD_LETTERS",
    "DECISIONS",
    "DROPPED",
    "FEED",
    "LATE_STREAMS",
    "LEDGER",
    "NUMBERS",
    "PROGRESS_BOOK",
    "REPLAYS",
    "STREAMS",
    "decode_offsets",
    "encode_offsets",
    "gone",
    "number_delta",
    "older_rows",
    "rows_of",
]


def _book(name: str, key: Sequence[str], columns: Mapping[str, str]) -> TableDefinition:
    bound = tuple(BoundColumn(column, parse_type(type_)) for column, type_ in columns.items())
    return TableDefinition(name, bound, tuple(key))


# Single numbers: the format of the tables, the next view's number, the lowest tick of the feed.
NUMBERS = _book("numbers", ["name"], {"name": "STRING", "value": "BIGINT"})

# `columns` are the public (name, Spark type), `hidden` the names of the keys behind them in
# `rows_sql`, which selects both; `tables` are those of the view's kind, `shape` names the stack. A
# view that took the place of others goes on with their change feed: `formers` are their (number,
# shape); from ticks before `feed_from` it cannot be followed.
CATALOG = _book(
    "catalog",
    ["number"],
    {
        "number": "INT",
        "view": "STRING",
        "stream": "STRING",
        "fingerprint": "STRING",
        "sql": "STRING",
        "columns": "STRING",
        "hidden": "STRING",
        "rows_sql": "STRING",
        "shape": "STRING",
        "tables": "STRING",
        "state": "STRING",
        "detail": "STRING",
        "created_tick": "BIGINT",
        "start_offsets": "STRING",
        "formers": "STRING",
        "feed_from": "BIGINT",
    },
)

# What kinds know of it: VIEW and watermark. `rows` are those that readers see.
PROGRESS_BOOK = _book(
    PROGRESS,
    [VIEW],
    {
        VIEW: "INT",
        "watermark": "BIGINT",
        "tick": "BIGINT",
        "offsets": "STRING",
        "rows": "BIGINT",
        **{count.name: "BIGINT" for count in fields(Counts)},
    },
)

STREAMS = _book(
    "streams",
    ["stream"],
    {
        "stream": "STRING",
        "offsets": "STRING",
        **{count.name: "BIGINT" for count in fields(StreamCounts)},
    },
)

# `moves` says which views the tick moved, and to where.
LEDGER = _book(
    "ledger",
    ["tick"],
    {
        "tick": "BIGINT",
        "generation": "BIGINT",
        "started_at": "TIMESTAMP",
        "committed_at": "TIMESTAMP",
        "events": "BIGINT",
        "milliseconds": "DOUBLE",
        "moves": "STRING",
    },
)

# The public changes of one tick to the views of one shape; `changes` is NULL where the rows of the
# kind are the feed themselves. `rows` counts rows before and after.
FEED = _book(
    "feed",
    ["tick", "shape"],
    {
        "tick": "BIGINT",
        "shape": "STRING",
        "views": "ARRAY<INT>",
        "rows": "BIGINT",
        "changes": "BINARY",
    },
)

DEAD_LETTERS = _book(
    "dead_letters",
    ["tick", "ordinal"],
    {
        "tick": "BIGINT",
        "ordinal": "INT",
        "number": "INT",
        "stream": "STRING",
        "partition": "INT",
        "offset": "BIGINT",
        "reason": "STRING",
        "raw": "STRING",
    },
)

# Which table has the events of a stream that were set aside (see late.py).
LATE_STREAMS = _book("late_streams", ["stream"], {"stream": "STRING", "number": "INT"})

DROPPED = _book(
    "dropped",
    ["tick", "ordinal"],
    {
        "tick": "BIGINT",
        "ordinal": "INT",
        "view": "STRING",
        "stream": "STRING",
        "window_start": "TIMESTAMP",
        "window_end": "TIMESTAMP",
        "events": "BIGINT",
        "reason": "STRING",
    },
)

DECISIONS = _book(
    "decisions",
    ["stream", "partition", "offset"],
    {
        "stream": "STRING",
        "partition": "INT",
        "offset": "BIGINT",
        "decision": "STRING",
        "decided_at": "TIMESTAMP",
    },
)

# Events that had been applied to views after they were set aside, before the views were rebuilt;
# `come` is how far the view had come in their partition by then.
REPLAYS = _book(
    "replays",
    ["stream", "view", "partition", "offset"],
    {
        "stream": "STRING",
        "view": "STRING",
        "partition": "INT",
        "offset": "BIGINT",
        "come": "BIGINT",
    },
)

BOOKS = (
    NUMBERS,
    CATALOG,
    PROGRESS_BOOK,
    STREAMS,
    LEDGER,
    FEED,
    DEAD_LETTERS,
    LATE_STREAMS,
    DROPPED,
    DECISIONS,
    REPLAYS,
)


def rows_of(book: TableDefinition, columns: Mapping[str, Any]) -> pa.Table:
    """Each column of the book by its name."""
    arrays = [pa.array(columns[field.name], field.type) for field in book.schema]
    return pa.Table.from_arrays(arrays, schema=book.schema)


def gone(book: TableDefinition, **columns: Sequence[Any]) -> pa.Table:
    """For a TableDelta: the rows that are equal to these in the columns named."""
    schema = pa.schema([book.schema.field(name) for name in columns])
    arrays = [pa.array(values, schema.field(name).type) for name, values in columns.items()]
    return pa.Table.from_arrays(arrays, schema=schema)


def number_delta(**numbers: int) -> TableDelta:
    """Set numbers."""
    names, values = list(numbers), list(numbers.values())
    return TableDelta(
        NUMBERS.name,
        gone(NUMBERS, name=names),
        rows_of(NUMBERS, {"name": names, "value": values}),
    )


@cache
def _bounds_schema() -> pa.Schema:
    return pa.schema([(LOW, pa.int64()), (HIGH, pa.int64())])


def older_rows(book: TableDefinition, tick: int) -> Fetch:
    """The rows of ticks up to this one."""
    bounds = pa.Table.from_arrays(
        [pa.array([None], pa.int64()), pa.array([tick], pa.int64())], schema=_bounds_schema()
    )
    return Fetch(book.name, (), bounds, "tick", ())


def encode_offsets(offsets: Mapping[int, int]) -> str:
    return json.dumps({str(partition): offsets[partition] for partition in sorted(offsets)})


def decode_offsets(text: str) -> dict[int, int]:
    return {int(partition): offset for partition, offset in json.loads(text).items()}
