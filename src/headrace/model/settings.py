"""Settings of a project: headrace.toml, one dataclass per section.

Every setting is documented in docs/reference/settings.md, which a test compares with this file.
Each queue, buffer and request has its maximum here.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from headrace.model.errors import SettingsError

__all__ = [
    "EngineSettings",
    "GatewaySettings",
    "LogSettings",
    "Settings",
    "StoreSettings",
    "load_settings",
]

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class GatewaySettings:
    host: str = "127.0.0.1"
    port: int = 8080
    request_bytes_max: int = 16 * MEBIBYTE
    inflated_bytes_max: int = 64 * MEBIBYTE
    request_records_max: int = 100_000
    line_bytes_max: int = 1 * MEBIBYTE
    nesting_max: int = 32
    connections_max: int = 1_024
    queue_bytes_max: int = 128 * MEBIBYTE
    queue_requests_max: int = 10_000
    group_bytes_max: int = 16 * MEBIBYTE
    request_seconds_max: int = 30
    idempotency_keys_max: int = 500_000
    idempotency_seconds_max: int = 24 * 3600
    producers_max: int = 100_000
    producer_intervals_max: int = 1_000
    dead_letters_max: int = 1_000_000
    dead_letters_bytes_max: int = 1_024 * MEBIBYTE


@dataclass(frozen=True)
class LogSettings:
    segment_bytes_max: int = 64 * MEBIBYTE
    journal_bytes_max: int = 64 * MEBIBYTE
    retention_check_seconds: int = 10


@dataclass(frozen=True)
class EngineSettings:
    cores: int = 0  # 0: all of the machine's
    java_heap_mebibytes: int = 1_280
    tick_rows_max: int = 400_000
    tick_bytes_max: int = 128 * MEBIBYTE
    pace_milliseconds: int = 1_000
    shuffle_rows_min: int = 0  # 0: never
    dead_letters_in_a_row_max: int = 20
    dead_letters_per_thousand_max: int = 100
    view_failures_max: int = 5

    @property
    def cores_used(self) -> int:
        return self.cores or os.cpu_count() or 1


@dataclass(frozen=True)
class StoreSettings:
    memory_mebibytes: int = 512
    changes_ticks_max: int = 10_000
    changes_rows_max: int = 1_000_000
    query_rows_max: int = 100_000
    query_seconds_max: int = 30
    queries_at_once_max: int = 4
    subscribers_max: int = 256


@dataclass(frozen=True)
class Settings:
    """`directory` is the project's folder; everything Headrace writes is in its `.headrace`."""

    directory: Path
    name: str = "headrace"
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    log: LogSettings = field(default_factory=LogSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    store: StoreSettings = field(default_factory=StoreSettings)

    @property
    def data_directory(self) -> Path:
        return self.directory / ".headrace"

    @property
    def log_directory(self) -> Path:
        return self.data_directory / "log"

    @property
    def store_file(self) -> Path:
        return self.data_directory / "store.duckdb"

    @property
    def run_directory(self) -> Path:
        """Files by which the two processes find each other; safe to delete when both are down."""
        return self.data_directory / "run"

    @property
    def tokens_file(self) -> Path:
        return self.data_directory / "tokens.json"


_SECTIONS = {
    "gateway": GatewaySettings,
    "log": LogSettings,
    "engine": EngineSettings,
    "store": StoreSettings,
}


def load_settings(directory: Path, environment: dict[str, str] | None = None) -> Settings:
    """Read `headrace.toml` in `directory`; HEADRACE_GATEWAY_PORT=… and the like override it.

    Raises SettingsError naming the setting for an unknown name, a wrong type or a value below its
    minimum; a missing file means the defaults.
    """
    file = directory / "headrace.toml"
    raw: dict[str, Any] = {}
    if file.exists():
        try:
            raw = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{file}: {error}", hint="write it as TOML") from error
    environment = dict(os.environ) if environment is None else environment
    values: dict[str, Any] = {}
    unknown = set(raw) - set(_SECTIONS) - {"name"}
    if unknown:
        raise SettingsError(
            f"{file}: unknown section {min(unknown)!r}",
            hint=f"sections are {', '.join(_SECTIONS)}",
        )
    name = raw.get("name", directory.resolve().name)
    if not isinstance(name, str):
        raise SettingsError(f"{file}: name must be text, not {name!r}", hint='name = "shop"')
    for section, kind in _SECTIONS.items():
        values[section] = _section(file, section, kind, raw.get(section, {}), environment)
    return Settings(directory=directory, name=name, **values)


def _section(
    file: Path, section: str, kind: type[Any], raw: Any, environment: dict[str, str]
) -> Any:
    if not isinstance(raw, dict):
        raise SettingsError(f"{file}: {section} must be a section", hint=f"write [{section}]")
    known = {f.name: f for f in fields(kind)}
    chosen: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"{file}: unknown setting {section}.{name}",
                hint=f"{meant}settings of {section} are {', '.join(known)}",
            )
        chosen[name] = _checked(f"{file}: {section}.{name}", known[name].default, value)
    for name, spec in known.items():
        variable = f"HEADRACE_{section}_{name}".upper()
        if variable in environment:
            text = environment[variable]
            value = int(text) if isinstance(spec.default, int) and text.isdigit() else text
            chosen[name] = _checked(variable, spec.default, value)
    return kind(**chosen)


def _checked(name: str, default: Any, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, type(default)):
        raise SettingsError(
            f"{name} must be {'a whole number' if isinstance(default, int) else 'text'}, "
            f"not {value!r}",
            hint=f"the default is {default!r}",
        )
    minimum = 0 if default == 0 or name.lower().endswith("port") else 1
    if isinstance(value, int) and value < minimum:
        raise SettingsError(f"{name} is {value}, below its minimum", hint=f"default: {default}")
    return value
