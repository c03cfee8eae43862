"""`headrace status`: how the project is, in one look."""

from __future__ import annotations

from typing import Any

import typer

from headrace.cli import exits
from headrace.cli.calls import resolve
from headrace.cli.options import AsJson, ProjectFolder, ServerToken, ServerUrl
from headrace.cli.output import cell, print_json, print_table

__all__ = ["command"]


def command(
    project: ProjectFolder = None,
    url: ServerUrl = None,
    token: ServerToken = None,
    as_json: AsJson = False,
) -> None:
    """Show how the project is. Exit code 1 if the engine or a view is in trouble."""
    answer = resolve(project, url, token).get("/v1/status")
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    if not _is_sound(answer):
        raise typer.Exit(exits.CHECK_FAILED)


def _is_sound(answer: dict[str, Any]) -> bool:
    views = answer.get("views", {}).values()
    engine = answer.get("engine", {}).get("state")
    return engine in ("live", "starting") and all(
        view["state"] in ("live", "catching_up") for view in views
    )


def _show(answer: dict[str, Any]) -> None:
    processes = []
    for name in ("gateway", "engine"):
        part = answer.get(name, {})
        known = [f"{k.replace('_', ' ')} {cell(v)}" for k, v in part.items() if _is_figure(k, v)]
        detail = part.get("detail") or part.get("reason") or ""
        processes.append((name, part.get("state", "—"), detail or " · ".join(known)))
    print_table(("process", "state", "detail"), processes)
    ticks = answer.get("engine", {}).get("tick_milliseconds") or {}
    if ticks.get("ticks"):
        print(
            f"ticks: p50 {ticks['p50']:.1f} ms, p95 {ticks['p95']:.1f} ms, "
            f"p99 {ticks['p99']:.1f} ms over the newest {ticks['ticks']:,}"
        )
    views = answer.get("views", {})
    # A table that changes are posted to is stream and view of one name: it is shown as the latter.
    streams = {n: s for n, s in answer.get("streams", {}).items() if n not in views}
    if streams:
        print_table(
            ("stream", "state", "events", "pending", "detail"),
            [
                (name, s["state"], s["events"], s["pending_events"], s["detail"])
                for name, s in streams.items()
            ],
        )
    if views:
        print_table(
            ("view", "state", "from", "freshness", "held back", "applied", "late", "dead", ""),
            [_view_row(name, view) for name, view in views.items()],
        )
    for line in _halts(views):
        print(line)


def _view_row(name: str, view: dict[str, Any]) -> tuple[Any, ...]:
    counts = view.get("counts", {})
    return (
        name,
        view["state"],
        view["stream"] if view["stream"] != name else "posted",
        view["freshness"],
        view["held_back_by"] or None,
        counts.get("applied"),
        counts.get("late"),
        counts.get("dead"),
        view["detail"] or _rebuild_text(view.get("rebuild")) or _table_text(view.get("table")),
    )


def _rebuild_text(rebuild: dict[str, Any] | None) -> str:
    if rebuild is None:
        return ""
    done = 100 * rebuild["events"] // max(rebuild["events_total"], 1)
    return f"its copy is {rebuild['state']}: {done} %"


def _table_text(totals: dict[str, int] | None) -> str:
    """What is worth a look: changes that came too late to count, and rows that came back."""
    return ", ".join(f"{count:,} {fate}" for fate, count in (totals or {}).items() if count)


def _halts(views: dict[str, Any]) -> list[str]:
    """Why each halted stream waits, in full, and how it goes on."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, view in views.items():
        if view["state"] == "halted":
            reasons.setdefault((view["stream"], view["detail"]), []).append(name)
    return [
        f"{stream} is halted ({', '.join(names)}): {reason}\n"
        f"  decide with headrace resume {stream} --apply, --side or --drop"
        for (stream, reason), names in reasons.items()
    ]


def _is_figure(name: str, value: Any) -> bool:
    return name not in ("state", "detail", "reason") and isinstance(value, int | float | str)
