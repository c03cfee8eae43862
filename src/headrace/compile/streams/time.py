"""What a stream says about time: late events, bounds, clocks and duplicates, checked."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.compile.faults import Faults, closest
from headrace.compile.streams.draft import UNKNOWN, StreamDraft, choose_columns
from headrace.model.definitions import Clocks, Column, Deduplication, LatePolicy

__all__ = ["check_bounds", "check_clocks", "check_deduplication", "check_late"]

_POLICIES = "LATE REVISE [WITHIN INTERVAL …], LATE SIDE, LATE DROP or LATE HALT"


def check_late(draft: StreamDraft, faults: Faults) -> LatePolicy:
    """There is no silent default: with an event time the policy must be said."""
    what = f"stream {draft.name}"
    if draft.late is None:
        if draft.event_time is not None:
            faults.add(
                f"{what}: what becomes of late events is not said",
                f"add {_POLICIES}: apply and count them, set them aside, drop them, or stop",
                draft.event_time[1],
            )
        return LatePolicy.REVISE
    word, location = draft.late
    if word.lower() not in {policy.value for policy in LatePolicy}:
        faults.add(f"{what}: LATE {word} is not known", _POLICIES, location)
        return LatePolicy.REVISE
    policy = LatePolicy(word.lower())
    if draft.late_within is not None:
        if policy is not LatePolicy.REVISE:
            faults.add(
                f"{what}: LATE {word.upper()} has no WITHIN",
                "only LATE REVISE has a horizon, after which late events are set aside",
                draft.late_within[1],
            )
        elif draft.late_within[0] == 0:
            faults.add(
                f"{what}: LATE REVISE WITHIN no time at all", "say LATE SIDE", draft.late_within[1]
            )
    return policy


def check_bounds(draft: StreamDraft, faults: Faults) -> None:
    what = f"stream {draft.name}"
    for said, words in ((draft.idle, "IDLE AFTER"), (draft.expect, "EXPECT EVERY")):
        if said is not None and said[0] == 0:
            faults.add(f"{what}: {words} no time at all", "a length of time above 0", said[1])
    if draft.future is not None and draft.event_time is None:
        faults.add(
            f"{what}: FUTURE UP TO without an event time",
            "say which column it is: WATERMARK column DELAY OF INTERVAL 5 SECONDS",
            draft.future[1],
        )


def check_clocks(
    draft: StreamDraft, by_name: Mapping[str, Column], faults: Faults
) -> Clocks | None:
    if draft.sent is None:
        return None
    name, location = draft.sent
    what = f"stream {draft.name}: SENT"
    column = by_name.get(name.lower())
    if draft.event_time is None:
        faults.add(
            f"{what} without an event time: there is nothing to correct",
            "say which column it is: WATERMARK column DELAY OF INTERVAL 5 SECONDS",
            location,
        )
    elif name.lower() == draft.event_time[0].lower():
        faults.add(
            f"{what} {name} is the event time itself",
            "name the column with the time at which the device sent the event",
            location,
        )
    if column is None:
        hint = closest(name, by_name) or "name a TIMESTAMP column of the stream"
        faults.add(f"{what} column {name} does not exist", hint, location)
    elif column.type != UNKNOWN and column.type.name != "TIMESTAMP":
        faults.add(
            f"{what} column {name} is {column.type}",
            f"declare it as {column.name} TIMESTAMP",
            location,
        )
    default = Clocks(column.name if column is not None else name)
    threshold = draft.skew[0] if draft.skew else default.threshold_microseconds
    cap = draft.cap[0] if draft.cap else max(default.cap_microseconds, threshold)
    if cap < threshold:
        faults.add(
            f"{what} {name}: the CAP is below the skew from which times are corrected",
            "a skew above the CAP is not believed: make it at least SKEW OVER",
            draft.cap[1] if draft.cap else location,
        )
    return Clocks(default.sent, threshold, cap)


def check_deduplication(
    draft: StreamDraft, by_name: Mapping[str, Column], faults: Faults
) -> Deduplication | None:
    """Duplicates are looked for in one partition, so equal events must come into the same one."""
    if draft.deduplicate_within is None:
        return None
    what = f"stream {draft.name}: DEDUPLICATE BY"
    within, location = draft.deduplicate_within
    columns = choose_columns(what, draft.deduplicate_by, by_name, faults)
    if within == 0:
        faults.add(f"{what} … WITHIN no time at all", "a length of time above 0", location)
    if not draft.deduplicate_by:
        faults.add(f"{what} no column", "name the columns that tell events apart", location)
        return None
    chosen = {name.lower() for name, _ in draft.deduplicate_by}
    missing = [name for name, _ in draft.partition_by if name.lower() not in chosen]
    if draft.partitions > 1 and (missing or not draft.partition_by):
        faults.add(
            f"{what} needs equal events in one partition, and there are {draft.partitions}",
            f"add {', '.join(missing)} to DEDUPLICATE BY"
            if missing
            else f"say PARTITION BY ({', '.join(columns) or 'column'})",
            draft.deduplicate_by[0][1],
        )
    return Deduplication(columns, within)
