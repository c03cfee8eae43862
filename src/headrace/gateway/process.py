"""The gateway process: open the log, listen, serve until asked to stop, leave all durable."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.gateway.admin.completeness import ProducerWatch
from headrace.gateway.admin.deadletters import finish_resubmissions
from headrace.gateway.admin.metrics import Metrics
from headrace.gateway.admin.proxy import EngineProxy
from headrace.gateway.app import GatewayApp
from headrace.gateway.ingest.committer import Committer
from headrace.gateway.ingest.idle import IdleWatch
from headrace.http.access import Access
from headrace.http.connections import Connections
from headrace.log.contract import LogReader, LogWriter
from headrace.log.opening import log_address, open_writer
from headrace.model.definitions import Project
from headrace.model.errors import SettingsError
from headrace.model.settings import Settings

__all__ = ["run_gateway"]

logger = logging.getLogger("headrace.gateway")

DRAIN_SECONDS_MAX = 10.0
LEFT_BEHIND_SECONDS_MAX = 1.0


class CoalescingLoop(asyncio.SelectorEventLoop):
    """Wakes itself once for many calls from other threads.

    asyncio writes a byte to its own socket for each call_soon_threadsafe, and the server makes
    several per request. While a byte is unread, or its reading is still queued, another is of no
    use: the loop will look at its queue before it sleeps. The flag is cleared after the bytes are
    read, so it is never set without one of the two being true.
    """

    _is_woken = False

    def _write_to_self(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            super()._write_to_self()  # type: ignore[misc]

    def _read_from_self(self) -> None:
        super()._read_from_self()  # type: ignore[misc]
        self._is_woken = False


def run_gateway(settings: Settings, project: Project) -> int:
    """Serve until SIGTERM or SIGINT; 0 after a clean end, with everything acknowledged durable.

    Raises SettingsError (port taken, host beyond loopback without tokens) and LogError (log held
    by another process, log damaged) before anything is served.
    """
    _do_without_pandas()
    gc.freeze()  # what is loaded by now stays: no collection needs to look at it again
    access = Access(settings)
    listener = _listen(settings.gateway.host, settings.gateway.port)
    try:
        settings.run_directory.mkdir(parents=True, exist_ok=True)
        writer = open_writer(settings, project.streams)
        try:
            reader = log_address(settings).open(project.streams)
            try:
                _run(_serve(settings, project, listener, access, writer, reader))
            finally:
                reader.close()
        finally:
            writer.close()
    finally:
        listener.close()
    return 0


def _run(main: Coroutine[Any, Any, None]) -> None:
    """As asyncio.run, but what does not end when it is cancelled is left behind after a while:
    everything acknowledged is durable by then, and the process must end."""
    loop = CoalescingLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=LEFT_BEHIND_SECONDS_MAX))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class _WithoutPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name="pandas")


def _do_without_pandas() -> None:
    """pyarrow looks for pandas when it first sees a list, once: a second and 50 MiB for nothing.
    This makes it look now, and not find it."""
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(finder)


def _listen(host: str, port: int) -> socket.socket:
    """Listens from now on, so that nobody else can: who comes before all is ready has to wait. For
    port 0 the system chooses a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen()
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        raise SettingsError(
            f"{host}:{port} cannot be listened on: {error.strerror}",
            hint="another program has the port; stop it or set gateway.port"
            if is_taken
            else "set gateway.host to an address of this machine and gateway.port to a free port",
        ) from None
    return listener


async def _serve(
    settings: Settings,
    project: Project,
    listener: socket.socket,
    access: Access,
    writer: LogWriter,
    reader: LogReader,
) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    metrics = Metrics()
    committer = Committer(settings, project, writer, loop, metrics)
    metrics.queue = lambda: (committer.queue_requests, committer.queue_bytes)
    metrics.is_healthy = lambda: committer.failure is None
    metrics.violations = lambda: committer.conservation.violations
    finish_resubmissions(settings, writer, reader, committer.decoders)
    proxy = EngineProxy(settings)
    watch = ProducerWatch(settings, project, writer, metrics.clock_offsets)
    metrics.producers = watch.metrics
    app = GatewayApp(settings, project, access, committer, reader, proxy, metrics, watch)
    metrics.forwarding = lambda: len(app.forwarding)
    connections = Connections(
        app.handle,
        metrics.add_response,
        app.room,
        settings.gateway.connections_max,
        settings.gateway.request_seconds_max,
    )
    address_file = settings.run_directory / "gateway.json"
    committer.start()
    server = await connections.listen(listener)
    _announce(settings.gateway.host, int(listener.getsockname()[1]), address_file)
    sweeping = loop.create_task(app.sweep(connections))
    watching = loop.create_task(IdleWatch(project.streams, committer, reader).run())
    producers = loop.create_task(watch.watch())
    await stopping.wait()
    app.is_draining = True
    try:
        await _drain(app, committer)
        server.close()
        await connections.close()
    finally:
        sweeping.cancel()
        watching.cancel()
        producers.cancel()
        await asyncio.to_thread(committer.close)
        watch.close()
        proxy.close()
        address_file.unlink(missing_ok=True)
        logger.info("stopped; everything acknowledged is durable")


def _announce(host: str, port: int, file: Path) -> None:
    host = host.strip("[]")
    content = {"pid": os.getpid(), "host": host, "port": port}
    temporary = file.with_name(f".{file.name}")
    temporary.write_text(json.dumps(content))
    temporary.replace(file)
    logger.info("listening at http://%s:%d", f"[{host}]" if ":" in host else host, port)


async def _drain(app: GatewayApp, committer: Committer) -> None:
    """Let what was begun be answered; open subscriptions are ended."""
    for task in list(app.forwarding):
        task.cancel()
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while time.monotonic() < deadline and (
        committer.queue_requests or committer.jobs_waiting or app.is_reading
    ):
        await asyncio.sleep(0.01)
