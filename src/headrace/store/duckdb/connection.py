"""Opening the store's DuckDB file."""

from __future__ import annotations

from pathlib import Path

import duckdb

from headrace.model.errors import StoreError, StoreLockedError
from headrace.model.settings import StoreSettings
from headrace.store.confined import confine, confined_config

__all__ = ["connect"]

WAL_BYTES_MAX = 64 * 1024 * 1024  # beyond it DuckDB folds the write-ahead log in by itself


def connect(file: Path, settings: StoreSettings) -> duckdb.DuckDBPyConnection:
    """Open or create the file for this process alone, without files, network or extensions.

    Raises StoreLockedError naming the process that holds it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    config = confined_config(settings, file.with_name(file.name + ".spill"))
    config["checkpoint_threshold"] = f"{WAL_BYTES_MAX}B"
    try:
        connection = duckdb.connect(str(file), config=config)
    except duckdb.IOException as error:
        text = str(error)
        if "lock" in text.lower():
            raise StoreLockedError(
                f"the store {file} is held by another process: {_holder(text)}",
                hint="stop the engine that holds it, or wait until it has ended",
            ) from error
        raise StoreError(f"the store {file} cannot be opened: {text}") from error
    except duckdb.Error as error:
        raise StoreError(f"the store {file} cannot be opened: {error}") from error
    confine(connection)
    return connection


def _holder(text: str) -> str:
    start = text.find("held in")
    return text[start + len("held in") :].split(". ")[0].strip() if start >= 0 else text
