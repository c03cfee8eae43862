"""The four formats of an answer, chosen by Accept, and how each is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from headrace.formats.text import csv_line, csv_rows, json_rows
from headrace.model.errors import QueryError, RequestError
from headrace.model.moments import moment_text

__all__ = ["ARROW", "CSV", "JSON", "NDJSON", "Answer", "AnswerFreshness", "choose", "encode"]

JSON = "application/json"
NDJSON = "application/x-ndjson"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
FORMATS = (JSON, NDJSON, CSV, ARROW)

ROWS_AT_ONCE_MAX = 8_192
ANSWER_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class AnswerFreshness:
    """How fresh an answer is. It never claims more than the rows hold: the watermark and the
    pending events are asked for before the rows are read. `missing_events` and `silent_producers`
    (the names of at most SILENT_NAMED_MAX) are None where nobody watches producers; `text` says it
    all in words."""

    tick: int
    committed_at_microseconds: int | None
    complete_up_to_microseconds: int | None
    pending_events: int
    missing_events: int | None = None
    silent_producers: tuple[str, ...] | None = None
    text: str = ""

    def document(self) -> dict[str, object]:
        return {
            "tick": self.tick,
            "committed_at": _text(self.committed_at_microseconds),
            "complete_up_to": _text(self.complete_up_to_microseconds),
            "pending_events": self.pending_events,
            "missing_events": self.missing_events,
            "silent_producers": self.silent_producers,
            "text": self.text,
        }

    def headers(self) -> list[tuple[str, str]]:
        """What is not known has no header. Names are a JSON array in ASCII."""
        silent = self.silent_producers
        headers = {
            "headrace-tick": str(self.tick),
            "headrace-committed-at": _text(self.committed_at_microseconds),
            "headrace-complete-up-to": _text(self.complete_up_to_microseconds),
            "headrace-pending-events": str(self.pending_events),
            "headrace-missing-events": _number(self.missing_events),
            "headrace-silent-producers": None if silent is None else json.dumps(silent),
            "headrace-freshness": _header_text(self.text),
        }
        return [(name, value) for name, value in headers.items() if value is not None]


def _text(microseconds: int | None) -> str | None:
    return None if microseconds is None else moment_text(microseconds)


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _header_text(text: str) -> str:
    """Other than printable ASCII becomes "?": a header holds nothing else safely."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)


@dataclass(frozen=True)
class Answer:
    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    freshness: AnswerFreshness
    next_cursor: str | None = None


def choose(accept: str | None, offered: tuple[str, ...] = FORMATS) -> str:
    """The offered type with the highest q-value, the first offered among equals.

    A more exact range decides over a wider one, as RFC 9110 says. Raises RequestError (406).
    """
    if accept is None or not accept.strip():
        return offered[0]
    ranges = list(_ranges(accept))
    best, best_quality = "", 0.0
    for name in offered:
        matches = [(len(pattern), q) for pattern, q in ranges if _covers(pattern, name)]
        quality = max(matches)[1] if matches else 0.0
        if quality > best_quality:
            best, best_quality = name, quality
    if not best:
        raise RequestError(
            406,
            "not-acceptable",
            f"none of the formats in Accept ({accept[:200]}) can be given",
            hint=f"available are {', '.join(offered)}",
        )
    return best


def _ranges(accept: str) -> Iterator[tuple[str, float]]:
    for item in accept.split(","):
        pattern, *parameters = (part.strip().lower() for part in item.split(";"))
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    quality = min(1.0, max(0.0, float(value)))
                except ValueError:
                    quality = 0.0
        if pattern:
            yield pattern, quality


def _covers(pattern: str, name: str) -> bool:
    if pattern == "*/*":
        return True
    return pattern == name or (pattern.endswith("/*") and name.startswith(pattern[:-1]))


class _Body:
    """Bytes gathered up to ANSWER_BYTES_MAX, so that a late failure can still be a problem."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > ANSWER_BYTES_MAX:
            raise QueryError(
                f"the answer has more than {ANSWER_BYTES_MAX} bytes",
                hint="ask for fewer rows or columns, or page with limit and cursor",
                status=413,
            )
        self.chunks.append(chunk)

    # what pyarrow asks of a file it writes to
    closed = False

    def write(self, chunk: bytes) -> int:
        chunk = bytes(chunk)
        self.add(chunk)
        return len(chunk)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The bytes stay readable."""

    def bytes(self) -> bytes:
        return b"".join(self.chunks)


def encode(answer: Answer, media_type: str) -> tuple[list[tuple[str, str]], bytes]:
    """The headers and the whole answer in memory. Raises QueryError (413) beyond ANSWER_BYTES_MAX,
    whatever the batches raise, and QueryError for JSON when two columns have one name."""
    body = _Body()
    headers = [("content-type", media_type)]
    if media_type == JSON:
        _encode_json(answer, body)
        return headers, body.bytes()
    headers.extend(answer.freshness.headers())
    if answer.next_cursor is not None:
        headers.append(("headrace-next-cursor", answer.next_cursor))
    if media_type == NDJSON:
        _distinct_names(answer.schema)
        for batch in _slices(answer.batches):
            body.add(json_rows(batch, "\n") + b"\n")
    elif media_type == CSV:
        headers[0] = ("content-type", "text/csv; charset=utf-8; header=present")
        body.add(csv_line(answer.schema.names))
        for batch in _slices(answer.batches):
            body.add(csv_rows(batch))
    else:
        with pa.ipc.new_stream(pa.PythonFile(body, mode="w"), answer.schema) as writer:
            for batch in answer.batches:
                writer.write_batch(batch)
    return headers, body.bytes()


def _encode_json(answer: Answer, body: _Body) -> None:
    _distinct_names(answer.schema)
    body.add(b'{"rows":[')
    first = True
    for batch in _slices(answer.batches):
        body.add(json_rows(batch, ",") if first else b"," + json_rows(batch, ","))
        first = False
    freshness = msgspec.json.encode(answer.freshness.document())
    cursor = msgspec.json.encode(answer.next_cursor)
    body.add(b'],"freshness":' + freshness + b',"next_cursor":' + cursor + b"}")


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of 1 to ROWS_AT_ONCE_MAX rows: text columns of more could pass Arrow's 2 GiB."""
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE_MAX):
            yield batch.slice(start, ROWS_AT_ONCE_MAX)


def _distinct_names(schema: pa.Schema) -> None:
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise QueryError(
                f"two columns of the answer are named {name!r}",
                hint="name them apart with AS, or ask for text/csv or Arrow",
            )
