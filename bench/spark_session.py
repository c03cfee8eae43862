"""The Spark session of the hand-written baselines: stock, on the Java that Headrace runs on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.settings import EngineSettings
from headrace.spark.java import find_java, java_home_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SCHEMA_DDL", "start_session"]

SCHEMA_DDL = (
    "id STRING, user_id STRING, amount DECIMAL(18, 2), currency STRING, status STRING,"
    " created_at TIMESTAMP"
)


def start_session(work: Path, cores: int, settings: Mapping[str, str]) -> SparkSession:
    """As many cores and as large a heap as Headrace's engine has by default."""
    os.environ["JAVA_HOME"] = str(java_home_for_spark(find_java(), work))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("shop")
        .config("spark.driver.memory", f"{EngineSettings().java_heap_mebibytes}m")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(work / "spark"))
        .config("spark.sql.warehouse.dir", str(work / "spark" / "warehouse"))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
