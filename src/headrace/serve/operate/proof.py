"""Handlers for proofs: another process of the same machine asks what a view held at one tick.

The asker names a folder of its own in the run directory, and the rows go there as a file: a view
may be larger than an answer should be, and whoever proves it reads the log's files anyway.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from headrace.model.errors import RequestError
from headrace.serve.parameters import decoded
from headrace.serve.requests import Request, Response, json_response
from headrace.serve.services import Services
from headrace.store.contract import copy_name

__all__ = ["snapshot"]

_FOLDER = re.compile(r"proof-[0-9]{1,10}")
_ROWS = "rows.parquet"


class _SnapshotAsked(msgspec.Struct, forbid_unknown_fields=True):
    folder: str
    filters: dict[str, str] = {}
    ticks: bool = False
    copy: bool = False


async def snapshot(services: Services, request: Request, name: str) -> Response:
    asked = decoded(await request.body(), _SnapshotAsked)
    folder = _folder(services, asked.folder)

    def write() -> bytes:
        view = services.view_name(name)
        own = copy_name(view) if asked.copy else view
        with services.reading(view):
            found = services.store.snapshot(own, folder / _ROWS, asked.filters, asked.ticks)
        return msgspec.json.encode(found)

    return json_response(await services.queries.run(write))


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
