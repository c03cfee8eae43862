"""Tell a failure on data (this event, this expression) from a failure of the machinery."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

__all__ = ["TextError", "check_texts", "data_failure"]

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)?)\] (.*?)(?: SQLSTATE: (\w{5}))")
_DATA_CLASSES = ("22", "42", "0A", "54")  # data exception, and what only shows at run time


class TextError(Exception):
    """A view made a text of bytes that are none. Spark lets it pass; a store cannot hold it."""


def check_texts(tables: Iterable[pa.Table]) -> None:
    for table in tables:
        try:
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise TextError(f"a value that cannot be stored: {error}") from error


def data_failure(error: BaseException) -> str | None:
    """The reason, in Spark's words, when an event's data made an expression fail; None when the
    failure lies elsewhere and doing it again may succeed."""
    from pyspark.errors import PySparkException

    if isinstance(error, TextError):
        return str(error)
    if not isinstance(error, PySparkException):
        return None
    state = error.getSqlState()
    if state is not None and state.startswith(_DATA_CLASSES):
        return _sentence(f"[{error.getCondition()}] {error.getMessage() or error}")
    found = _CONDITION.search(str(error))
    if found is not None and found.group(3).startswith(_DATA_CLASSES):
        return _sentence(f"[{found.group(1)}] {found.group(2)}")
    return None


def _sentence(text: str) -> str:
    first = text.strip().splitlines()[0]
    condition, _, rest = first.partition("] ")
    while rest.startswith("["):  # the message repeats its own condition
        rest = rest.partition("] ")[2]
    sentence = re.sub(r" (If necessary set|Use `?try_).*", "", rest)
    return f"{condition}] {re.sub(r' SQLSTATE: .*', '', sentence)}"[:500]
