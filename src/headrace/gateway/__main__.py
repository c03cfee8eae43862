"""`python -m headrace.gateway DIRECTORY`: the gateway of the project in that folder."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from headrace.compile import load_project
from headrace.gateway.process import run_gateway
from headrace.model.errors import HeadraceError
from headrace.model.settings import load_settings

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m headrace.gateway DIRECTORY")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        directory = Path(sys.argv[1])
        sys.exit(run_gateway(load_settings(directory), load_project(directory)))
    except HeadraceError as error:
        sys.exit(f"error: {error}")
