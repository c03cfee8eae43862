"""The engine's process: store, Spark, server and the loop of ticks, brought up and taken down."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import threading
from concurrent.futures import Future
from types import FrameType
from typing import TYPE_CHECKING

from headrace.engine.control import EngineControl
from headrace.engine.loop import Engine
from headrace.log.opening import log_address
from headrace.model.definitions import Project
from headrace.model.errors import HeadraceError
from headrace.model.settings import Settings
from headrace.serve.server import start_server
from headrace.spark.java import Java
from headrace.spark.session import archive_classes, warm_workers
from headrace.store.opening import Refill, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run_engine"]

log = logging.getLogger("headrace.engine")


def run_engine(
    settings: Settings, project: Project, starting: Future[tuple[Java, SparkSession]]
) -> int:
    """Runs until SIGTERM or SIGINT, then ends after the tick under way; the exit code says whether
    it ended of its own accord. Queries are answered from the store while Spark still starts, see
    `started_spark`.

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
    with contextlib.ExitStack() as opened:
        reader = log_address(settings).open(project.streams)
        opened.callback(reader.close)
        oldest = {stream.name: reader.oldest(stream.name) for stream in project.streams}
        refill = Refill({view.name for view in project.views}, oldest)
        store = open_store(settings.store_file, settings.store, refill)
        opened.callback(store.close)
        control = EngineControl(reader, store)
        server = start_server(store, control, settings)
        opened.callback(server.stop)
        try:
            java, spark = starting.result()
            if stopping:
                return 0
            threading.Thread(target=warm_workers, args=(spark,), daemon=True).start()
            engine = Engine(settings, project, spark, reader, store, control, server)
            engine.open()
            log.info("engine is live")
            gc.collect()
            gc.freeze()  # what is loaded by now stays: no collection need look at it again
            opened.callback(gc.unfreeze)  # but the interpreter cannot take apart what is frozen
            ending = threading.Event()
            opened.callback(ending.set)
            archive_classes(spark, settings, java, ending)
            if not stopping:
                engine.run()
            engine.close()
        except HeadraceError as error:
            log.error("the engine stops: %s", error)
            control.set_state("failed", error.message)
            return 1
    log.info("engine ended")
    return 0
