"""Getting a view's rows at one tick: from the running engine, or from the store while none runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.model.errors import ProofError
from headrace.model.settings import Settings
from headrace.store.contract import Snapshot

__all__ = ["ROWS_FILE", "ask_engine", "read_store"]

ROWS_FILE = "rows.parquet"
Post = Callable[[str, Any], Any]


def ask_engine(
    post: Post,
    view: str,
    folder: Path,
    filters: Mapping[str, str],
    with_ticks: bool,
    *,
    copy: bool = False,
) -> Snapshot:
    """`post` calls the gateway; `folder` is this process's own in the run directory. `copy`: of the
    copy that is being built of the view."""
    import msgspec

    asked = {"folder": folder.name, "filters": dict(filters), "ticks": with_ticks, "copy": copy}
    said = post(f"/v1/views/{view}/snapshot", asked)
    snapshot = msgspec.convert(said, Snapshot, strict=False)
    if not (folder / ROWS_FILE).exists():
        raise ProofError(
            "the engine wrote the view's rows to another machine or folder than this",
            hint="run the command where the project runs",
        )
    return snapshot


def read_store(
    settings: Settings, view: str, folder: Path, filters: Mapping[str, str], with_ticks: bool
) -> Snapshot:
    """Opens the store for as long as this takes. Raises StoreLockedError when an engine has it."""
    from headrace.store.opening import open_store

    if not settings.store_file.exists():
        raise ProofError("there is no store yet", hint="start the project once: headrace up")
    store = open_store(settings.store_file, settings.store)
    try:
        return store.snapshot(view, folder / ROWS_FILE, filters, with_ticks)
    finally:
        store.close()
