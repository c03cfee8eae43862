"""The Spark session of an engine, with the settings that were measured to matter."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.errors import EngineError
from headrace.model.settings import EngineSettings, Settings
from headrace.spark.class_archive import archive_options, build_later
from headrace.spark.java import VERSION_MIN, Java, find_java, java_home_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "archive_classes",
    "shared_spark",
    "start_spark",
    "started_spark",
    "stop_spark",
    "warm_workers",
]

log = logging.getLogger("headrace.engine")

_DAEMON = "spark.python.daemon.module"
_DAEMON_MODULE = "headrace.spark.daemon"
_SHARED_HEAP_MEBIBYTES = 1_024

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.extensions.test.loadFromCp": "false",  # the machine learning library: a second
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.locality.wait": "0",
    "spark.python.unix.domain.socket.enabled": "true",
    _DAEMON: _DAEMON_MODULE,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.cleaner.periodicGC.interval": "10min",
    "spark.task.maxFailures": "1",
    "spark.sql.debug.maxToStringFields": "10",
}


@contextlib.contextmanager
def started_spark(settings: Settings) -> Iterator[Future[tuple[Java, SparkSession]]]:
    """Spark starts on a thread of its own while other things are imported and opened, and ends
    with this. What its thread needs is imported first: Java starts a second sooner for it."""
    with ThreadPoolExecutor(1, "spark") as pool:
        starting = pool.submit(_start, settings)
        import pyspark.sql  # noqa: F401

        try:
            yield starting
        finally:
            if starting.exception() is None:
                stop_spark(starting.result()[1])


def _start(settings: Settings) -> tuple[Java, SparkSession]:
    java = find_java()
    return java, start_spark(settings, java)


def start_spark(settings: Settings, java: Java | None = None) -> SparkSession:
    """On this Java, or the one that `find_java` finds. Workers run the Python of this process.

    Raises JavaMissingError if there is no Java, EngineError if it does not run."""
    java = java or find_java()
    settings.run_directory.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(java_home_for_spark(java, settings.run_directory))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # A Spark the machine may have by other ways must not mix with the one this package pins.
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON"):
        os.environ.pop(name, None)
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    cores = settings.engine.cores_used
    builder = SparkSession.builder.master(f"local[{cores}]").appName(f"headrace-{settings.name}")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    local = settings.run_directory / "spark"
    options = [
        f"-Xms{min(512, settings.engine.java_heap_mebibytes)}m",
        "-XX:+UseParallelGC",
        "-XX:MetaspaceSize=256m",  # below it, growing means a full collection, some at the start
        f"-XX:ParallelGCThreads={cores}",
        f"-Dderby.system.home={local}",
        "-XX:+IgnoreUnrecognizedVMOptions",
        *archive_options(java, _class_list(settings)),
    ]
    builder = (
        builder.config("spark.driver.memory", f"{settings.engine.java_heap_mebibytes}m")
        .config("spark.driver.extraJavaOptions", " ".join(options))
        .config("spark.local.dir", str(local))
        .config("spark.sql.warehouse.dir", str(local / "warehouse"))
    )
    # PySpark logs every failed query with its whole Java stack; the engine says what matters.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    log.info("starting Spark on Java %s (%s), %s cores", java.version, java.origin, cores)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise EngineError(
            f"Spark did not start on the Java in {java.home}: {error}",
            hint=f"set JAVA_HOME to a Java {VERSION_MIN} or newer that runs, or unset it",
        ) from error
    _quieten(spark)
    return spark


def shared_spark() -> SparkSession:
    """The session of this process, for tests of which many follow each other: started by the first
    call, ended with the process. One that `start_spark` gave is taken as it is.

    Raises EngineError beside a session with other settings: its answers would not be those of an
    engine. And what `start_spark` raises."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        running = SparkSession.builder.getOrCreate()
        if running.conf.get(_DAEMON, None) != _DAEMON_MODULE:
            raise EngineError(
                "this process already runs a Spark session that Headrace did not start",
                hint="stop it before, or run these tests in a process of their own",
            )
        return running
    directory = tempfile.mkdtemp(prefix="headrace-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    engine = EngineSettings(java_heap_mebibytes=_SHARED_HEAP_MEBIBYTES)
    spark = start_spark(Settings(Path(directory), engine=engine))
    atexit.register(stop_spark, spark)  # before the directory goes
    return spark


def _quieten(spark: SparkSession) -> None:
    """A task that fails on data is told to the engine, which says so in a line; Spark's own words
    about it are two Java stacks for every dead letter."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    for name in ("executor.Executor", "scheduler.TaskSetManager"):
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.{name}", log4j.Level.OFF)


def _class_list(settings: Settings) -> Path:
    return settings.run_directory / "classes.list"


def archive_classes(
    spark: SparkSession, settings: Settings, java: Java, ending: threading.Event
) -> None:
    """For a later start, see headrace.spark.class_archive. Returns at once."""
    jvm = spark._jvm
    assert jvm is not None
    class_path = str(jvm.java.lang.System.getProperty("java.class.path"))
    arguments = (java, _class_list(settings), class_path, ending)
    threading.Thread(target=build_later, args=arguments, name="archive", daemon=True).start()


def warm_workers(spark: SparkSession) -> None:
    """Start the process that forks Python workers: its imports take a second or two, which can
    pass while views are being opened. Without it the first tick takes longer, nothing else."""
    try:
        spark.range(1).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    except Exception as error:  # the engine may be ending already
        log.info("workers were not started ahead: %s", error)


def stop_spark(spark: SparkSession) -> None:
    """Ends the session and its JVM; workers go with it."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            process.wait(timeout=20)
        SparkContext._gateway = None
        SparkContext._jvm = None
