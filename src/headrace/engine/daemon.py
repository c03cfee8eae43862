"""The process that forks Spark's Python workers, in place of pyspark.daemon.

The stock daemon forks before anything is imported and runs a full garbage collection after every
task. Here everything a tick needs is imported once, before the fork, and frozen: the collection
after a task then looks only at what the task itself made.
"""

from __future__ import annotations

import gc


def main() -> None:
    import pandas  # noqa: F401
    import pyarrow.compute
    import pyarrow.ipc  # noqa: F401
    import pyspark.daemon
    import pyspark.sql.conversion
    import pyspark.sql.pandas.serializers
    import pyspark.worker

    import headrace.engine.source  # noqa: F401

    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
