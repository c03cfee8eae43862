"""Looking into a store's tables, and changing them behind its back as a failing disk would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.model.tables import SCHEMA, VIEW
from headrace.store.contract import Store
from headrace.store.store import ViewStore

__all__ = ["in_tables", "tamper"]


def in_tables(store: Store, sql: str, view: str | None = None) -> list[tuple[Any, ...]]:
    """Runs the statement. `{0}`, `{1}` stand for the tables of the view's kind, of which only the
    rows where `{mine}` holds are the view's; `{books}` for the schema of all tables."""
    assert isinstance(store, ViewStore)
    tables: Sequence[str] = ()
    mine = ""
    if view is not None:
        stored = store._views[view]
        tables, mine = [f"{SCHEMA}.{t}" for t in stored.tables], f"{VIEW} = {stored.number}"
    connection = store._backend._connection  # type: ignore[attr-defined]
    found: list[tuple[Any, ...]] = connection.execute(
        sql.format(*tables, mine=mine, books=SCHEMA)
    ).fetchall()
    return found


def tamper(store: Store, view: str, *changes: str) -> None:
    for change in changes:
        in_tables(store, change, view)
