"""What stands above aggregates must be something the store gives exactly as Spark would."""

from __future__ import annotations

from headrace.compile.draft import ViewDraft
from headrace.compile.planning.plans import split_view
from headrace.compile.planning.resolved import ResolvedView

__all__ = ["check_plan"]


def check_plan(draft: ViewDraft) -> None:
    if any(
        error.message.startswith(f"{draft.kind} {draft.name}: ") for error in draft.faults.errors
    ):
        return  # a plan of what is already refused would only report consequences
    split_view(
        ResolvedView(
            name=draft.name,
            stream=draft.source,
            outputs=tuple((name, node) for name, node, _ in draft.outputs),
            where=draft.where,
            keys=tuple(draft.keys),
            having=draft.having,
            emits_on_close=draft.emits_on_close is not None,
        ),
        draft.fault,
    )
