"""`headrace up`: gateway and engine of a project, kept running until told to stop."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import exits
from headrace.cli.child import LIFELINE
from headrace.cli.logs import LogFormat
from headrace.cli.options import ProjectFolder
from headrace.cli.output import say
from headrace.cli.project import read_definitions, read_settings
from headrace.model.errors import DefinitionErrors, SettingsError
from headrace.model.settings import Settings

__all__ = ["command"]


def command(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The same as --project.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Instead of gateway.port; 0 takes a free one."),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="Lines for people, or JSON lines.")
    ] = LogFormat.PEOPLE,
    project: ProjectFolder = None,
) -> None:
    """Run the project. It accepts events, keeps the views up to date and answers queries.

    Ctrl-C or SIGTERM ends it in order; everything acknowledged is durable before that.
    """
    _end_with_parent()
    if port is not None:
        os.environ["HEADRACE_GATEWAY_PORT"] = str(port)
    settings = read_settings(project or directory)
    try:
        definitions = read_definitions(settings)
    except DefinitionErrors as faults:
        from headrace.cli.validate import print_faults

        print_faults(faults, settings.directory)
        raise typer.Exit(exits.MISTAKE) from None
    if not definitions.streams:
        raise SettingsError(
            f"{settings.directory} defines no stream",
            hint="write CREATE STREAM … into definitions/NAME.sql",
        )
    from headrace.http.access import Access

    Access(settings)  # refuses an address that others can reach while there are no tokens
    with _only_one(settings):
        chosen = _port(settings)
        raise typer.Exit(_supervised(settings, chosen, log_format))


@contextlib.contextmanager
def _only_one(settings: Settings) -> Iterator[None]:
    """One `up` per project, held by a lock that goes with the process."""
    settings.run_directory.mkdir(parents=True, exist_ok=True)
    file = settings.run_directory / "up.lock"
    with file.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            raise SettingsError(
                f"this project is up already (process {holder})",
                hint="headrace status shows it; end that one first",
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _port(settings: Settings) -> int:
    """The port of the settings if it is free, or any free one when they say 0."""
    from headrace.cli.checks import port_holder

    host, port = settings.gateway.host, settings.gateway.port
    if port == 0:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    reason = port_holder(host, port)
    if reason is not None:
        raise SettingsError(
            f"cannot listen on {host}:{port}: {reason}",
            hint="end the program that has it, or choose another: headrace up --port 0",
        )
    return port


def _supervised(settings: Settings, port: int, log_format: LogFormat) -> int:
    from headrace.cli.calls import Address, gateway_url
    from headrace.cli.supervise import Supervisor

    for name in ("gateway.json", "engine.json"):  # left by a run that was killed
        (settings.run_directory / name).unlink(missing_ok=True)
    environment = {**os.environ, "HEADRACE_GATEWAY_PORT": str(port)}
    began = time.monotonic()

    def is_ready() -> bool:
        if not (settings.run_directory / "gateway.json").exists():
            return False
        return Address(gateway_url(settings), None).answers("/readyz")

    def on_ready() -> None:
        url = gateway_url(settings)
        if log_format is LogFormat.JSON:
            print(json.dumps({"ready": True, "url": url}), flush=True)
        else:
            print(f"ready after {time.monotonic() - began:.1f} s: {url}", flush=True)

    if log_format is LogFormat.PEOPLE:
        say(f"starting {settings.name} at {settings.gateway.host}:{port} (Ctrl-C ends it)")
    sys.stdout.flush()
    commands = {
        name: (sys.executable, "-m", "headrace.cli.child", name, str(settings.directory))
        for name in ("gateway", "engine")
    }
    return Supervisor(commands, environment, log_format, is_ready, on_ready).run()


def _end_with_parent() -> None:
    """Whoever starts `up` in the background may hand it a pipe, and it ends when the pipe does."""
    lifeline = os.environ.pop(LIFELINE, None)
    if lifeline is None:
        return

    def watch(descriptor: int) -> None:
        while os.read(descriptor, 64):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, args=(int(lifeline),), daemon=True).start()
