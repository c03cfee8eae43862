"""The process that forks Spark's Python workers, in place of pyspark.daemon.

The stock daemon forks before anything is imported and runs a full garbage collection after every
task. Here everything a tick needs is imported once, before the fork, and frozen: the collection
after a task then looks only at what the task itself made.

Spark hangs up on workers that have been idle for a minute, and on all of them at its end. The stock
worker takes that for a failure and prints a traceback.
"""

from __future__ import annotations

import gc
import socket

from pyspark import daemon

__all__ = ["main", "work"]

_stock_work = daemon.worker


def work(connection: socket.socket, authenticated: bool) -> int:
    """Tasks until Spark hangs up; 1 then. Failures while it listens are told to it."""
    try:
        return int(_stock_work(connection, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1


def main() -> None:
    import pandas  # noqa: F401
    import pyarrow.compute
    import pyarrow.ipc  # noqa: F401
    import pyspark.sql.conversion
    import pyspark.sql.pandas.serializers
    import pyspark.worker  # noqa: F401

    import headrace.spark.streams_leaf  # noqa: F401

    daemon.worker = work  # type: ignore[assignment]  # its argument is named otherwise
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
