"""Events as JSON: decimals and UUIDs as texts, datetimes as RFC 3339, bytes as base64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from headrace.model.errors import ClientError

__all__ = ["encode_delete", "encode_event", "events_of"]

_DELETING = b'"_op":"delete"}'
_encoder = msgspec.json.Encoder(decimal_format="string", uuid_format="canonical")


def encode_event(event: Any) -> bytes:
    """One line of NDJSON without its newline. NaN and infinities become the texts the gateway
    reads. Raises ClientError for what is no JSON object."""
    try:
        line = _encoder.encode(event)
    except (TypeError, ValueError, OverflowError) as error:
        raise ClientError(
            f"the event cannot be written as JSON: {error}",
            hint="use texts, numbers, Decimal, datetime, UUID, bytes, lists and mappings",
        ) from error
    if not line.startswith(b"{"):
        raise ClientError(
            f"an event is a mapping from column to value, not {type(event).__name__}",
            hint='send("stream", {"column": value}), delete("table", {"key": value})',
        )
    if b"null" in line:  # what msgspec makes of a NaN; the check is cheap where there is none
        return _encoder.encode(_with_texts_for_non_finite(event))
    return line


def encode_delete(key: Any) -> bytes:
    """The line that deletes the row of a table with this key. Raises ClientError as for events."""
    if isinstance(key, Mapping):
        return encode_event({**key, "_op": "delete"})
    line = encode_event(key)
    return line[:-1] + (b"," if len(line) > 2 else b"") + _DELETING


def _with_texts_for_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _with_texts_for_non_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts_for_non_finite(item) for item in value]
    if isinstance(value, msgspec.Struct) or _is_dataclass_value(value):
        return _with_texts_for_non_finite(
            {name: getattr(value, name) for name in _field_names(value)}
        )
    return value


def _field_names(value: Any) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return [field.name for field in dataclasses.fields(value)]


def _is_dataclass_value(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def events_of(given: Any) -> Iterator[Any]:
    """The events of an argument that is one event or an iterable of them."""
    if isinstance(given, Mapping | msgspec.Struct) or _is_dataclass_value(given):
        yield given
        return
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ClientError(
            f"an event is a mapping from column to value, not {type(given).__name__}",
            hint='send("stream", {"column": value}), or an iterable of such mappings; '
            'delete("table", {"key": value}) likewise',
        )
    yield from given
