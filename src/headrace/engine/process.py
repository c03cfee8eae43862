"""The engine's process: store, Spark, server and the loop of ticks, brought up and taken down."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from headrace.engine.control import EngineControl
from headrace.engine.engine import Engine
from headrace.engine.session import start_spark, stop_spark, warm_workers
from headrace.log.embedded import open_reader
from headrace.model.definitions import Project
from headrace.model.errors import HeadraceError
from headrace.model.settings import Settings
from headrace.serve.server import start_server
from headrace.store.duck import open_store

__all__ = ["run_engine"]

log = logging.getLogger("headrace.engine")


def run_engine(settings: Settings, project: Project) -> int:
    """Runs until SIGTERM or SIGINT, then ends after the tick under way; the exit code says whether
    it ended of its own accord. Queries are answered from the store while Spark still starts.

    Raises StoreLockedError when another engine holds the project's store.
    """
    settings.log_directory.mkdir(parents=True, exist_ok=True)
    stopping: list[bool] = []
    engine: Engine | None = None

    def on_signal(number: int, frame: FrameType | None) -> None:
        stopping.append(True)
        if engine is not None:
            engine.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    store = open_store(settings.store_file, settings.store)
    reader = open_reader(settings.log_directory, project.streams)
    control = EngineControl(reader)
    server = start_server(store, control, settings)
    try:
        spark = start_spark(settings)
        try:
            threading.Thread(target=warm_workers, args=(spark,), daemon=True).start()
            engine = Engine(settings, project, spark, reader, store, control, server)
            engine.open()
            log.info("engine is live")
            if not stopping:
                engine.run()
            engine.close()
        finally:
            stop_spark(spark)
    except HeadraceError as error:
        log.error("the engine stops: %s", error)
        control.set_state("failed", error.message)
        return 1
    finally:
        server.stop()
        reader.close()
        store.close()
    log.info("engine ended")
    return 0
