"""Deleting the rows of a table whose keys no file has.

The keys of the files and of the table are put side by side in a DuckDB database on disk, so the
memory is bounded however many they are. A row of a file that could not be taken has its key all the
same: the table's row stays.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import duckdb
import pyarrow as pa

from headrace.formats.arrow_stream import ArrowDecoder
from headrace.formats.changes import with_deletes
from headrace.formats.json_batch import JsonDecoder
from headrace.loading.bodies import ARROW, Body
from headrace.loading.files import LINE_BYTES_MAX, ROWS_MAX, STDIN
from headrace.loading.sender import Numbers, Sender, Tally, producer_of
from headrace.loading.target import keys_of
from headrace.model.definitions import Stream

__all__ = ["delete_what_lacks"]

MEMORY = "512MB"
PAGE_ROWS = 50_000
ENGINE_SECONDS_MAX = 600.0  # the longest wait for the table to have what was loaded
_NESTING_MAX = 64


def delete_what_lacks(sender: Sender, table: Stream, bodies: Iterable[Body], covers: str) -> int:
    """How many rows were deleted. `covers` is the token of what was loaded, or `now`: the table is
    asked once it has taken that in."""
    keys = keys_of(table)
    deletes = Numbers(producer_of(STDIN, table.name), 0, 0)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="headrace-load-") as folder:
        place = Path(folder)
        with duckdb.connect(str(place / "keys.duckdb"), config=_config(place)) as database:
            _store(database, "loaded", _keys_of_bodies(keys, bodies), keys)
            _store(database, "stored", _keys_of_table(sender, keys, covers), keys)
            for batch in _lacking(database, keys):
                at = Numbers(deletes.producer, 0, tally.rows)
                sender.send(_body(with_deletes(batch)), at, tally)
    if tally.rows:
        sender.finish([deletes.producer])
    return tally.rows


def _config(folder: Path) -> dict[str, str | bool | int | float | list[str]]:
    return {"memory_limit": MEMORY, "threads": 2, "temp_directory": str(folder)}


def _store(
    database: duckdb.DuckDBPyConnection, name: str, batches: Iterable[pa.RecordBatch], keys: Stream
) -> None:
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in keys.columns])
    database.register("batch", pa.Table.from_batches([], schema))
    database.execute(f"CREATE TABLE {name} AS FROM batch")
    for batch in batches:
        database.register("batch", pa.Table.from_batches([batch]))
        database.execute(f"INSERT INTO {name} FROM batch")


def _lacking(database: duckdb.DuckDBPyConnection, keys: Stream) -> Iterator[pa.RecordBatch]:
    names = ", ".join('"' + c.name.replace('"', '""') + '"' for c in keys.columns)
    found = database.sql(f"SELECT {names} FROM stored ANTI JOIN loaded USING ({names})")
    reader: pa.RecordBatchReader = found.to_arrow_reader(ROWS_MAX)
    for batch in reader:
        if batch.num_rows:
            yield batch


def _keys_of_bodies(keys: Stream, bodies: Iterable[Body]) -> Iterator[pa.RecordBatch]:
    arrow = ArrowDecoder(keys)
    json = JsonDecoder(keys, line_bytes_max=LINE_BYTES_MAX, nesting_max=_NESTING_MAX)
    for body in bodies:
        if body.content_type == ARROW:
            decoded, _, _ = arrow.decode(body.content, ROWS_MAX)
        else:
            decoded = json.decode([line.strip() for line in body.content.split(b"\n")])
        yield from decoded.batches


def _keys_of_table(sender: Sender, keys: Stream, covers: str) -> Iterator[pa.RecordBatch]:
    path = f"/v1/tables/{quote(keys.name, safe='')}"
    names = [column.name for column in keys.columns]
    limit = {"limit": str(PAGE_ROWS)}
    parameters = {**limit, "covers": covers, "wait_seconds": "30"}
    while True:
        page = sender.ask(
            "GET",
            path,
            params=parameters,
            headers={"accept": ARROW},
            covered_seconds_max=ENGINE_SECONDS_MAX,
        )
        with pa.ipc.open_stream(page.content) as rows:
            for batch in rows:
                yield batch.select(names)
        cursor = page.headers.get("headrace-next-cursor")
        if cursor is None:
            return
        parameters = {**limit, "cursor": cursor}


def _body(batch: pa.RecordBatch) -> Body:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Body(sink.getvalue(), ARROW)
