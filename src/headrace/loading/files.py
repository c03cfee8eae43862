"""Files to pieces of rows, in order and with bounded memory: CSV as texts, Parquet as its own
types, NDJSON as lines. A piece knows how much of the file was read for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from headrace.model.definitions import COLUMNS_MAX, Stream
from headrace.model.errors import SettingsError

__all__ = ["FORMATS", "STDIN", "Piece", "format_of", "read_pieces", "size_of"]

STDIN = Path("-")
FORMATS = ("csv", "tsv", "parquet", "ndjson")
ROWS_MAX = 50_000  # of a piece
BLOCK_BYTES = 4 * 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024
_ENDINGS = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet",
            ".ndjson": "ndjson", ".jsonl": "ndjson"}  # fmt: skip
_CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class Piece:
    """Rows one after the other: an Arrow batch whose columns have the table's names, or lines of
    NDJSON. `read_bytes` is how far the file was read with them."""

    records: pa.RecordBatch | Sequence[bytes]
    read_bytes: int

    def __len__(self) -> int:
        return len(self.records)

    def slice(self, start: int, count: int) -> Piece:
        records = self.records
        if isinstance(records, pa.RecordBatch):
            return Piece(records.slice(start, count), self.read_bytes)
        return Piece(records[start : start + count], self.read_bytes)

    @property
    def size_bytes(self) -> int:
        records = self.records
        if isinstance(records, pa.RecordBatch):
            return int(records.nbytes)
        return sum(map(len, records)) + len(records)


def format_of(file: Path, given: str | None) -> str:
    """Raises SettingsError for an ending that says nothing."""
    if given is not None:
        return given
    plain = file.with_suffix("") if file.suffix in _CODECS else file
    found = _ENDINGS.get(plain.suffix.lower())
    if found is None:
        what = "standard input" if file == STDIN else str(file)
        raise SettingsError(
            f"the format of {what} is not known", hint=f"say --format {'|'.join(FORMATS)}"
        )
    return found


def size_of(file: Path) -> int | None:
    """None where nobody knows. Raises SettingsError for a file that cannot be read."""
    if file == STDIN:
        return None
    try:
        with file.open("rb"):
            return file.stat().st_size
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from error


def read_pieces(file: Path, kind: str, table: Stream) -> Iterator[Piece]:
    """Pieces of at most ROWS_MAX rows and, but for single long rows, about BLOCK_BYTES. The same
    file gives the same rows in the same order. Raises SettingsError for a file that is not of this
    kind."""
    try:
        for piece in _pieces(file, kind, table):
            count = max(1, min(ROWS_MAX, len(piece) * BLOCK_BYTES // max(piece.size_bytes, 1)))
            for start in range(0, len(piece), count):
                yield piece.slice(start, count)
    except pa.ArrowException as error:
        raise SettingsError(
            f"{file} cannot be read as {kind}: {str(error)[:300]}",
            hint="what was loaded before is kept; once the file is right, load it again",
        ) from error
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror or error}") from error


def _pieces(file: Path, kind: str, table: Stream) -> Iterator[Piece]:
    if kind == "parquet":
        if file == STDIN:
            raise SettingsError("Parquet is not read from standard input", hint="name a file")
        yield from _parquet(file, table)
        return
    with _opened(file) as (raw, stream):
        if kind == "ndjson":
            yield from _lines(raw, stream)
        else:
            yield from _csv(raw, stream, "\t" if kind == "tsv" else ",", str(file), table)


@contextmanager
def _opened(file: Path) -> Iterator[tuple[IO[bytes], Any]]:
    """The file, whose place says how far it was read, and what comes out of it."""
    if file == STDIN:
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    codec = _CODECS.get(file.suffix)
    with file.open("rb") as raw:
        yield raw, raw if codec is None else pa.CompressedInputStream(raw, codec)


def _place(raw: IO[bytes]) -> int:
    return raw.tell() if raw.seekable() else 0


def _lines(raw: IO[bytes], stream: Any) -> Iterator[Piece]:
    rest = b""
    while block := stream.read(BLOCK_BYTES):
        whole, newline, tail = block.rpartition(b"\n")
        if not newline:
            rest += tail
            if len(rest) > LINE_BYTES_MAX:
                raise SettingsError(
                    f"a line is longer than {LINE_BYTES_MAX:,} bytes", hint="is it NDJSON?"
                )
            continue
        lines = [line for line in (rest + whole).split(b"\n") if line.strip()]
        rest = tail
        if lines:
            yield Piece(lines, _place(raw))
    if rest.strip():
        yield Piece([rest], _place(raw))


def _csv(raw: IO[bytes], stream: Any, delimiter: str, file: str, table: Stream) -> Iterator[Piece]:
    """All columns as texts. An empty field is NULL, an empty text is written in quotes."""
    names = {f"f{number}": pa.string() for number in range(2 * COLUMNS_MAX)}
    try:
        reader = pacsv.open_csv(
            stream,
            pacsv.ReadOptions(autogenerate_column_names=True, block_size=BLOCK_BYTES),
            pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pacsv.ConvertOptions(
                column_types=names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        raise
    chosen: list[tuple[int, str]] | None = None
    for batch in reader:
        if chosen is None:
            if not batch.num_rows:
                continue
            header = [column[0].as_py() or "" for column in batch.columns]
            chosen = _chosen(header, file, table)
            batch = batch.slice(1)
        if batch.num_rows:
            yield Piece(_named(batch, chosen), _place(raw))


def _parquet(file: Path, table: Stream) -> Iterator[Piece]:
    with pq.ParquetFile(file) as source:
        total, size = source.metadata.num_rows, file.stat().st_size
        header = source.schema_arrow.names
        chosen = _chosen(header, str(file), table)
        wanted = [header[index] for index, _ in chosen]
        read = 0
        for batch in source.iter_batches(batch_size=ROWS_MAX, columns=wanted):
            read += batch.num_rows
            named = [(batch.schema.names.index(header[i]), name) for i, name in chosen]
            yield Piece(_named(batch, named), size * read // max(total, 1))


def _named(batch: pa.RecordBatch, chosen: Sequence[tuple[int, str]]) -> pa.RecordBatch:
    arrays = [_plain(batch.column(index)) for index, _ in chosen]
    return pa.RecordBatch.from_arrays(arrays, names=[name for _, name in chosen])


def _plain(array: pa.Array) -> pa.Array:
    """In a type that the gateway takes: without dictionary, and cut off at microseconds as in
    JSON."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        return array.cast(pa.string())
    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        return array.cast(pa.timestamp("us", array.type.tz), safe=False)
    return array


def _chosen(header: Sequence[str], file: str, table: Stream) -> list[tuple[int, str]]:
    """The places of the table's columns, and their names there. Case does not count, as in SQL.
    Raises SettingsError where a column that every row needs is missing, or one is there twice."""
    assert table.changelog is not None
    by_name = {column.name.lower(): column.name for column in table.columns}
    chosen = [
        (place, by_name[name.strip().lower()])
        for place, name in enumerate(header)
        if name.strip().lower() in by_name
    ]
    found = [name for _, name in chosen]
    needed = dict.fromkeys((*table.changelog.key, *table.changelog.required))
    missing = [name for name in needed if name not in found]
    if missing:
        raise SettingsError(
            f"{file} lacks the column {', '.join(missing)} of the table {table.name}",
            hint=f"its columns are {', '.join(header)[:300]}; the first line names them",
        )
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise SettingsError(f"{file} has the column {twice} twice", hint="name it once")
    return chosen
