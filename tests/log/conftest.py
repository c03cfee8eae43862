"""The log's fixtures."""

from __future__ import annotations

from log_cases import backend, embedded, shop

__all__ = ["backend", "embedded", "shop"]
