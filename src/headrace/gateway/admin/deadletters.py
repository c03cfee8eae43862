"""Dead letters over HTTP: list them, submit them again (repaired or as they are), discard them.

Submitting again is exactly once. In order:
  1. the numbers are written to resubmitting.json, durably;
  2. the event is appended together with a receipt whose key is the letter's number;
  3. the letter is resolved; 4. resubmitting.json is removed.
A crash after 2 leaves a letter whose receipt exists: it is resolved, never stored again, either
when it is submitted once more or when the gateway starts and finds the file of step 1.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from headrace.formats.bodies import BodyKind
from headrace.gateway.ingest.commit_group import Draft, GroupBuilder, receipt_key
from headrace.gateway.ingest.decoding import StreamDecoder, StreamRows
from headrace.gateway.ingest.requests import EventsRequest
from headrace.log.contract import Appended, DeadLetter, LogReader, LogWriter
from headrace.model.errors import LogFullError, RequestError
from headrace.model.settings import Settings

__all__ = ["DeadLetters", "finish_resubmissions"]

LIST_MAX = 1_000
LIST_BYTES_MAX = 8 * 1024 * 1024
NUMBERS_MAX = 1_000
_PAGE = 50
_INTENT = "resubmitting.json"

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _Resubmission(msgspec.Struct, forbid_unknown_fields=True):
    numbers: Annotated[list[_Number], msgspec.Meta(min_length=1, max_length=NUMBERS_MAX)]
    records: list[msgspec.Raw] | None = None


class _Discarding(msgspec.Struct, forbid_unknown_fields=True):
    numbers: Annotated[list[_Number], msgspec.Meta(min_length=1, max_length=NUMBERS_MAX)]


class DeadLetters:
    """Reading is done by any thread; `resubmit` and `discard` return jobs for the append thread."""

    def __init__(
        self,
        settings: Settings,
        reader: LogReader,
        decoders: Mapping[str, StreamDecoder],
        account: Callable[[Sequence[StreamRows], Draft, Appended], None],
    ) -> None:
        self._intent = settings.data_directory / _INTENT
        self._reader = reader
        self._decoders = decoders
        self._account = account

    def list(self, stream: str | None, after: int, limit: int) -> dict[str, Any]:
        """A page of at most `limit` letters and LIST_BYTES_MAX bytes; `next_after` is None at the
        end."""
        letters: list[DeadLetter] = []
        size = 0
        is_last = False
        while not is_last and len(letters) < limit and size < LIST_BYTES_MAX:
            wanted = min(_PAGE, limit - len(letters))
            page = self._reader.dead_letters(stream, after, wanted)
            for letter in page:
                if letters and size + len(letter.raw) > LIST_BYTES_MAX:
                    size = LIST_BYTES_MAX
                    break
                letters.append(letter)
                size += len(letter.raw)
                after = letter.number
            is_last = len(page) < wanted and size < LIST_BYTES_MAX
        return {
            "deadletters": [_as_json(letter) for letter in letters],
            "next_after": None if is_last else after,
        }

    def resubmit(self, body: bytes, loop: asyncio.AbstractEventLoop) -> Any:
        """Raises RequestError 422 for a body that does not say which letters."""
        wanted = _decoded(body, _Resubmission)
        if wanted.records is not None and len(wanted.records) != len(wanted.numbers):
            raise RequestError(
                422,
                "bad-request",
                "records must be as many as numbers",
                hint="leave records out to submit the letters as they are",
            )
        if len(set(wanted.numbers)) != len(wanted.numbers):
            raise RequestError(422, "bad-request", "a number is given twice", hint="name it once")
        records = None if wanted.records is None else [bytes(raw) for raw in wanted.records]

        def job(writer: LogWriter) -> dict[str, Any]:
            return self._resubmit(writer, wanted.numbers, records, loop)

        return job

    def discard(self, body: bytes) -> Any:
        """Raises RequestError 422 for a body that does not say which letters."""
        wanted = _decoded(body, _Discarding)

        def job(writer: LogWriter) -> dict[str, Any]:
            numbers = list(dict.fromkeys(wanted.numbers))
            known = [number for number in numbers if self._letter(number) is not None]
            if known:
                writer.resolve_dead_letters(known)
            return {"discarded": len(known), "missing": sorted(set(numbers) - set(known))}

        return job

    def _letter(self, number: int) -> DeadLetter | None:
        found = self._reader.dead_letters(None, number - 1, 1)
        return found[0] if found and found[0].number == number else None

    def _resubmit(
        self,
        writer: LogWriter,
        numbers: Sequence[int],
        records: Sequence[bytes] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> dict[str, Any]:
        errors: list[dict[str, Any]] = []
        stored: list[int] = []
        fresh: dict[str, list[EventsRequest]] = {}
        by_request: dict[int, int] = {}
        for index, number in enumerate(numbers):
            letter = self._letter(number)
            decoder = self._decoders.get(letter.stream) if letter is not None else None
            if letter is None or decoder is None:
                reason = "no such dead letter" if letter is None else "its stream is gone"
                errors.append({"number": number, "reason": reason})
                continue
            record = letter.raw if records is None else records[index]
            request = _request(letter, record.replace(b"\n", b"\r"), loop)
            key = receipt_key(decoder.stream, request, 1)
            if key is not None and writer.receipt(key) is not None:
                stored.append(number)
                continue
            fresh.setdefault(letter.stream, []).append(request)
            by_request[id(request)] = number
        all_rows: list[StreamRows] = []
        for name, requests in fresh.items():
            rows = self._decoders[name].decode([(r, r.body) for r in requests])
            for request, error in rows.refused:
                errors.append({"number": by_request[id(request)], "reason": error.message})
            for entry in rows.entries:
                number = by_request[id(entry.request)]
                if entry.rejected:
                    errors.append({"number": number, "reason": entry.rejected[0].reason})
                else:
                    stored.append(number)
            rows.refused = []
            rows.entries = [entry for entry in rows.entries if not entry.rejected]
            all_rows.append(rows)
        self._store(writer, all_rows, stored)
        errors.sort(key=lambda error: error["number"])
        return {"accepted": len(stored), "quarantined": len(errors), "errors": errors}

    def _store(
        self, writer: LogWriter, all_rows: Sequence[StreamRows], numbers: Sequence[int]
    ) -> None:
        if not numbers:
            return
        draft = GroupBuilder(writer).build(list(all_rows))
        _write_durably(self._intent, json.dumps(list(numbers)))
        if draft.group.batches:
            try:
                appended = writer.append(draft.group)
            except LogFullError as error:
                self._intent.unlink()
                raise RequestError(
                    503, "log-full", error.message, hint=error.hint, retry_after_seconds=10
                ) from None
            self._account(all_rows, draft, appended)
        writer.resolve_dead_letters(numbers)
        self._intent.unlink()


def finish_resubmissions(
    settings: Settings, writer: LogWriter, reader: LogReader, decoders: Mapping[str, StreamDecoder]
) -> None:
    """Resolve letters whose event a crash left stored but unresolved. Called once, at the start."""
    file = settings.data_directory / _INTENT
    try:
        numbers = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError:
        numbers = []  # torn while being written: then nothing was appended yet
    stored = []
    for number in numbers:
        found = reader.dead_letters(None, number - 1, 1)
        if not found or found[0].number != number or found[0].stream not in decoders:
            continue
        request = _request(found[0], b"", None)
        key = receipt_key(decoders[found[0].stream].stream, request, 1)
        if key is not None and writer.receipt(key) is not None:
            stored.append(number)
    if stored:
        writer.resolve_dead_letters(stored)
    file.unlink()


def _request(
    letter: DeadLetter, record: bytes, loop: asyncio.AbstractEventLoop | None
) -> EventsRequest:
    """The retry key holds a newline, which no header can: it cannot meet a client's own key."""
    future: Any = asyncio.Future(loop=loop) if loop is not None else None
    key = f"deadletter\n{letter.number}"
    now = time.time_ns() // 1000
    return EventsRequest(
        letter.stream,
        record,
        BodyKind.ONE,
        "identity",
        key,
        now,
        future,
        sent_at_microseconds=letter.sent_at_microseconds,
        first_received_at_microseconds=letter.received_at_microseconds,
    )


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            422, "bad-request", f"the body cannot be used: {error}", hint='{"numbers": [1, 2]}'
        ) from None


def _write_durably(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}")
    with temporary.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    """`raw` is the record as text; `raw_base64` takes its place when the bytes are not UTF-8."""
    received = datetime.fromtimestamp(letter.received_at_microseconds // 1_000_000, tz=UTC)
    micros = letter.received_at_microseconds % 1_000_000
    shown: dict[str, Any] = {
        "number": letter.number,
        "stream": letter.stream,
        "position": letter.position,
        "reason": letter.reason,
        "received_at": f"{received:%Y-%m-%dT%H:%M:%S}.{micros:06d}Z",
        "raw": None,
    }
    try:
        shown["raw"] = letter.raw.decode("utf-8")
    except UnicodeDecodeError:
        shown["raw_base64"] = base64.b64encode(letter.raw).decode("ascii")
    return shown
