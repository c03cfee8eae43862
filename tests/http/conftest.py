"""The gateway's fixtures."""

from __future__ import annotations

from gateway_fixtures import (
    make_gateway,
    make_transaction,
    shared_gateway,
    until_taken,
)

__all__ = ["make_gateway", "make_transaction", "shared_gateway", "until_taken"]
