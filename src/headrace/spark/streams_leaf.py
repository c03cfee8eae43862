"""The leaf of the plan that serves small ticks: rows of several streams in one table.

Columns of equal type are shared: a row says by a number which stream it is of, and each stream
knows in which slot it finds which of its columns. A second group of columns says which views take
the row, so a view that is behind, halted or failed is left out by what a tick hands to the leaf.

This runs in Spark's Python workers, as spark/leaf.py does.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.log.contract import Range
from headrace.model.types import DataType
from headrace.spark.event_annotations import load_annotations
from headrace.spark.leaf import Source

__all__ = [
    "INPUTS_PROPERTY",
    "STREAM",
    "VIEWS_PER_WORD",
    "StreamInput",
    "StreamsSource",
    "encode_inputs",
    "views_column",
]

INPUTS_PROPERTY = "headrace.inputs"
STREAM = "_stream"  # INT, the number of the row's stream in the plan
VIEWS_PER_WORD = 32


def views_column(word: int) -> str:
    """BIGINT: bit b says whether the view with the number 32 * word + b takes the row."""
    return f"_views{word}"


@dataclass(frozen=True)
class StreamInput:
    """What one tick reads of the stream with this number, and for which of its views."""

    number: int
    views: tuple[int, ...]
    annotations_file: str
    ranges: tuple[Range, ...]


def encode_inputs(inputs: Sequence[StreamInput]) -> str:
    """The job's local property. Rows come in the order of the streams' numbers."""
    found = sorted(inputs, key=lambda one: one.number)
    return json.dumps(
        [
            (
                i.number,
                i.views,
                i.annotations_file,
                [(r.partition, r.start, r.end, r.rows) for r in i.ranges],
            )
            for i in found
        ]
    )


def _decode_inputs(text: str) -> list[StreamInput]:
    return [
        StreamInput(number, tuple(views), file, tuple(Range(*item) for item in ranges))
        for number, views, file, ranges in json.loads(text)
    ]


@dataclass(frozen=True)
class StreamsSource:
    """Several sources, and for each the column behind every slot it uses; `types` are the slots in
    the order of the table's columns, `words` how many columns say which views take a row."""

    sources: tuple[Source, ...]
    columns: tuple[Mapping[str, str], ...]
    types: Mapping[str, DataType]
    words: int

    def ddl(self) -> str:
        own = [f"`{STREAM}` INT", *(f"`{views_column(w)}` BIGINT" for w in range(self.words))]
        return ", ".join([*own, *(f"`{name}` {of}" for name, of in self.types.items())])

    def reader_function(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """What mapInArrow runs. The definitions of all streams travel in every task as bytes that
        a worker unpacks once."""
        packed = pickle.dumps(self)

        def read_streams(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            inputs = _decode_inputs(context.getLocalProperty(INPUTS_PROPERTY) or "[]")
            for _ in numbers:
                pass
            yield from _unpacked(packed).read(inputs)

        return read_streams

    def read(self, inputs: Sequence[StreamInput]) -> Iterator[pa.RecordBatch]:
        pieces = [
            self._shared(one, batch)
            for one in inputs
            for wanted in one.ranges
            for batch in self.sources[one.number].read(
                wanted, load_annotations(one.annotations_file)
            )
        ]
        if pieces:
            yield from pa.Table.from_batches(pieces).combine_chunks().to_batches()

    def _shared(self, one: StreamInput, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        words = [0] * self.words
        for view in one.views:
            words[view // VIEWS_PER_WORD] |= 1 << view % VIEWS_PER_WORD
        arrays = [pa.array(np.full(rows, one.number, dtype=np.int32))]
        arrays += [pa.array(np.full(rows, word, dtype=np.int64)) for word in words]
        names = [STREAM, *map(views_column, range(self.words)), *self.types]
        columns = self.columns[one.number]
        for slot, of_type in self.types.items():
            column = columns.get(slot)
            if column is None:
                arrays.append(pa.nulls(rows, of_type.arrow))
            else:
                arrays.append(batch.column(column).cast(of_type.arrow))
        return pa.RecordBatch.from_arrays(arrays, names=names)


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> StreamsSource:
    source: StreamsSource = pickle.loads(packed)
    return source
