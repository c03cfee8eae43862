"""Handlers for proofs: another process of the same machine asks what a view held at one tick.

The asker names a folder of its own in the run directory, and the rows go there as a file: a view
may be larger than an answer should be, and whoever proves it reads the log's files anyway.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.model.errors import RequestError
from headrace.serve.parameters import decoded
from headrace.serve.requests import Request, Response, json_response
from headrace.serve.services import Services
from headrace.store.contract import Repair

__all__ = ["repair", "snapshot"]

_FOLDER = re.compile(r"proof-[0-9]{1,10}")
_ROWS = "rows.parquet"
_REPAIR, _STRETCHES, _EVENTS = "repair.parquet", "stretches.parquet", "events.parquet"


class _SnapshotAsked(msgspec.Struct, forbid_unknown_fields=True):
    folder: str
    filters: dict[str, str] = {}
    ticks: bool = False


class _RepairAsked(msgspec.Struct, forbid_unknown_fields=True):
    folder: str
    tick: int
    values: int = 0
    last_id: int | None = None


async def snapshot(services: Services, request: Request, name: str) -> Response:
    asked = decoded(await request.body(), _SnapshotAsked)
    folder = _folder(services, asked.folder)

    def write() -> bytes:
        view = services.view_name(name)
        with services.reading(view):
            found = services.store.snapshot(view, folder / _ROWS, asked.filters, asked.ticks)
        return msgspec.json.encode(found)

    return json_response(await services.queries.run(write))


async def repair(services: Services, request: Request, name: str) -> Response:
    asked = decoded(await request.body(), _RepairAsked)
    folder = _folder(services, asked.folder)

    def read() -> Repair:
        view = services.view_name(name)
        values = tuple(_table(folder / f"values-{i}.parquet") for i in range(asked.values))
        rows = _table(folder / _REPAIR)
        if asked.last_id is None:
            return Repair(view, asked.tick, rows, values)
        stretches, file = _table(folder / _STRETCHES), folder / _EVENTS
        events = _table(file) if file.exists() else None
        return Repair(view, asked.tick, rows, values, stretches, events, asked.last_id)

    wanted = await services.reads.run(read)
    done = await asyncio.wrap_future(services.control.repair(wanted))
    said = {"view": wanted.view, "tick": done.tick, "rows": done.rows, "moved": done.moved}
    return json_response(msgspec.json.encode(said))


def _table(file: Path) -> pa.Table:
    try:
        return pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise RequestError(
            400, "body", f"{file.name} cannot be read: {error}", hint="run the command again"
        ) from error


def _folder(services: Services, name: str) -> Path:
    folder = services.settings.run_directory / name
    if not _FOLDER.fullmatch(name) or not folder.is_dir():
        raise RequestError(
            400,
            "body",
            f"there is no folder {name[:40]!r} in the project's run directory",
            hint="this call is for headrace reconcile and headrace why, on the engine's machine",
        )
    return folder
