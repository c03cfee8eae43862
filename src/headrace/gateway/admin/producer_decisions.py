"""What an operator decides about producers: gaps that will never be filled, programs that ended.

A decision is a note in the log, so it holds after a crash and a replay of the journal. It says
nothing about events: a number that was given up and comes all the same is taken in as a late one,
and a producer that was retired is expected again as soon as it is heard from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from headrace.http.limits import PRODUCER_CHARACTERS_MAX, SEQUENCE_MAX
from headrace.log.contract import Group, LogWriter, accept_note, retire_note
from headrace.model.errors import RequestError

__all__ = ["Decide", "accept_gaps", "retire_producer"]

Job = Callable[[LogWriter], dict[str, Any]]
Decide = Callable[[str, bytes, int], Job]
Body = TypeVar("Body")

_NAME_CHARACTERS_MAX = 8 * PRODUCER_CHARACTERS_MAX  # one that events name may be longer
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_CHARACTERS_MAX)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=SEQUENCE_MAX)]


class _Gaps(msgspec.Struct, forbid_unknown_fields=True):
    """Without numbers all gaps there are, without an epoch those of every epoch."""

    producer: _Name
    epoch: _Number | None = None
    first: _Number | None = None
    last: _Number | None = None


class _Producer(msgspec.Struct, forbid_unknown_fields=True):
    producer: _Name


def accept_gaps(stream: str, body: bytes, now: int) -> Job:
    """For the append thread. Raises RequestError: 422 for a body that cannot be used, 404 for a
    producer that is not known."""
    given = _read(body, _Gaps, '{"producer": "sensor-7", "first": 3, "last": 5}')
    first = given.first or 0
    last = SEQUENCE_MAX - 1 if given.last is None else given.last
    if last < first:
        raise _bad(f"first {first} is above last {last}", "first and last are both meant")
    epoch = -1 if given.epoch is None else given.epoch

    def job(writer: LogWriter) -> dict[str, Any]:
        _check_known(writer, stream, given.producer)
        missing = writer.completeness(stream).missing
        note = accept_note(now, stream, given.producer, epoch, first, last - first + 1)
        writer.append(Group(receipts=(note,)))
        left = writer.completeness(stream).missing
        accepted = missing - left
        return {"stream": stream, "producer": given.producer, "accepted_events": accepted,
                "missing_events": left}  # fmt: skip

    return job


def retire_producer(stream: str, body: bytes, now: int) -> Job:
    """As accept_gaps."""
    given = _read(body, _Producer, '{"producer": "sensor-7"}')

    def job(writer: LogWriter) -> dict[str, Any]:
        _check_known(writer, stream, given.producer)
        writer.append(Group(receipts=(retire_note(now, stream, given.producer),)))
        return {"stream": stream, "producer": given.producer, "state": "retired"}

    return job


def _read(body: bytes, kind: type[Body], example: str) -> Body:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _bad(f"the body cannot be used: {error}", example) from None


def _check_known(writer: LogWriter, stream: str, producer: str) -> None:
    if not writer.knows(stream, producer):
        raise RequestError(
            404,
            "unknown-producer",
            f"no producer {producer[:100]!r} has been heard from on {stream}",
            hint=f"see /v1/streams/{stream}/completeness",
        )


def _bad(message: str, hint: str) -> RequestError:
    return RequestError(422, "bad-decision", message, hint=hint)
