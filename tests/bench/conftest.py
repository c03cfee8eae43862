"""The benchmarks are part of the checkout, not of the installed package."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = str(Path(__file__).parents[2])
if CHECKOUT not in sys.path:
    sys.path.insert(0, CHECKOUT)
