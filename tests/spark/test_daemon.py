"""The process that forks Spark's Python workers."""

from __future__ import annotations

import os
import subprocess
import sys

HUNG_UP = """
import socket, sys
from headrace.spark.daemon import work
ours, theirs = socket.socketpair()
ours.close()
print("ended with", work(theirs, True))
"""


def test_a_worker_that_spark_hung_up_on_ends_without_a_word() -> None:
    """In a process of its own, since a worker changes how signals are handled."""
    ended = subprocess.run(
        [sys.executable, "-c", HUNG_UP, "pyspark.worker"],
        # As Spark starts the daemon: else the stock worker prints the traceback itself.
        env={**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr) == ("ended with 1\n", "")
