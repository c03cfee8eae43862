"""How every DuckDB of a store is set: within its memory, without files, network or extensions."""

from __future__ import annotations

from pathlib import Path

import duckdb

from headrace.model.settings import StoreSettings

__all__ = ["confine", "confined_config"]

Config = dict[str, str | bool | int | float | list[str]]


def confined_config(settings: StoreSettings, spill: Path | None) -> Config:
    """To connect with. Without a folder to spill to, what does not fit into memory fails."""
    return {
        "threads": "1",  # each statement on its caller's thread: a tick costs a third less CPU
        "memory_limit": f"{settings.memory_mebibytes}MiB",
        "temp_directory": "" if spill is None else str(spill),
        "max_temp_directory_size": f"{4 * settings.memory_mebibytes}MiB",
        "preserve_insertion_order": "false",
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
    }


def confine(connection: duckdb.DuckDBPyConnection) -> None:
    """From now on nothing of it can be changed; its cursors are bound likewise."""
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute("SET GLOBAL enable_external_access = false")
    connection.execute("SET GLOBAL lock_configuration = true")
