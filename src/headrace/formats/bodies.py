"""From the bytes of a request to its records: content encoding, kind of body, framing.

Inflating stops at the bound, so a small body that would inflate to a huge one costs no more than
the bound. Broken framing (gzip cut off, an unterminated array) refuses the whole request; a
record that is wrong inside good framing does not.
"""

from __future__ import annotations

import zlib
from enum import Enum

import msgspec
import pyarrow as pa

from headrace.model.errors import RequestError

__all__ = [
    "BodyKind",
    "body_kind",
    "check_encoding",
    "check_not_compressed",
    "frame_records",
    "inflate",
]

GZIP_MEMBERS_MAX = 10_000
_CHUNK_BYTES = 256 * 1024
_MEMBER_BYTES_FIRST = 4 * 1024
_ENCODINGS = ("identity", "gzip", "zstd")
_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # how gzip and zstd begin, and no JSON or Arrow does
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITESPACE = b" \t\r\n"


class BodyKind(Enum):
    """How a body holds its records."""

    SNIFF = "sniff"  # a JSON object, a JSON array or NDJSON: its first bytes tell
    LINES = "lines"
    ARROW = "arrow"
    ONE = "one"  # the data of a binary CloudEvent: the whole body is one record
    CLOUDEVENT = "cloudevent"
    CLOUDEVENTS = "cloudevents"


_KINDS = {
    "": BodyKind.SNIFF,
    "application/json": BodyKind.SNIFF,
    "application/x-www-form-urlencoded": BodyKind.SNIFF,  # what curl --data-binary says
    "application/octet-stream": BodyKind.SNIFF,
    "text/plain": BodyKind.SNIFF,
    "application/x-ndjson": BodyKind.LINES,
    "application/ndjson": BodyKind.LINES,
    "application/jsonl": BodyKind.LINES,
    "application/x-jsonlines": BodyKind.LINES,
    "application/vnd.apache.arrow.stream": BodyKind.ARROW,
    "application/cloudevents+json": BodyKind.CLOUDEVENT,
    "application/cloudevents-batch+json": BodyKind.CLOUDEVENTS,
}


def body_kind(content_type: str | None) -> BodyKind:
    """Raises RequestError 415 for a media type or charset that is not accepted."""
    if content_type is None:
        return BodyKind.SNIFF
    known = _KINDS.get(content_type)
    if known is not None:
        return known
    media_type, _, parameters = content_type.partition(";")
    kind = _KINDS.get(media_type.strip().lower())
    if kind is None:
        raise RequestError(
            415,
            "unsupported-media-type",
            f"content type {content_type[:100]!r} is not accepted",
            hint="send application/json, application/x-ndjson, "
            "application/vnd.apache.arrow.stream or application/cloudevents+json",
        )
    charset = parameters.strip().lower()
    if charset.startswith("charset=") and charset[8:].strip('"') not in ("utf-8", "utf8"):
        raise RequestError(
            415, "unsupported-media-type", f"{charset[:60]} is not accepted", hint="send UTF-8"
        )
    return kind


def check_encoding(encoding: str | None) -> str:
    """The content encoding in canonical spelling. Raises RequestError 415 for unknown ones."""
    if encoding is None:
        return "identity"
    name = encoding.strip().lower() or "identity"
    if name == "x-gzip":
        name = "gzip"
    if name not in _ENCODINGS:
        raise RequestError(
            415,
            "unsupported-encoding",
            f"content encoding {name[:60]!r} is not accepted",
            hint="send gzip, zstd or no encoding",
        )
    return name


def check_not_compressed(body: bytes) -> None:
    """Raises RequestError 415 for a body that no header said was compressed."""
    if body.startswith(_MAGIC):
        name = "gzip" if body.startswith(_MAGIC[0]) else "zstd"
        raise RequestError(
            415,
            "unsupported-encoding",
            f"the body is compressed with {name}, and Content-Encoding does not say so",
            hint=f"set the header Content-Encoding: {name}",
        )


def inflate(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """Raises RequestError: 413 as soon as more than `bytes_max` come out, 400 if it is broken."""
    if encoding == "gzip":
        return _gunzip(body, bytes_max)
    if encoding == "zstd":
        return _unzstd(body, bytes_max)
    return body


def _too_large(bytes_max: int) -> RequestError:
    return RequestError(
        413,
        "inflated-too-large",
        f"the body inflates to more than {bytes_max} bytes",
        hint="send smaller batches; the bound is gateway.inflated_bytes_max",
    )


def _gunzip(body: bytes, bytes_max: int) -> bytes:
    """Several gzip members one after the other are one body, as in RFC 1952. What zlib is given
    beyond a member's end it copies, so a member is given its bytes in pieces that grow with it."""
    parts: list[bytes] = []
    total = at = members = 0
    view = memoryview(body)
    try:
        while at < len(view):
            members += 1
            if members > GZIP_MEMBERS_MAX:
                raise _bad_gzip(f"the body has more than {GZIP_MEMBERS_MAX} gzip members")
            stream = zlib.decompressobj(wbits=31)
            size = _MEMBER_BYTES_FIRST
            while not stream.eof:
                piece = view[at : at + size]
                if not piece:
                    raise _bad_gzip("the gzip body ends too early")
                part = stream.decompress(piece, bytes_max + 1 - total)
                total += len(part)
                parts.append(part)
                if total > bytes_max:
                    raise _too_large(bytes_max)
                at += len(piece) - len(stream.unused_data)
                size = min(2 * size, _CHUNK_BYTES)
    except zlib.error as error:
        raise _bad_gzip(f"not a gzip body: {error}") from None
    return b"".join(parts)


def _bad_gzip(message: str) -> RequestError:
    return RequestError(
        400, "bad-encoding", message, hint="check Content-Encoding, or send the body as one member"
    )


def _unzstd(body: bytes, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            while part := stream.read(min(_CHUNK_BYTES, bytes_max + 1 - total)):
                total += len(part)
                parts.append(part)
                if total > bytes_max:
                    raise _too_large(bytes_max)
    except (OSError, pa.ArrowException) as error:
        raise RequestError(
            400, "bad-encoding", f"not a zstd body: {error}", hint="check Content-Encoding"
        ) from None
    return b"".join(parts)


def frame_records(body: bytes, kind: BodyKind, records_max: int) -> list[bytes]:
    """The records of a JSON body, each stripped and without newlines.

    Sniffing: a body that is one JSON value is an array of records or one record; anything else is
    read as lines, blank ones skipped. Raises RequestError 400 for an array that is not JSON as a
    whole, 413 for more than `records_max` records.
    """
    body = body.strip(_WHITESPACE)
    if body.startswith(_BYTE_ORDER_MARK):
        body = body[len(_BYTE_ORDER_MARK) :].lstrip(_WHITESPACE)
    if not body:
        raise RequestError(400, "empty-body", "the body holds no record", hint="send JSON")
    if kind is BodyKind.ONE:
        return [_one_line(body)]
    if kind is BodyKind.SNIFF:
        if body[:1] == b"[":
            return _array_records(body, records_max)
        if b"\n" not in body or _is_one_value(body):
            return [_one_line(body)]
    if body.count(b"\n") > 2 * records_max:  # cannot all be blank lines of an honest body
        raise _too_many(records_max)
    records = [line for raw in body.split(b"\n") if (line := raw.strip(_WHITESPACE))]
    if len(records) > records_max:
        raise _too_many(records_max)
    return records


def _too_many(records_max: int) -> RequestError:
    return RequestError(
        413,
        "too-many-records",
        f"more than {records_max} records in one request",
        hint="send smaller batches; the bound is gateway.request_records_max",
    )


def _array_records(body: bytes, records_max: int) -> list[bytes]:
    try:
        raws = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            400,
            "bad-framing",
            f"the JSON array cannot be read: {error}",
            hint="close the array, or send one record per line so that a bad one stands alone",
        ) from None
    if len(raws) > records_max:
        raise _too_many(records_max)
    return [_one_line(bytes(raw)) for raw in raws]


def _is_one_value(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _one_line(raw: bytes) -> bytes:
    """A newline between tokens means a space; inside a string it is a fault, and stays one: any
    other control character is as wrong there."""
    if b"\n" in raw:
        raw = raw.replace(b"\n", b"\r")
    return raw
