"""`python -m bench`: measure, check, print. `python -m bench compare A B`: two commits compared.

The exit code is 1 when an output was wrong or a part could not be measured; the parts that could
be are printed and kept all the same. Goals that are missed are marked, and change no exit code.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.dedupe import dedupe
from bench.drain import drain
from bench.end_to_end import end_to_end
from bench.freshness import freshness
from bench.ingest import ingest
from bench.reconcile import reconcile
from bench.results import FIGURES, Figure, append, compare, lines, table
from bench.running_cost import startup_and_idle
from bench.sessions import sessions
from bench.shop import CHECKOUT
from bench.sliding import sliding
from bench.ticks import ticks

Part = Callable[[Path, bool], Iterator[Figure]]

# In the order in which they are run; the names are the figures that a part gives.
PARTS: Sequence[tuple[tuple[str, ...], Part]] = (
    *(((f"ingest_{size}",), partial(ingest, size)) for size in (1, 100, 1_000, 10_000)),
    (("end_to_end", "memory"), end_to_end),
    (("tick_p99",), ticks),
    (tuple(name for name in FIGURES if name.startswith("freshness")), freshness),
    (("drain", "drain_ratio", "drain_ratio_tuned"), drain),
    (("reconcile_5m",), reconcile),
    (("dedupe_ratio",), dedupe),
    (("sliding",), sliding),
    (("sessions",), sessions),
    (("startup", "idle_core"), startup_and_idle),
)


def _chosen(names: Sequence[str]) -> list[tuple[tuple[str, ...], Part]]:
    """A name is a figure, or how some begin: `ingest`, `freshness`, `drain`."""
    for name in names:
        if not any(figure.startswith(name) for figure in FIGURES):
            raise SystemExit(f"no figure is called {name!r}; there are: {', '.join(FIGURES)}")
    return [
        (figures, part)
        for figures, part in PARTS
        if not names or any(f.startswith(name) for f in figures for name in names)
    ]


def _measure(names: Sequence[str], quick: bool) -> int:
    found: list[Figure] = []
    failed: list[str] = []
    place = CHECKOUT / "build"
    place.mkdir(exist_ok=True)
    for figures, part in _chosen(names):
        print(f"measuring {', '.join(figures)} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        work = Path(tempfile.mkdtemp(prefix="bench-", dir=place))
        try:
            for figure in part(work, quick):
                found.append(figure)
                print(f"  {figure.as_json()}", file=sys.stderr, flush=True)
        except Exception as error:
            failed += [name for name in figures if name not in {f.name for f in found}]
            print(f"  FAILED: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(f"  took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    found.sort(key=lambda figure: list(FIGURES).index(figure.name))
    if found:
        kept = append(found, quick)
        print(table(found))
        print(f"\nevery output was equal to the oracle's; kept in {kept.relative_to(CHECKOUT)}\n")
    for name in failed:
        print(f"FAILED: {name} does not count (see above)", flush=True)
    print(lines(found), flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs: a smoke test")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some figures")
    commands = parser.add_subparsers(dest="command")
    comparing = commands.add_parser("compare", help="two commits, by the medians of their runs")
    comparing.add_argument("first")
    comparing.add_argument("second")
    chosen = parser.parse_args()
    if chosen.command == "compare":
        try:
            print(compare(chosen.first, chosen.second))
        except LookupError as error:
            print(error.args[0], file=sys.stderr)
            return 1
        return 0
    # Told to end, the benchmark ends what it has started, as at Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return _measure(chosen.only, chosen.quick)


if __name__ == "__main__":
    sys.exit(main())
