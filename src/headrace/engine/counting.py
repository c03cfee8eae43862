"""What became of a tick's events, by view. What was read follows from the offsets, less the
duplicates; what became of it is counted from what Spark gave back. The store compares the two."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from headrace.engine.computing import Computed
from headrace.engine.late_windows import count_rows, is_applied
from headrace.engine.views import LiveView
from headrace.model.definitions import LatePolicy
from headrace.model.plan import ROWS
from headrace.spark.event_annotations import DECISION
from headrace.spark.passes import FILTERED
from headrace.spark.windows import Decision
from headrace.store.contract import Counts

__all__ = ["view_counts"]


def view_counts(view: LiveView, done: Computed, dead: int) -> Counts:
    plan = view.running_plan.plan
    partials = done.tables.get((view.name, None))
    filtered = done.tables.get((view.name, FILTERED))
    applied = late = aside = 0
    if partials is not None:
        applied, late, aside = count_rows(plan, partials)
    dropped = _dropped(view, done, aside)
    every = (pc.sum(filtered.column(ROWS)).as_py() or 0) if filtered is not None else 0
    rowless = done.rowless[view.name].num_rows if view.name in done.rowless else 0
    return Counts(
        read=done.rows - done.duplicates,
        applied=applied,
        filtered=every - rowless,
        late=late,
        sided=aside - dropped,
        dropped=dropped,
        dead=dead,
        duplicate=done.duplicates,
    )


def _dropped(view: LiveView, done: Computed, aside: int) -> int:
    """How many of the events set aside are kept nowhere."""
    policy = view.stream.late_policy
    if policy is LatePolicy.DROP:
        return aside
    events = done.late.get(view.name)
    if policy is not LatePolicy.HALT or events is None:
        return 0
    decided = events.column(DECISION).to_numpy(zero_copy_only=False) == Decision.DROP
    return int(np.sum(decided & ~is_applied(view.running_plan.plan, events)))
