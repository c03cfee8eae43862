"""The bodies that the OpenAPI document speaks of."""

from __future__ import annotations

from typing import Any

from headrace.http.limits import ERRORS_LISTED_MAX, PRODUCERS_LISTED_MAX
from headrace.log.contract import GAPS_MAX, LINES_MAX

__all__ = ["Json", "openapi_schemas"]

Json = dict[str, Any]


def _object(properties: Json, *optional: str) -> Json:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def openapi_schemas() -> Json:
    text: Json = {"type": "string"}
    number: Json = {"type": "integer"}
    text_or_null: Json = {"type": ["string", "null"]}
    numbers: Json = {"type": "array", "items": number}
    error = _object({"position": number, "reason": text})
    column = _object({"name": text, "type": text, "nullable": {"type": "boolean"}})
    letter = _object(
        {
            "number": number,
            "stream": text,
            "position": number,
            "reason": text,
            "received_at": text,
            "raw": text_or_null,
            "raw_base64": text,
        },
        "raw_base64",
    )
    heartbeat = _object(
        {
            "stream": text,
            "complete_up_to": text_or_null,
            "producer": text_or_null,
            "finished": {"type": "boolean"},
        },
        "complete_up_to",
        "producer",
        "finished",
    )
    freshness = _object(
        {
            "tick": number,
            "committed_at": text_or_null,
            "complete_up_to": text_or_null,
            "pending_events": number,
            "missing_events": {"type": ["integer", "null"]},
            "silent_producers": {"type": ["array", "null"], "items": text},
            "text": text,
        }
    )
    return {
        **_late(),
        "Ledger": _ledger(),
        "Problem": _object(
            dict.fromkeys(("type", "title", "detail", "code", "hint"), text) | {"status": number}
        ),
        "Answer": _object(
            {
                "accepted": number,
                "quarantined": number,
                "errors": {"type": "array", "items": error, "maxItems": ERRORS_LISTED_MAX},
                "errors_truncated": {"type": "boolean"},
                "retried": number,
                "covers": text,
            },
            "retried",
        ),
        "Heartbeats": {
            "oneOf": [heartbeat, {"type": "array", "items": heartbeat, "minItems": 1}],
        },
        "State": _object({"state": text}),
        "DeadLetters": _object(
            {
                "deadletters": {"type": "array", "items": letter},
                "next_after": {"type": ["integer", "null"]},
            }
        ),
        "Resubmitted": _object(
            {
                "accepted": number,
                "quarantined": number,
                "errors": {
                    "type": "array",
                    "items": _object({"number": number, "reason": text}),
                },
            }
        ),
        "Completeness": _completeness(),
        "AcceptedGaps": _object(
            {
                "stream": text,
                "producer": text,
                "accepted_events": number,
                "missing_events": number,
            }
        ),
        "RetiredProducer": _object({"stream": text, "producer": text, "state": text}),
        "Rows": _object(
            {
                "rows": {"type": "array", "items": {"type": "object"}},
                "freshness": freshness,
                "next_cursor": text_or_null,
            },
            "next_cursor",
        ),
        "Stream": _object(
            {
                "name": text,
                "table": {"type": ["object", "null"]},
                "columns": {"type": "array", "items": column},
                "event_time": text_or_null,
                "partitions": number,
                "starts": numbers,
                "ends": numbers,
                "bytes": number,
            }
        ),
    }


def _completeness() -> Json:
    text: Json = {"type": "string"}
    number: Json = {"type": "integer"}
    text_or_null, truth = {"type": ["string", "null"]}, {"type": "boolean"}
    gap = _object({"first": number, "last": number, "noticed_at": text})
    counted = dict.fromkeys(("missing_events", "late_fills", "duplicates"), number)
    line = _object(
        {
            **dict.fromkeys(("epoch", "lowest", "highest", "present"), number),
            "accepted_events": number,
            **counted,
            "start_is_known": truth,
            "gaps": {"type": "array", "items": gap, "maxItems": GAPS_MAX},
            "gaps_truncated": truth,
            "first_received_at": text,
            "last_received_at": text,
            "last_event_time": text_or_null,
        }
    )
    producer = _object(
        {
            "producer": text,
            "numbered_by": {"type": "string", "enum": ["requests", "events"]},
            "retired": truth,
            "heard_at": text,
            "silent_for_seconds": {"type": ["number", "null"]},
            "resets": number,
            "epochs": {"type": "array", "items": line, "maxItems": LINES_MAX},
            "epochs_truncated": truth,
            "clocks": {"type": ["object", "null"]},
        }
    )
    whole = dict.fromkeys(("producers", "silent_producers", "resets"), number)
    return _object(
        {
            "stream": text,
            "summary": _object({**whole, **counted, "text": text}),
            "producers": {"type": "array", "items": producer, "maxItems": 2 * PRODUCERS_LISTED_MAX},
            "next_after": text_or_null,
        }
    )


def _late() -> Json:
    text: Json = {"type": "string"}
    number: Json = {"type": "integer"}
    sided = _object({"view": text, "aside": number, "applied": number})
    window = {"window_start": text, "window_end": text}
    dropped = _object({"view": text, **window, "events": number, "reason": text})
    place: Json = {"partition": number, "offset": number}
    decision = _object({**place, "decision": text, "decided_at": text})
    lists = {"sided": sided, "dropped": dropped, "decisions": decision}
    return {
        "Late": _object(
            {
                "stream": text,
                **{name: {"type": "array", "items": item} for name, item in lists.items()},
                "cut": {"type": "boolean"},
            }
        ),
        "LateApplied": _object(
            {"stream": text, "view": {"type": ["string", "null"]}, "state": text}
        ),
        "Resumed": _object(
            {
                "stream": text,
                "decision": text,
                "events": {"type": "array", "items": _object(place)},
            }
        ),
    }


def _ledger() -> Json:
    def sums(*fates: str, **more: Json) -> Json:
        counted: Json = {fate: {"type": "integer"} for fate in fates}
        one = _object({**counted, "is_conserved": {"type": "boolean"}, **more})
        return {"type": "object", "additionalProperties": one}

    text: Json = {"type": "string"}
    events = ("read", "applied", "filtered", "late", "sided", "dropped", "dead", "duplicate")
    return _object(
        {
            "gateway": sums("received", "appended", "retried", "dead", incident=text),
            "engine": {"type": "object"},
            "streams": sums(
                "advanced", "accepted", "duplicate", "dead", next_offsets={"type": "object"}
            ),
            "views": sums(*events, incident=text, stream=text),
        },
        "streams",
        "views",
    )
