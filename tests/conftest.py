"""What holds for the whole suite: its order, its seeds, and what a test may leave behind.

Fast tests come first, so that a mistake shows within seconds; a test's stage is its marker, else
the stage of its folder. With `--random-order-seed N` the files come in the random order of that
seed instead, across all stages, so that a file that needs another before it is found.

A test with made-up input asks for the fixture `seed` or is one of hypothesis's. It runs once, and
with `--seeds N` that many times, each time with other input. `make test-long` does that.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import hypothesis
import pytest
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGES = ("unit", "contract", "spark", "end_to_end")
FOLDERS = {
    "model": "unit",
    "compile": "unit",
    "kinds": "unit",
    "tidy": "unit",
    "cli": "unit",
    "demo": "unit",
    "log": "contract",
    "store": "contract",
    "formats": "contract",
    "gateway": "contract",
    "http": "contract",
    "serve": "contract",
    "client": "contract",
    "loading": "contract",
    "bench": "contract",
    "spark": "spark",
    "engine": "spark",
    "proof": "spark",
    "testing": "spark",
    "end_to_end": "end_to_end",
}
_ROOT = Path(__file__).parent


class Closable(Protocol):
    def close(self) -> object: ...


Opened = TypeVar("Opened", bound=Closable)


def _stage(item: pytest.Item) -> str:
    for stage in STAGES:
        if item.get_closest_marker(stage) is not None:
            return stage
    folder = item.path.relative_to(_ROOT).parts[0]
    stage = FOLDERS.get(folder, "end_to_end")
    item.add_marker(getattr(pytest.mark, stage))
    return stage


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--random-order-seed",
        type=int,
        metavar="N",
        help="run the test files in a random order, which follows from this number",
    )
    parser.addoption(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="run each test with made-up input this many times, each time with other input",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Run once, hypothesis makes up the same input every time; run more often, always other."""
    is_once = config.getoption("--seeds") == 1
    hypothesis.settings.register_profile("suite", derandomize=is_once, print_blob=not is_once)
    hypothesis.settings.load_profile("suite")


def _is_seeded(test: pytest.Function | pytest.Metafunc) -> bool:
    return "seed" in test.fixturenames or hypothesis.is_hypothesis_test(test.function)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds = range(metafunc.config.getoption("--seeds"))
    if len(seeds) > 1 and _is_seeded(metafunc):
        if "seed" not in metafunc.fixturenames:
            metafunc.fixturenames.append("seed")
        ids = [f"seed {seed}" for seed in seeds]
        metafunc.parametrize("seed", seeds, indirect=True, ids=ids)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: STAGES.index(_stage(item)))
    for item in items:
        if isinstance(item, pytest.Function) and _is_seeded(item):
            item.add_marker(pytest.mark.seeded)
    if (order_seed := config.getoption("--random-order-seed")) is not None:
        files = sorted({item.path for item in items})
        random.Random(order_seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    order_seed = config.getoption("--random-order-seed")
    return (
        [] if order_seed is None else [f"random order of files: --random-order-seed {order_seed}"]
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run fails that ends with open connections to DuckDB or within threads of ours: what these
    hold is still there when the interpreter goes, and DuckDB's binding reports all of it as
    leaked."""
    gc.collect()
    left = [
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and _runs_our_code(thread)
    ]
    if "duckdb" in sys.modules:
        connection = sys.modules["duckdb"].DuckDBPyConnection
        left += [repr(one) for one in gc.get_objects() if isinstance(one, connection)]
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f"alive when all tests had ended: {', '.join(left)}", red=True)


def _runs_our_code(thread: threading.Thread) -> bool:
    """PySpark leaves one of its own."""
    innermost = sys._current_frames().get(thread.ident or 0)
    frames = [] if innermost is None else traceback.walk_stack(innermost)
    files = [Path(frame.f_code.co_filename) for frame, _ in frames]
    return any(_ROOT in file.parents or "headrace" in file.parts for file in files)


class Clock:
    """In a module it takes the place of `time`: it goes as the real one does, and `let_pass` puts
    it ahead."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._ahead_seconds = 0.0

    def install(self, *modules: ModuleType) -> None:
        for module in modules:
            self._patch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_seconds

    def let_pass(self, seconds: float) -> None:
        self._ahead_seconds += seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """So that no test has to wait for time to pass."""
    return Clock(monkeypatch)


@contextlib.contextmanager
def run_beside(*works: Callable[[], object]) -> Iterator[None]:
    """Runs each in a thread of its own beside the body and waits for them, also when the body
    fails; what they raise is raised. None of them may wait for ever."""
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work) for work in works]
        yield
    for work in running:
        work.result()


@pytest.fixture(scope="session")
def beside() -> Callable[..., contextlib.AbstractContextManager[None]]:
    return run_beside


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """For the random numbers of a test: 0, and with `--seeds N` in turn each up to N - 1."""
    return getattr(request, "param", 0)


@pytest.fixture
def closing() -> Iterator[Callable[[Opened], Opened]]:
    """Gives back what it is called with and closes it when the test ends, however it ends."""
    with contextlib.ExitStack() as opened:

        def closed_in_the_end(one: Opened) -> Opened:
            opened.callback(one.close)
            return one

        yield closed_in_the_end


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of a run, with the engine's own settings."""
    from headrace.model.settings import EngineSettings, Settings
    from headrace.spark.session import start_spark, stop_spark

    directory = tmp_path_factory.mktemp("spark")
    settings = Settings(directory, engine=EngineSettings(java_heap_mebibytes=1_024))
    yield (session := start_spark(settings))
    stop_spark(session)


@pytest.fixture
def joins_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the engine did all that a join can say."""
    monkeypatch.setattr("headrace.compile.project.refuse_clauses", lambda draft: None)
