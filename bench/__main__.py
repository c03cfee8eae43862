"""`python -m bench`: measure, check, print. `python -m bench compare A B`: two commits compared.

With `--against CHECKOUT` the figures are taken by turns from that checkout and from this one, on
the same machine within the same hour, and what counts is the ratio within each round.

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
from typing import NamedTuple

from bench.against import alternate
from bench.dedupe import dedupe
from bench.drain import drain
from bench.end_to_end import end_to_end
from bench.enrich import WORKS, enrich
from bench.freshness import RATES, figures_of, freshness
from bench.ingest import ingest
from bench.many import MANY_STREAMS, MANY_VIEWS, many
from bench.nexmark import nexmark_alone, nexmark_bids
from bench.reconcile import reconcile
from bench.results import FIGURES, Figure, append, compare, lines, table
from bench.row_view import row_view
from bench.run import Run
from bench.running_cost import startup_and_idle
from bench.sessions import sessions
from bench.shop import CHECKOUT
from bench.sliding import sliding
from bench.state_ratio import state_ratio
from bench.table_fold import table_fold
from bench.ticks import ticks


class Part(NamedTuple):
    """`figures` are the names that it gives. One that is `over_http` touches nothing of Headrace
    but its commands and its HTTP, and so can measure another commit's."""

    figures: tuple[str, ...]
    measure: Callable[[Path, Run], Iterator[Figure]]
    over_http: bool = False


# In the order in which they are run.
PARTS: Sequence[Part] = (
    *(Part((f"ingest_{size}",), partial(ingest, size)) for size in (1, 100, 1_000, 10_000)),
    Part(("end_to_end", "memory"), end_to_end, over_http=True),
    Part(("tick_p99",), ticks),
    *(Part(figures_of(label), partial(freshness, label), over_http=True) for label in RATES),
    *(
        Part((wanted.figure,), partial(many, wanted), over_http=True)
        for wanted in (MANY_STREAMS, MANY_VIEWS)
    ),
    Part(("state_ratio_600", "state_ratio_10k"), state_ratio, over_http=True),
    Part(("row_view",), row_view, over_http=True),
    Part(("table_fold", "table_rebuild_10m"), table_fold, over_http=True),
    *(Part((work.figure,), partial(enrich, work), over_http=True) for work in WORKS),
    Part(("nexmark_bids", "nexmark_memory"), nexmark_bids, over_http=True),
    Part(("nexmark_alone",), nexmark_alone, over_http=True),
    Part(("drain", "drain_ratio", "drain_ratio_tuned"), drain),
    Part(("reconcile_5m",), reconcile),
    Part(("dedupe_ratio",), dedupe),
    Part(("sliding",), sliding),
    Part(("sessions",), sessions),
    Part(("startup", "idle_core"), startup_and_idle),
)


def _chosen(names: Sequence[str]) -> list[Part]:
    """A name is a figure, or how some begin: `ingest`, `freshness`, `drain`."""
    for name in names:
        if not any(figure.startswith(name) for figure in FIGURES):
            raise SystemExit(f"no figure is called {name!r}; there are: {', '.join(FIGURES)}")
    return [
        part
        for part in PARTS
        if not names or any(f == name or _begins(f, name) for f in part.figures for name in names)
    ]


def _begins(figure: str, name: str) -> bool:
    return name not in FIGURES and figure.startswith(name)


def _measure(names: Sequence[str], run: Run) -> int:
    found: list[Figure] = []
    failed: list[str] = []
    place = CHECKOUT / "build"
    place.mkdir(exist_ok=True)
    for part in _chosen(names):
        print(f"measuring {', '.join(part.figures)} …", file=sys.stderr, flush=True)
        began = time.monotonic()
        work = Path(tempfile.mkdtemp(prefix="bench-", dir=place))
        try:
            if run.checkout != CHECKOUT and not part.over_http:
                raise ValueError("it is not taken over HTTP: run it in the other checkout")
            for figure in part.measure(work, run):
                found.append(figure)
                print(f"  {figure.as_json()}", file=sys.stderr, flush=True)
        except Exception as error:
            failed += [name for name in part.figures if name not in {f.name for f in found}]
            print(f"  FAILED: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(f"  took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    found.sort(key=lambda figure: list(FIGURES).index(figure.name))
    if found:
        kept = append(found, run)
        print(table(found))
        print(f"\nevery output was equal to the oracle's; kept in {kept.relative_to(CHECKOUT)}\n")
    for name in failed:
        print(f"FAILED: {name} does not count (see above)", flush=True)
    print(lines(found), flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs: a smoke test")
    parser.add_argument(
        "--events", type=int, metavar="N", help="how many row_view and the nexmark figures take"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some figures")
    parser.add_argument(
        "--checkout",
        type=Path,
        default=CHECKOUT,
        metavar="FOLDER",
        help="measure the Headrace of this source checkout (figures over HTTP alone)",
    )
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", help="this checkout and that one, by turns"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of --against (2)")
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
    run = Run(chosen.quick, chosen.events, chosen.checkout.resolve())
    if chosen.against is not None:
        parts = [(part.figures, part.over_http) for part in _chosen(chosen.only)]
        return alternate(parts, chosen.against.resolve(), chosen.rounds, run)
    return _measure(chosen.only, run)


if __name__ == "__main__":
    sys.exit(main())
