"""Users' queries: on cursors of their own, few at once, each within its limits.

A watcher thread, awake only while something runs, interrupts a query at its deadline, and the
longest-running ad-hoc query when DuckDB's working memory nears its limit: the limit counts for
the whole process, so that a query could otherwise make a tick fail. Memory that DuckDB does not
count shows in the process's own growth.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import duckdb
import psutil
import pyarrow as pa

from headrace.kinds.calculator import arrow_reader
from headrace.model.errors import QueryError, StoreError
from headrace.model.settings import MEBIBYTE, StoreSettings
from headrace.store.contract import Freshness, QueryResult
from headrace.store.duckdb.late import Late
from headrace.store.duckdb.ledger import read_freshness
from headrace.store.duckdb.views import Views
from headrace.store.reading.guard import check_query

__all__ = ["Queries"]

READS_AT_ONCE_MAX = 16  # reads of views and of the change feed; ad-hoc queries have their own bound
AHEAD_BYTES_MAX = 8 * MEBIBYTE  # how much of a result is computed before the answer starts
MEMORY_SHARE_MAX = 0.7
WATCH_SECONDS = 0.05


@dataclass(eq=False)
class _Running:
    cursor: duckdb.DuckDBPyConnection
    deadline: float
    is_adhoc: bool
    resident_bytes: int  # of the process when it began
    reason: QueryError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_done: bool = False

    def interrupt(self, reason: QueryError) -> bool:
        """Whether this is the first time. DuckDB forgets an interrupt that comes between two
        statements, so it may have to be said again. A cursor is never interrupted once it is done:
        it would hit whoever uses it next."""
        with self.lock:
            if self.is_done:
                return False
            is_first = self.reason is None
            self.reason = self.reason or reason
            self.cursor.interrupt()
            return is_first

    def check(self) -> None:
        """Raises the reason why it was interrupted, if it was."""
        if self.reason is not None:
            raise self.reason

    def finish(self) -> None:
        with self.lock:
            self.is_done = True
        self.cursor.close()


class Queries:
    """`views` knows which rows are behind their tables, `write_behind` has them written."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        settings: StoreSettings,
        views: Views,
        late: Late,
        write_behind: Callable[[Sequence[str]], None],
    ) -> None:
        self._views = views
        self._late = late
        self._write_behind = write_behind
        self._known_tick = 0  # some snapshot has seen it, so each later one does
        self._root = connection.cursor()
        self._root_lock = threading.Lock()
        self._settings = settings
        self._adhoc = threading.BoundedSemaphore(settings.queries_at_once_max)
        self._reads = threading.BoundedSemaphore(READS_AT_ONCE_MAX)
        self._running: list[_Running] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_watching = False
        self.interrupted = 0
        self._watcher = threading.Thread(target=self._watch, name="store-watcher", daemon=True)
        self._watcher.start()

    @property
    def running(self) -> int:
        return len(self._running)

    # Ad-hoc SQL

    def query(self, sql: str) -> QueryResult:
        """Errors within the first AHEAD_BYTES_MAX of the result are raised here, later ones while
        the batches are read. The snapshot is held until the last batch is read or closed."""
        if not self._adhoc.acquire(blocking=False):
            most = self._settings.queries_at_once_max
            raise QueryError(
                f"{most} queries are running already", hint="try again shortly", status=503
            )
        try:
            running = self._start(is_adhoc=True)
        except BaseException:
            self._adhoc.release()
            raise
        batches = self._run(running, sql)
        try:
            first = next(batches)
            assert isinstance(first, tuple)
            schema, freshness = first
            ahead: deque[pa.RecordBatch] = deque()
            ahead_bytes = 0
            is_whole = False
            while ahead_bytes < AHEAD_BYTES_MAX:
                batch = next(batches, None)
                if batch is None:
                    is_whole = True
                    break
                assert isinstance(batch, pa.RecordBatch)
                ahead.append(batch)
                ahead_bytes += batch.nbytes
        except BaseException:
            batches.close()
            raise
        if is_whole:
            batches.close()
        return QueryResult(schema, _chained(ahead, batches), freshness)

    def views_in(self, sql: str) -> frozenset[str]:
        """The names of the views that the query reads. Raises QueryError."""
        with self.read() as (cursor, _):
            return check_query(cursor, sql, self._streams_of_views())

    def _run(
        self, running: _Running, sql: str
    ) -> Generator[pa.RecordBatch | tuple[pa.Schema, Freshness], None, None]:
        """First the schema and the freshness, then the batches."""
        rows_max = self._settings.query_rows_max
        try:
            with self._translated(running):
                check_query(running.cursor, sql, self._streams_of_views())
                freshness = self._begin(running, self._views.mentioned_in(sql))
                reader = arrow_reader(running.cursor, sql)
            yield reader.schema, freshness
            rows = 0
            while True:
                with self._translated(running):
                    try:
                        batch = reader.read_next_batch()
                    except StopIteration:
                        return
                rows += batch.num_rows
                if rows > rows_max:
                    raise QueryError(
                        f"the result has more than {rows_max} rows",
                        hint="narrow it down, or add a LIMIT",
                        status=413,
                    )
                yield batch
        finally:
            self._finish(running)
            self._adhoc.release()

    def _streams_of_views(self) -> dict[str, str]:
        entries = [stored.entry for stored in self._views.stored.values()]
        return {**self._late.names, **{e.view: e.stream for e in entries if not e.status.is_closed}}

    # Reads by the store itself, in the user's name

    @contextmanager
    def read(
        self, views: Sequence[str] = ()
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, Freshness]]:
        """A cursor in a read-only transaction that sees all rows of these views, and the tick it
        sees. Waits for a free place at most as long as a query may take. DuckDB's errors come out
        as QueryError."""
        if not self._reads.acquire(timeout=self._settings.query_seconds_max):
            raise QueryError("too many reads at once", hint="try again shortly", status=503)
        try:
            running = self._start(is_adhoc=False)
            try:
                with self._translated(running):
                    freshness = self._begin(running, views)
                    yield running.cursor, freshness
            finally:
                self._finish(running)
        finally:
            self._reads.release()

    def _start(self, *, is_adhoc: bool) -> _Running:
        deadline = time.monotonic() + self._settings.query_seconds_max
        with self._root_lock:
            if self._is_closed:
                raise QueryError("the store is closing", hint="try again shortly", status=503)
            cursor = self._root.cursor()
        running = _Running(cursor, deadline, is_adhoc, _resident_bytes() if is_adhoc else 0)
        with self._changed:
            self._running.append(running)
            self._changed.notify_all()
        return running

    def _begin(self, running: _Running, views: Sequence[str]) -> Freshness:
        while True:
            running.check()
            mark, known = self._views.note_read(views), self._known_tick
            running.cursor.execute("BEGIN TRANSACTION READ ONLY")
            freshness = read_freshness(running.cursor, known)
            self._known_tick = max(self._known_tick, freshness.tick)
            if self._views.is_whole(views, mark, freshness.tick):
                return freshness
            running.cursor.execute("ROLLBACK")
            self._write_behind(views)

    def _finish(self, running: _Running) -> None:
        with self._changed:
            self._running.remove(running)
        running.finish()

    @contextmanager
    def _translated(self, running: _Running) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            if running.reason is not None:
                raise running.reason from error
            text = str(error)
            if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in text:
                raise QueryError(
                    "the query needs more memory than the store may use",
                    hint="narrow it down, or raise store.memory_mebibytes",
                    status=413,
                ) from error
            if isinstance(error, duckdb.InternalException | duckdb.FatalException):
                raise StoreError(f"the store failed: {text}") from error
            raise _told(error, text) from error

    # Limits

    def interrupt_all(self, why: str) -> int:
        """Returns how many were interrupted. Their users get 503 and may try again."""
        with self._changed:
            running = list(self._running)
        count = sum(
            r.interrupt(QueryError(f"interrupted: {why}", hint="try again", status=503))
            for r in running
        )
        self.interrupted += count
        return count

    def _watch(self) -> None:
        cursor = self._root.cursor()
        try:
            while True:
                with self._changed:
                    while not self._running and not self._is_closed:
                        self._changed.wait()
                    if self._is_closed:
                        return
                    self._changed.wait(WATCH_SECONDS)
                    running = list(self._running)
                self._interrupt_late(running)
                self._interrupt_large(cursor, running)
        finally:
            cursor.close()

    def _interrupt_late(self, running: list[_Running]) -> None:
        now = time.monotonic()
        for query in running:
            if query.reason is not None:
                query.interrupt(query.reason)
            elif now >= query.deadline:
                seconds = self._settings.query_seconds_max
                self.interrupted += query.interrupt(
                    QueryError(
                        f"the query took longer than {seconds} s",
                        hint="narrow it down, or raise store.query_seconds_max",
                        status=408,
                    )
                )

    def _interrupt_large(self, cursor: duckdb.DuckDBPyConnection, running: list[_Running]) -> None:
        adhoc = [query for query in running if query.is_adhoc and query.reason is None]
        if not adhoc:
            return
        limit = self._settings.memory_mebibytes * MEBIBYTE
        growth = _resident_bytes() - adhoc[0].resident_bytes
        if growth > limit or working_memory_bytes(cursor) > MEMORY_SHARE_MAX * limit:
            self.interrupted += adhoc[0].interrupt(
                QueryError(
                    "the query took too much of the store's memory",
                    hint="narrow it down, or raise store.memory_mebibytes",
                    status=413,
                )
            )

    def close(self) -> None:
        self.interrupt_all("the store is closing")
        with self._root_lock, self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._watcher.join(timeout=5)
        deadline = time.monotonic() + 5
        while self._running and time.monotonic() < deadline:
            time.sleep(0.005)
        self._root.close()


def _told(error: Exception, text: str) -> QueryError:
    """What a user is told: never DuckDB's suggestions, which name things of its own. All names
    were found before, so a table that is missing was dropped since."""
    if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
        return QueryError("a view was rebuilt meanwhile", hint="try again shortly", status=503)
    lines = [line for line in text.splitlines() if not line.startswith("Did you mean")]
    return QueryError("\n".join(lines), hint="see DuckDB's SELECT reference")


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def working_memory_bytes(cursor: duckdb.DuckDBPyConnection) -> int:
    """What cannot be evicted at once: all but cached pages of the file."""
    found = cursor.execute(
        "SELECT coalesce(sum(memory_usage_bytes), 0)::BIGINT FROM duckdb_memory()"
        " WHERE tag NOT IN ('BASE_TABLE', 'EXTERNAL_FILE_CACHE', 'METADATA')"
    ).fetchall()
    return int(found[0][0])


def _chained(
    ahead: deque[pa.RecordBatch],
    rest: Generator[pa.RecordBatch | tuple[pa.Schema, Freshness], None, None],
) -> Iterator[pa.RecordBatch]:
    try:
        while ahead:
            yield ahead.popleft()
        for batch in rest:
            assert isinstance(batch, pa.RecordBatch)
            yield batch
    finally:
        rest.close()
