"""How log lines look: for people, or as JSON lines; secrets never."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from enum import Enum
from typing import Any

__all__ = ["LogFormat", "configure", "redacted", "wrapped"]


class LogFormat(Enum):
    PEOPLE = "people"
    JSON = "json"


_SECRETS = (
    re.compile(r"(\bhr_)[A-Za-z0-9_-]{20,}"),
    re.compile(r"(?i)(bearer\s+)[^\s\"',;]+"),
    re.compile(
        r"(?i)(\b(?:token|secret|password|headrace-internal)\b\"?\s*[=:]\s*\"?)[^\s\"',;&]+"
    ),
)


def redacted(text: str) -> str:
    """The text with bearer tokens and values named secret, token or password struck out."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1[redacted]", text)
    return text


def wrapped(process: str, level: str, message: str, **more: Any) -> str:
    """One JSON line, as every part of Headrace writes it."""
    document = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "process": process,
        "message": redacted(message),
        **more,
    }
    return json.dumps(document, ensure_ascii=False)


class _People(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class _Json(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, Any] = {"logger": record.name}
        if record.exc_info:
            more["traceback"] = redacted(self.formatException(record.exc_info))
        return wrapped(self._process, record.levelname.lower(), record.getMessage(), **more)


def configure(log_format: LogFormat, process: str, level: int = logging.INFO) -> None:
    """Send this process's log to stderr in the chosen form. py4j's chatter is left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Json(process)
        if log_format is LogFormat.JSON
        else _People("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
