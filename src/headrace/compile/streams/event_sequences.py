"""NUMBERED BY: the numbers that events carry, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.compile.faults import Faults, closest
from headrace.compile.streams.draft import UNKNOWN, StreamDraft, choose_columns
from headrace.model.definitions import Column, Numbering
from headrace.model.errors import Location

__all__ = ["check_numbering"]

_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_NOT_NAMES = ("BINARY", "FLOAT", "DOUBLE")


def check_numbering(
    draft: StreamDraft, by_name: Mapping[str, Column], faults: Faults
) -> Numbering | None:
    """Numbers are compared in one partition, so a writer's events must all come into the same."""
    if draft.numbered_by is None:
        return None
    name, location = draft.numbered_by
    what = f"stream {draft.name}: NUMBERED BY"
    number = by_name.get(name.lower())
    if number is None:
        hint = closest(name, by_name) or "name a BIGINT NOT NULL column of the stream"
        faults.add(f"{what} column {name} does not exist", hint, location)
    elif number.type != UNKNOWN and (number.type.name not in _WHOLE or number.nullable):
        spelled = f"{number.type}{'' if number.nullable else ' NOT NULL'}"
        faults.add(f"{what} {name} is {spelled}", f"declare it as {name} BIGINT NOT NULL", location)
    columns = choose_columns(f"{what} {name} PER", draft.numbered_per, by_name, faults)
    if not draft.numbered_per:
        faults.add(f"{what} {name} PER no column", "name the columns that tell writers", location)
    for per, place in draft.numbered_per:
        _check_writer(f"{what} {name} PER", by_name.get(per.lower()), name, place, faults)
    _check_partitions(what, draft, faults)
    return Numbering(number.name if number is not None else name, columns)


def _check_writer(
    what: str, column: Column | None, number: str, place: Location, faults: Faults
) -> None:
    if column is None or column.type == UNKNOWN or column.type.is_nested:
        return  # said already
    if column.name.lower() == number.lower():
        faults.add(f"{what} names the number itself", "name the columns that tell writers", place)
    elif column.nullable:
        faults.add(
            f"{what} column {column.name} may be NULL",
            f"declare it as {column.name} {column.type} NOT NULL",
            place,
        )
    elif column.type.name in _NOT_NAMES:
        faults.add(
            f"{what} column {column.name} is {column.type}",
            "tell writers by text, whole numbers or times",
            place,
        )


def _check_partitions(what: str, draft: StreamDraft, faults: Faults) -> None:
    chosen = {name.lower() for name, _ in draft.numbered_per}
    missing = [name for name, _ in draft.partition_by if name.lower() not in chosen]
    if draft.partitions > 1 and draft.numbered_per and (missing or not draft.partition_by):
        names = ", ".join(name for name, _ in draft.numbered_per)
        faults.add(
            f"{what} needs a writer's events in one partition, and there are {draft.partitions}",
            f"add {', '.join(missing)} to PER" if missing else f"say PARTITION BY ({names})",
            draft.numbered_per[0][1],
        )
