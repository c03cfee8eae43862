"""Ad-hoc SQL: read-only, bounded, and never in the way of a tick."""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from store_cases import Opener, rows_of, sales, tick_write, view_write

from headrace.model.errors import QueryError
from headrace.model.settings import StoreSettings
from headrace.store.contract import QueryResult, Store
from headrace.store.reading import queries

ONE = Decimal("1.00")
ENDLESS = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000000) b"
HOSTILE = (
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW sales",
    "INSERT INTO sales VALUES (1)",
    "UPDATE _headrace.numbers SET value = 9",
    "DELETE FROM _headrace.numbers",
    "WITH x AS (DELETE FROM _headrace.numbers RETURNING *) SELECT * FROM x",
    "WITH x AS (INSERT INTO _headrace.numbers VALUES ('a', 1) RETURNING *) SELECT * FROM x",
    "SELECT * FROM _headrace.numbers",
    'SELECT * FROM "_headrace"."numbers"',
    'SELECT * FROM store."_HEADRACE".numbers',
    "SELECT (SELECT max(value) FROM _headrace.numbers)",
    "DESCRIBE _headrace.numbers",
    "SUMMARIZE _headrace.numbers",
    "CREATE TABLE x (a INT)",
    "CREATE TEMP TABLE x AS SELECT 1",
    "DROP VIEW sales",
    "ALTER VIEW sales RENAME TO x",
    "COPY (SELECT 1) TO '/tmp/headrace-hostile.csv'",
    "COPY sales FROM '/etc/passwd'",
    "EXPORT DATABASE '/tmp/headrace-hostile'",
    "IMPORT DATABASE '/tmp'",
    "ATTACH '/tmp/headrace-hostile.duckdb'",
    "ATTACH ':memory:' AS m",
    "DETACH store",
    "USE _headrace",
    "SET memory_limit = '100GB'",
    "SET GLOBAL lock_configuration = false",
    "RESET memory_limit",
    "PRAGMA database_list",
    "PRAGMA memory_limit = '1GB'",
    "CALL force_checkpoint()",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "INSTALL httpfs",
    "LOAD httpfs",
    "EXPLAIN ANALYZE DELETE FROM sales",
    "EXPLAIN SELECT 1",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "SELECT $1",
    "SELECT ?",
    "SELECT * FROM force_checkpoint()",
    'SELECT * FROM "force_checkpoint"()',
    "SELECT * FROM FORCE_CHECKPOINT/* x */()",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM query('SELECT * FROM _headrace.numbers')",
    "SELECT * FROM query_table('sales')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv_auto('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_parquet('/etc/passwd')",
    "SELECT * FROM read_parquet('https://example.com/x.parquet')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM 'x.csv'",
    "SELECT * FROM 'https://example.com/x.csv'",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM json_execute_serialized_sql('{}')",
    "SELECT getenv('HOME')",
    "SELECT current_setting('temp_directory')",
    "SELECT write_log('x')",
    "SELECT sleep_ms(1000)",
    "SELECT pg_sleep(1)",
    "SELECT nextval('x')",
    "SELECT setseed(0.5)",
    "SELECT * FROM local_variable",
    "SELECT * FROM _stage_0",
    "SELECT * FROM _old_0",
    "PIVOT sales ON user",
    "",
    ";",
    "-- nothing",
    "SELEC 1",
    "SELECT * FROM nowhere",
    "SELECT 1/",
    "SELECT 'a'::INT",
    "SELECT \x00",
    "SELECT '" + "x" * 200_000 + "'",
)


@pytest.mark.parametrize("sql", HOSTILE, ids=lambda sql: sql[:60])
def test_hostile_sql_is_refused(sold: Store, sql: str) -> None:
    local_variable = pa.table({"secret": [1]})
    with pytest.raises(QueryError) as caught:
        list(sold.query(sql).batches)
    assert caught.value.status in (400, 413)
    assert caught.value.hint
    assert local_variable.num_rows == 1
    assert rows_of(sold, "SELECT count(*) FROM sales") == [(100,)]
    assert sold.metrics()["queries_running"] == 0


def test_memory_that_is_not_counted_ends_a_query_too(
    open_backend: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_backend(StoreSettings(memory_mebibytes=128))
    taken = iter(range(0, 10**15, 100 * 1024 * 1024))
    monkeypatch.setattr(queries, "_resident_bytes", lambda: next(taken))
    with pytest.raises(QueryError, match="memory") as caught:
        rows_of(store, ENDLESS)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM sales",
        "WITH a AS (SELECT * FROM sales) SELECT count(*) FROM a JOIN a b USING (user)",
        "SELECT count(*) FROM (FROM sales)",
        "SELECT count(*) FROM (SELECT * FROM sales UNION ALL SELECT * FROM sales LIMIT 100)",
        "SELECT 100 -- a comment; SELECT 2",
        "SELECT count(DISTINCT user) FROM sales, range(3)",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 100)"
        " SELECT max(n)::BIGINT FROM t",
        "SELECT count(*) FROM (SELECT row_number() OVER (ORDER BY user) FROM sales)",
        "VALUES (100)",
        "SELECT count(*) FROM (DESCRIBE sales), range(25)",
    ],
)
def test_plain_queries_are_answered(sold: Store, sql: str) -> None:
    assert rows_of(sold, sql) == [(100,)]


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT user AS sales FROM SALES", {"SALES"}),
        ("SELECT 'sales' -- FROM sales", set()),
        ("WITH sales AS (SELECT 1 AS user) SELECT user FROM sales", set()),
        ("WITH a AS (FROM sales) SELECT 1 WHERE EXISTS (SELECT 1 FROM a, range(3))", {"sales"}),
        ("SELECT (SELECT count(*) FROM sales) + 1", {"sales"}),
        ("SUMMARIZE sales", {"sales"}),
    ],
)
def test_the_views_that_a_query_reads_are_known_before_it_runs(
    sold: Store, sql: str, names: set[str]
) -> None:
    assert sold.views_in(sql) == names
    assert sold.metrics()["queries_running"] == 0


@pytest.mark.parametrize("sql", ["SELECT * FROM nothing", "DROP VIEW sales", "SELEC 1"])
def test_what_is_no_query_reads_nothing(sold: Store, sql: str) -> None:
    with pytest.raises(QueryError) as asked:
        sold.views_in(sql)
    with pytest.raises(QueryError) as run:
        sold.query(sql)
    assert (str(asked.value), asked.value.view) == (str(run.value), run.value.view)


def test_timestamps_in_answers_are_utc_microseconds(sold: Store) -> None:
    result = sold.query("SELECT TIMESTAMPTZ '2026-01-01 00:00:03Z' AS t")
    list(result.batches)
    assert result.schema.field("t").type == pa.timestamp("us", "UTC")


def test_too_many_rows(open_backend: Opener) -> None:
    store = open_backend(StoreSettings(query_rows_max=1_000))
    assert len(rows_of(store, "SELECT * FROM range(1000)")) == 1_000
    with pytest.raises(QueryError, match="more than 1000 rows") as caught:
        rows_of(store, "SELECT * FROM range(1001)")
    assert caught.value.status == 413
    assert "LIMIT" in caught.value.hint


def test_a_query_ends_at_its_time_limit(open_backend: Opener) -> None:
    store = open_backend(StoreSettings(query_seconds_max=1))
    with pytest.raises(QueryError, match="longer than 1 s") as caught:
        rows_of(store, ENDLESS)
    assert caught.value.status == 408
    assert rows_of(store, "SELECT 1") == [(1,)]
    assert store.metrics()["queries_interrupted"] == 1


def test_waiting_for_the_writer_counts_to_the_time_limit(
    open_backend: Opener, beside: Any, until: Any
) -> None:
    store: Any = open_backend(StoreSettings(query_seconds_max=1))
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    for _ in range(3):
        store.commit(tick_write(store, generation, view_write(view, [("ann", 1, ONE, 1, ONE)])))
    errors: list[QueryError] = []

    def ask() -> None:
        with pytest.raises(QueryError) as caught:
            rows_of(store, f"{ENDLESS}, sales")
        errors.append(caught.value)

    with beside(ask), store._lock:  # a tick that takes longer than the limit
        until(lambda: store._queries.interrupted)
    assert [error.status for error in errors] == [408]


def test_a_slow_reader_ends_at_the_time_limit(open_backend: Opener, until: Any) -> None:
    store = open_backend(StoreSettings(query_seconds_max=1, query_rows_max=100_000_000))
    result = store.query("SELECT range, repeat('x', 200) AS text FROM range(2000000)")
    assert store.metrics()["queries_running"] >= 1
    until(lambda: store.metrics()["queries_interrupted"])
    with pytest.raises(QueryError) as caught:
        list(result.batches)
    assert caught.value.status == 408


def test_an_answer_left_unread_frees_its_place(open_backend: Opener) -> None:
    store = open_backend(StoreSettings(queries_at_once_max=1, query_rows_max=100_000_000))
    sql = "SELECT range, repeat('x', 200) AS text FROM range(2000000)"
    for _ in range(3):
        result = store.query(sql)
        next(result.batches)
        with pytest.raises(QueryError) as caught:
            store.query("SELECT 1")
        assert caught.value.status == 503
        result.batches.close()  # type: ignore[attr-defined]
    result = store.query(sql)
    result = None  # type: ignore[assignment]
    assert rows_of(store, "SELECT 1") == [(1,)]


def test_a_query_that_fills_memory_is_stopped_and_ticks_go_on(
    open_backend: Opener, beside: Any
) -> None:
    store = open_backend(StoreSettings(memory_mebibytes=128))
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    errors: list[QueryError] = []

    def hog() -> None:
        try:
            rows_of(
                store,
                "SELECT len(list(a.range || repeat('x', 100))[1])"
                " FROM range(5000000) a GROUP BY a.range % 3",
            )
        except QueryError as error:
            errors.append(error)

    ticks = 0
    with beside(hog, hog):
        while len(errors) < 2:
            rows = [(f"user {i}", 1, ONE, 1, ONE) for i in range(500)]
            store.commit(tick_write(store, generation, view_write(view, rows)))
            ticks += 1
            assert ticks < 5_000
    assert {error.status for error in errors} <= {413, 503}
    assert rows_of(store, "SELECT DISTINCT payments FROM sales") == [(ticks,)]


def test_a_reader_sees_one_tick_however_long_it_reads(open_backend: Opener) -> None:
    store = open_backend(StoreSettings(query_rows_max=100_000_000))
    view = sales()
    store.create_view(view, {})
    generation = store.claim()
    rows = [(f"user {i}", 1, ONE, 1, ONE) for i in range(1_000)]
    store.commit(tick_write(store, generation, view_write(view, rows)))
    sql = "SELECT payments, repeat('x', 1000) FROM sales, range(100)"
    before: QueryResult = store.query(sql)
    next(before.batches)
    for _ in range(5):
        store.commit(tick_write(store, generation, view_write(view, rows)))
        store.checkpoint()
    assert before.freshness.tick == 1
    assert {p for b in before.batches for p in b.column(0).to_pylist()} == {1}
    after = store.query(sql)
    assert after.freshness.tick == 6
    assert {p for b in after.batches for p in b.column(0).to_pylist()} == {6}


def test_ticks_commit_beside_a_heavy_query(open_backend: Opener, beside: Any, until: Any) -> None:
    store = open_backend(StoreSettings(query_seconds_max=600))
    view = sales()
    store.create_view(view, {})
    generation = store.claim()

    def heavy() -> None:
        with pytest.raises(QueryError) as caught:
            rows_of(store, ENDLESS)
        assert caught.value.status == 503

    with beside(heavy), closing(store):
        until(lambda: store.metrics()["queries_running"])
        for _ in range(20):
            write = view_write(view, [("ann", 1, ONE, 1, ONE)])
            store.commit(tick_write(store, generation, write))
        assert store.metrics()["queries_running"] == 1
        assert rows_of(store, "SELECT payments FROM sales") == [(20,)]


def test_closing_interrupts_queries(open_backend: Opener, beside: Any, until: Any) -> None:
    store = open_backend()
    seen: list[int] = []

    def endless() -> None:
        try:
            rows_of(store, ENDLESS)
        except QueryError as error:
            seen.append(error.status)

    with beside(endless), closing(store):
        until(lambda: store.metrics()["queries_running"])
    assert seen == [503]
    with pytest.raises(QueryError):
        store.query("SELECT 1")
