"""`python -m headrace.engine DIRECTORY`: one project's engine, as the supervisor starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.compile import load_project
from headrace.engine.process import run_engine
from headrace.model.errors import HeadraceError
from headrace.model.settings import load_settings


def main() -> int:
    directory = Path(sys.argv[1])
    try:
        return run_engine(load_settings(directory), load_project(directory))
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
