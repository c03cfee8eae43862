"""`python -m headrace.cli.child NAME DIR`: how `up` starts the gateway and the engine.

The child is the leader of its own process group and holds the reading end of a pipe whose writing
end only the supervisor has. When the supervisor goes, however it goes, the pipe ends and the child
ends its whole group, so that nothing of a project outlives its `up`.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from headrace.cli import exits
from headrace.cli.logs import LogFormat, configure
from headrace.model.errors import HeadraceError
from headrace.model.settings import Settings, load_settings

__all__ = ["LIFELINE", "LOG_FORMAT", "main"]

LIFELINE = "HEADRACE_LIFELINE"  # the number of the pipe's reading end
LOG_FORMAT = "HEADRACE_LOG_FORMAT"


def _end_with(lifeline: int) -> None:
    while os.read(lifeline, 64):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _run(name: str, directory: Path) -> int:
    settings = load_settings(directory)
    if name == "engine":
        return _run_engine(settings, directory)
    from headrace.compile import load_project
    from headrace.gateway.process import run_gateway

    return run_gateway(settings, load_project(directory))


def _run_engine(settings: Settings, directory: Path) -> int:
    """Java takes longest to start: whatever else is needed is imported after it was begun."""
    from headrace.spark.session import started_spark

    with started_spark(settings) as starting:
        from headrace.compile import load_project
        from headrace.engine.process import run_engine

        return run_engine(settings, load_project(directory), starting)


def main() -> None:
    name, directory = sys.argv[1], sys.argv[2]
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows where every thread is
    configure(LogFormat(os.environ.get(LOG_FORMAT, "people")), name)
    lifeline = os.environ.pop(LIFELINE, None)
    if lifeline is not None:
        threading.Thread(
            target=_end_with, args=(int(lifeline),), name="lifeline", daemon=True
        ).start()
    try:
        code = _run(name, Path(directory))
    except HeadraceError as error:
        print(f"error: {error}", file=sys.stderr)
        code = exits.exit_code(error)
    except KeyboardInterrupt:
        code = exits.INTERRUPTED
    except Exception:
        logging.getLogger("headrace").exception("the %s failed", name)  # one record, whole
        code = exits.DEFECT
    sys.exit(code)


if __name__ == "__main__":
    main()
