"""CloudEvents 1.0 over HTTP: the event is the `data`; the envelope gives a retry key and, where the
data has none, the event time.

binary      ce-* headers, the body is the data
structured  application/cloudevents+json, the body is the envelope
batch       application/cloudevents-batch+json, an array of envelopes
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.formats.bodies import BodyKind, frame_records
from headrace.model.errors import RequestError

__all__ = ["binary_key", "frame_cloudevents", "is_binary", "with_event_time"]

_SPECIFICATION = "1.0"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_JSON_TYPES = ("application/json", "text/json")


class EnvelopeError(ValueError):
    """Why one envelope cannot be read; str(error) is the dead letter's reason."""


def is_binary(headers: Mapping[str, str]) -> bool:
    return "ce-specversion" in headers


def binary_key(headers: Mapping[str, str]) -> str:
    """The retry key of a binary CloudEvent. Raises RequestError 422 for missing attributes."""
    if headers.get("ce-specversion") != _SPECIFICATION:
        raise RequestError(
            422,
            "bad-cloudevent",
            "ce-specversion must be 1.0",
            hint="send CloudEvents 1.0, or no ce- headers",
        )
    identity, source = headers.get("ce-id"), headers.get("ce-source")
    if not identity or not source or not headers.get("ce-type"):
        raise RequestError(
            422,
            "bad-cloudevent",
            "a CloudEvent needs ce-id, ce-source and ce-type, in ASCII",
            hint="see the CloudEvents HTTP binding",
        )
    return _key(identity, source)


def _key(identity: str, source: str) -> str:
    """Bounded, and apart from any Idempotency-Key header, which cannot hold a newline."""
    digest = hashlib.blake2b(f"{len(source)} {source}{identity}".encode(), digest_size=24)
    return f"cloudevent\n{digest.hexdigest()}"


def with_event_time(record: bytes, column: str | None, time: str | None) -> bytes:
    """The record with the envelope's time as event time, if it has none of its own."""
    if column is None or not time:
        return record
    try:
        members = _members.decode(record)
    except (msgspec.DecodeError, RecursionError):
        return record  # not an object: the decoder says why
    if column in members:
        return record
    filled = msgspec.json.encode(column) + b":" + msgspec.json.encode(time)
    return b"{" + filled + (b"," if members else b"") + record.strip()[1:]


def frame_cloudevents(
    body: bytes, kind: BodyKind, event_time: str | None, records_max: int
) -> tuple[list[bytes], dict[int, str], str | None]:
    """The records (each the event's data), the reasons by position for envelopes that cannot be
    read (whose record is then the envelope itself), and a retry key if it is a single event."""
    if kind is BodyKind.CLOUDEVENT:
        envelopes = frame_records(body, BodyKind.ONE, records_max)
    else:
        if body.lstrip()[:1] != b"[":
            raise RequestError(
                400, "bad-framing", "a CloudEvents batch is a JSON array", hint="send [ … ]"
            )
        envelopes = frame_records(body, BodyKind.SNIFF, records_max)
    records: list[bytes] = []
    faults: dict[int, str] = {}
    key = None
    for position, envelope in enumerate(envelopes):
        try:
            record, identity = _open_envelope(envelope, event_time)
        except EnvelopeError as error:
            faults[position] = f"not a CloudEvent: {error}"
            records.append(envelope)
            continue
        records.append(record)
        if kind is BodyKind.CLOUDEVENT:
            key = identity
    return records, faults, key


def _open_envelope(envelope: bytes, event_time: str | None) -> tuple[bytes, str]:
    try:
        members = _members.decode(envelope)
    except (msgspec.DecodeError, RecursionError) as error:
        raise EnvelopeError(f"expected a JSON object: {error}") from None
    if _attribute(members, "specversion") != _SPECIFICATION:
        raise EnvelopeError("specversion must be 1.0")
    identity, source = _attribute(members, "id"), _attribute(members, "source")
    if not identity or not source or not _attribute(members, "type"):
        raise EnvelopeError("id, source and type are needed")
    content_type = _attribute(members, "datacontenttype")
    media_type = (content_type or "application/json").partition(";")[0].strip().lower()
    if media_type not in _JSON_TYPES and not media_type.endswith("+json"):
        raise EnvelopeError(f"datacontenttype {media_type[:60]} is not JSON")
    time = _attribute(members, "time")
    return with_event_time(_data(members), event_time, time), _key(identity, source)


def _data(members: dict[str, Any]) -> bytes:
    if "data" in members:
        return bytes(members["data"])
    encoded = _attribute(members, "data_base64")
    if encoded is None:
        raise EnvelopeError("data is missing")
    try:
        return base64.b64decode(encoded, validate=True).replace(b"\n", b"\r")
    except (binascii.Error, ValueError):
        raise EnvelopeError("data_base64 is not base64") from None


def _attribute(members: dict[str, Any], name: str) -> str | None:
    if name not in members:
        return None
    try:
        return _text.decode(members[name])
    except msgspec.DecodeError:
        raise EnvelopeError(f"{name} must be a string") from None
