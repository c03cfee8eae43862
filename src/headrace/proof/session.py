"""A Spark of its own for a proof: beside a running engine, ended with the command."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.settings import Settings
from headrace.spark.session import start_spark, stop_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SETTINGS", "own_spark", "scratch"]

LEFT_SECONDS_MAX = 24 * 3600  # what a killed command left is removed after so long

SETTINGS = {
    "spark.sql.adaptive.enabled": "true",  # a proof is one large query, planned once
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
}


@contextlib.contextmanager
def scratch(settings: Settings) -> Iterator[Path]:
    """A folder of this command's own under the run directory, removed with it."""
    for left in settings.run_directory.glob("proof-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_SECONDS_MAX:
                shutil.rmtree(left, ignore_errors=True)
    folder = settings.run_directory / f"proof-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def own_spark(settings: Settings, folder: Path) -> Iterator[SparkSession]:
    """Raises JavaMissingError."""
    spark = start_spark(Settings(folder, name=f"{settings.name}-proof", engine=settings.engine))
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        stop_spark(spark)
