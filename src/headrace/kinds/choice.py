"""Which kind keeps a view."""

from __future__ import annotations

from headrace.kinds.calculator import Calculator
from headrace.kinds.contract import Kind
from headrace.kinds.event_groups import EventGroupKind
from headrace.kinds.grouped import GroupedKind
from headrace.kinds.rows import RowsKind
from headrace.kinds.session import SessionKind
from headrace.kinds.sliding import SlidingKind
from headrace.kinds.table import TableKind
from headrace.model.plan import BoundView, EventGroup, SessionWindow, Sliding

__all__ = ["make_kind"]


def make_kind(view: BoundView, calculator: Calculator) -> Kind:
    """The kind of all views of this shape. It prepares its statements when they first run."""
    if view.plan.table is not None:
        return TableKind(view, calculator)
    if view.plan.is_rows:
        return RowsKind(view)
    if isinstance(view.plan.window, SessionWindow):
        return SessionKind(view, calculator)
    if isinstance(view.plan.window, EventGroup):
        return EventGroupKind(view, calculator)
    if isinstance(view.plan.window, Sliding):
        return SlidingKind(view, calculator)
    return GroupedKind(view, calculator)
