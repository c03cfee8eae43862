"""The engine's HTTP server: an event loop in its own thread beside the ticks.

Granian runs through its ASGI interface: there, sending waits for a client that reads slowly. Its
RSGI interface takes every byte at once and keeps what the client has not read in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server as GranianServer

from headrace.model.completeness import COMPLETENESS_FILE
from headrace.model.errors import EngineError
from headrace.model.settings import Settings
from headrace.serve.application import Application
from headrace.serve.changes.subscriptions import Hub
from headrace.serve.operate.completeness import Completeness
from headrace.serve.operate.control import Control
from headrace.serve.query.covers import WAITING_MAX, Coverage
from headrace.serve.query.progress import ProgressReader
from headrace.serve.services import Services
from headrace.store.contract import Store, ViewChange

__all__ = ["Server", "start_server"]

START_SECONDS_MAX = 10.0
STOP_SECONDS_MAX = 10.0
QUERY_GRACE_SECONDS = 1.0  # in which reads that are under way may end by themselves
CONNECTIONS_BESIDE_MAX = 512  # of subscribers and of queries that wait


def start_server(store: Store, control: Control, settings: Settings) -> Server:
    """Returns once connections are accepted and engine.json says where. Signals stay with the
    caller's main thread. Raises EngineError if the server does not start."""
    server = Server(store, control, settings)
    server.start()
    return server


class Server:
    def __init__(self, store: Store, control: Control, settings: Settings) -> None:
        self._store = store
        self._control = control
        self._settings = settings
        self._secret = secrets.token_urlsafe(32)
        self._address_file = settings.run_directory / "engine.json"
        self._reservation = _reserve_port()
        self.port: int = self._reservation.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="headrace-serve", daemon=True)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._asked = threading.local()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hub: Hub | None = None
        self._coverage: Coverage | None = None
        self._stopping: asyncio.Event | None = None

    # for the engine

    def publish(
        self,
        changes: Sequence[ViewChange],
        *,
        tick: int | None = None,
        committed_at_microseconds: int | None = None,
    ) -> None:
        """Hand over what a tick changed, after its commit, in order of ticks; also when that is
        nothing. Never waits. Without more, the tick is that of the changes and the time is now.

        A thread that has called watched() may give the changes of those views alone: a view that
        found its first subscriber since then is read from the store.
        """
        if self._hub is None:
            return
        if tick is None and changes:
            tick = changes[0].tick
        if committed_at_microseconds is None:
            committed_at_microseconds = time.time_ns() // 1_000
        asked: frozenset[str] | None = getattr(self._asked, "watched", None)
        self._hub.publish(changes, tick, committed_at_microseconds, asked)

    def watched(self) -> frozenset[str]:
        """The views with subscribers just now. From any thread, at no cost; publish() goes by what
        its own thread was told last."""
        self._asked.watched = frozenset() if self._hub is None else self._hub.watched()
        watched: frozenset[str] = self._asked.watched
        return watched

    def moved(self) -> None:
        """Call when a view has come further, no longer goes on, or goes on again, after that can be
        asked for: queries may wait for it. Never waits, and costs nothing while none does."""
        if self._coverage is not None:
            self._coverage.moved()

    def expire(self, view: str) -> None:
        """Call when a view is dropped or rebuilt: its subscribers are told to read it again."""
        if self._loop is not None and self._hub is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._hub.expire, view)

    def stop(self) -> None:
        """Ends subscriptions, lets requests under way end, interrupts queries that do not end soon,
        closes the port. Can be called again. Raises EngineError if the thread does not end within
        STOP_SECONDS_MAX."""
        self._remove_address()
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ended just now by itself
                loop.call_soon_threadsafe(stopping.set)
        if self._thread.ident is not None:
            deadline = time.monotonic() + STOP_SECONDS_MAX
            self._thread.join(QUERY_GRACE_SECONDS)
            while self._thread.is_alive() and time.monotonic() < deadline:
                self._store.interrupt_queries("the engine is stopping")
                self._thread.join(0.1)
            if self._thread.is_alive():
                raise EngineError("the HTTP server did not end", hint="a request may be stuck")
        self._reservation.close()

    # its own thread

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not (self._started.is_set() and _accepts(self.port)):
            if self._failure is not None or time.monotonic() > deadline:
                self._reservation.close()
                raise EngineError(
                    f"the HTTP server did not start on port {self.port}: "
                    f"{self._failure or 'no connection within the time allowed'}"
                ) from self._failure
            time.sleep(0.005)
        self._write_address()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        subscribers_max = self._settings.store.subscribers_max
        file = self._settings.run_directory / COMPLETENESS_FILE
        completeness = Completeness(file, self._store)
        progress = ProgressReader(self._control, completeness)
        hub = Hub(self._loop, self._store, progress, subscribers_max)
        coverage = Coverage(self._loop, self._store, self._control)
        services = Services(self._store, self._control, self._settings, hub, coverage, completeness)
        connections_max = subscribers_max + WAITING_MAX + CONNECTIONS_BESIDE_MAX
        server = GranianServer(
            Application(services, self._secret),
            address="127.0.0.1",
            port=self.port,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=connections_max,
            backpressure=connections_max,
            log_enabled=False,
        )
        if sys.platform != "linux":
            self._reservation.close()
        hub.start()
        self._hub = hub
        self._coverage = coverage
        serving = asyncio.ensure_future(server.serve())
        stopping = asyncio.ensure_future(self._stopping.wait())
        self._started.set()
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            coverage.close()
            await hub.close()
            server.stop()  # type: ignore[no-untyped-call]
            await asyncio.gather(serving, return_exceptions=True)
            stopping.cancel()
            await self._loop.run_in_executor(None, services.close)
        if not serving.cancelled() and (failure := serving.exception()) is not None:
            raise failure

    # where it is

    def _write_address(self) -> None:
        """Atomic and readable by the owner alone: the secret opens every view."""
        directory = self._address_file.parent
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".engine.json.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as handle:
            json.dump({"pid": os.getpid(), "port": self.port, "secret": self._secret}, handle)
        temporary.replace(self._address_file)

    def _remove_address(self) -> None:
        """Only its own: a newer engine may have written the file since."""
        if _secret_in(self._address_file) == self._secret:
            self._address_file.unlink(missing_ok=True)


def _secret_in(file: Path) -> str | None:
    try:
        document = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    secret = document.get("secret") if isinstance(document, dict) else None
    return secret if isinstance(secret, str) else None


def _reserve_port() -> socket.socket:
    """A bound socket that never listens: it keeps a free port for the server, which on Linux may
    bind the same port beside it. Elsewhere it is let go just before."""
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform == "linux":
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
