"""SQL in, plan out. `UPDATE_GOLDEN=1 pytest tests/compile/test_golden.py` writes the plans anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.compile import parse_sql, plan_view
from headrace.model.definitions import DAY, Project, Stream
from headrace.model.errors import DefinitionErrors
from headrace.model.plan import (
    CalendarWindow,
    EventGroup,
    JoinPlan,
    SessionWindow,
    Sliding,
    ViewPlan,
    Window,
)

HERE = Path(__file__).parent
GOLDEN = sorted((HERE / "golden").glob("*.sql"))
_KINDS = {
    Window: "window",
    CalendarWindow: "calendar",
    SessionWindow: "session",
    EventGroup: "group",
}
MUST_FAIL = sorted((HERE / "must_fail").glob("*.sql"))


def _described(project: Project) -> str:
    lines: list[str] = []
    for stream in project.streams:
        lines.append(f"stream {stream.name}")
        for column in stream.columns:
            null = "" if column.nullable else " NOT NULL"
            lines.append(f"  column {column.name} {column.type}{null}")
        lines.append(
            f"  event time {stream.event_time}, delay {stream.delay_microseconds} us, "
            f"late {stream.late_policy.value}"
        )
        lines += _time_lines(stream)
        by = ", ".join(stream.partition_by) or "producer or turns"
        lines.append(f"  {stream.partitions} partitions by {by}")
        kept = stream.retention
        lines.append(
            f"  keep {kept.age_microseconds} us, {kept.bytes_max} bytes, {kept.action.value}"
        )
        lines += [f"  {stream.changelog}"] if stream.changelog is not None else []
    for view in project.views:
        lines.append("")
        lines += _plan_lines(plan_view(project, view))
    return "\n".join(lines) + "\n"


def _time_lines(stream: Stream) -> list[str]:
    """What is not said is not shown."""
    said = {
        "late horizon": stream.late_horizon_microseconds,
        "future": None if stream.future_microseconds == DAY else stream.future_microseconds,
        "idle": stream.idle_microseconds,
        "expect": stream.expect_microseconds,
        "clocks": stream.clocks,
        "duplicates": stream.deduplication,
        "numbers": stream.numbering,
    }
    return [f"  {name} {value}" for name, value in said.items() if value is not None]


def _plan_lines(plan: ViewPlan) -> list[str]:
    of_kind = " (global)" if plan.is_global else " (rows)" if plan.is_rows else ""
    lines = [f"view {plan.view}{of_kind}"]
    lines += [f"  where    {plan.where}"] if plan.where else []
    if plan.window is not None:
        lines += _window_lines(plan.window)
    lines += ["  emits on window close"] if plan.emits_on_close else []
    lines += [f"  key      {key.name} = {key.sql}" for key in plan.keys]
    for partial in plan.partials:
        order = f" by {partial.order[0]}" if partial.order else ""
        lines.append(f"  partial  {partial.name} = {partial.function}({partial.input}){order}")
        lines.append(f"    combine {partial.combine}")
    lines += [f"  distinct {distinct.name} = {distinct.input}" for distinct in plan.distincts]
    lines += [f"  final    {final.name} = {final.sql}" for final in plan.finals]
    lines += [f"  having   {plan.having}"] if plan.having else []
    lines += [f"  {plan.table}"] if plan.table is not None else []
    lines += [line for join in plan.joins for line in _join_lines(join)]
    lines += [f"  joined   {plan.joined}"] if plan.joined is not None else []
    return [*lines, f"  sql      {plan.sql}"]


def _join_lines(join: JoinPlan) -> list[str]:
    lookup = join.lookup
    lines = [f"  look-up  {lookup.name} in {lookup.table}"]
    for (name, sql), of_type in zip(lookup.keys, join.key_types, strict=True):
        lines.append(f"    key    {name} {of_type} = {sql}")
    lines += [f"    as of  {lookup.as_of}"] if lookup.as_of is not None else []
    lines += [f"    column {column.name} {column.type}" for column in join.columns]
    if join.waits is not None:
        lines.append(f"    waits  {join.wait_microseconds} us if {join.waits}")
    return lines + ([f"    dead   if {join.dead}"] if join.dead is not None else [])


def _window_lines(window: object) -> list[str]:
    if isinstance(window, Sliding):
        lines = [f"  sliding  by {', '.join(window.keys) or 'nothing'}"]
        for column in window.columns:
            back = column.range_microseconds
            lines.append(f"    column {column.name} of {column.partial}, {back} us back")
            lines.append(f"      combine {column.combine}")
        return lines
    parts = [f"{key.removesuffix('_microseconds')} {value}" for key, value in vars(window).items()]
    return [f"  {_KINDS[type(window)]:<8} {', '.join(parts)}"]


def _check(file: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_golden(file: Path, joins_run: None) -> None:
    project = parse_sql(file.read_text(encoding="utf-8"), file.name)
    _check(file.with_suffix(".plan"), _described(project))


@pytest.mark.parametrize("file", MUST_FAIL, ids=lambda file: file.stem)
def test_must_fail(file: Path) -> None:
    with pytest.raises(DefinitionErrors) as caught:
        parse_sql(file.read_text(encoding="utf-8"), file.name)
    assert all(error.hint and error.location for error in caught.value.errors)
    _check(file.with_suffix(".errors"), str(caught.value) + "\n")


def test_there_are_golden_files() -> None:
    assert len(GOLDEN) >= 4
    assert len(MUST_FAIL) >= 10
