"""What ad-hoc SQL may be: judged before it runs, by names, functions and possible sizes."""

from __future__ import annotations

from decimal import Decimal

import pytest
from store_cases import Opener, rows_of, sales

from headrace.model.errors import QueryError
from headrace.store.contract import Store

ONE = Decimal("1.00")
DOUBLED = ", ".join(f"s{i} || s{i} AS s{i + 1}" for i in range(30))
JOINED = ", ".join(f"c{i + 1} AS (SELECT a.x FROM c{i} a, c{i} b)" for i in range(40))
GROWING = (
    "SELECT len(list_sort(range(100000000)))",
    "SELECT len(generate_series(1, 100000000))",
    "SELECT len(l) FROM unnest([range(100000000)]) u(l)",
    "SELECT sum(length(repeat('x', 100000000 + i::INT))) FROM range(3) t(i)",
    "SELECT sum(length(main.repeat('x', 2000000))) FROM range(2000)",
    "SELECT 'x'.repeat(1000).repeat(1000) FROM sales",
    "SELECT repeat(s, 1000) FROM (SELECT repeat('x', 1000) AS s FROM sales)",
    "WITH a AS (SELECT repeat('x', 1000) AS s) SELECT 1 FROM a WHERE repeat(s, 1000) > ''",
    "SELECT lpad('x', 100000000), rpad('x', 100000000)",
    "SELECT printf('%100000000d', 1)",
    "SELECT format('{:100000000d}', 1)",
    "SELECT bar(1, 0, 1, 100000000)",
    "SELECT list_resize([1], 100000000)",
    "SELECT array_resize([1], 100000000)",
    "SELECT bitstring('1', 1000000000)",
    "SELECT equi_width_bins(0, 1000000, 1000000, false)",
    "SELECT replace(repeat('x', 10000), 'x', repeat('y', 10000))",
    "SELECT levenshtein(user, user) FROM sales",
    "SELECT damerau_levenshtein(user, user) FROM sales",
    "SELECT list_transform([1], lambda x: x)",
    "SELECT [x || user FOR x IN string_split(user, '')] FROM sales",
    "SELECT NULL::INT[100000] FROM range(2000)",
    "SELECT bitstring_agg(payments, 0, 1000000000) FROM sales",
    "SELECT max(payments, 1000000) FROM sales",
    "SELECT list(range) OVER (ORDER BY range) FROM range(100000)",
    "SELECT s FROM (SELECT string_agg(user, '') AS s FROM sales), range(2000)",
    "SELECT max(string_agg(user, '')) OVER () FROM sales GROUP BY payments",
    "SELECT (SELECT list(range) FROM range(100000)) FROM sales",
    f"SELECT 'x' AS s0, {DOUBLED}",
    "WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT length(s) FROM t",
    f"WITH c0 AS (SELECT 1 AS x), {JOINED} SELECT count(*) FROM c40",
    f"SELECT {', '.join(['*'] * 3_000)} FROM sales",
    "SELECT count(*) FROM sales GROUP BY CUBE (1, 2, 3, 4, 5, 6, 7)",
    f"SELECT {'abs(' * 900}1{')' * 900}",
)


@pytest.mark.parametrize("sql", GROWING, ids=lambda sql: sql[:60])
def test_sql_that_makes_much_of_little_is_refused_at_once(sold: Store, sql: str) -> None:
    with pytest.raises(QueryError) as caught:
        list(sold.query(sql).batches)
    assert caught.value.status in (400, 413)
    assert caught.value.hint
    assert "Error:" not in caught.value.message  # refused before DuckDB ran it


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT user, income / payments AS mean, round(income, 1) FROM sales ORDER BY 2 DESC",
        "SELECT upper(left(user, 1)) || substr(user, 2) || ' (' || payments || ')' FROM sales",
        "SELECT concat_ws(', ', user, most::VARCHAR), lpad(user, 20, '.'), replace(user, ' ', '_'),"
        " regexp_replace(user, '[0-9]+', '#', 'g'), trim(user), split_part(user, ' ', 2)"
        " FROM sales",
        "SELECT user LIKE 'u%', user ILIKE '%1', regexp_matches(user, '1$'), user IN ('a')"
        " FROM sales",
        "SELECT string_split(user, ' ')[2], length(user), starts_with(user, 'u') FROM sales",
        "SELECT payments, string_agg(user, ', ' ORDER BY user), list(DISTINCT user),"
        " count(*) FILTER (income > 1) FROM sales GROUP BY payments HAVING count(*) > 1",
        "SELECT median(income), stddev(income), quantile_cont(income, [0.5, 0.9]), mode(user),"
        " max_by(user, income), approx_count_distinct(user), min(user) FROM sales",
        "SELECT user, rank() OVER w, sum(income) OVER w, lag(user) OVER w FROM sales"
        " WINDOW w AS (PARTITION BY payments ORDER BY income, user)",
        "SELECT user FROM sales QUALIFY row_number() OVER (ORDER BY income DESC) <= 3",
        "WITH a AS (SELECT user, sum(income) AS i FROM sales GROUP BY ALL),"
        " b AS (SELECT * FROM a),"
        " c AS (SELECT a.*, a.i * 2 AS j FROM a JOIN b USING (user))"
        " SELECT * FROM c JOIN sales USING (user)",
        "SELECT s.user, t.most FROM sales s LEFT JOIN sales t ON s.user = t.user"
        " WHERE s.income > (SELECT avg(income) FROM sales)"
        " OR EXISTS (FROM sales x WHERE x.user = s.user)",
        "SELECT CASE WHEN income > 1 THEN 'much' ELSE 'little' END AS how, count(*) FROM sales"
        " GROUP BY ROLLUP (1) ORDER BY how NULLS LAST LIMIT 3 OFFSET 0",
        "SELECT date_trunc('hour', TIMESTAMPTZ '2026-01-01 00:00:03Z') + INTERVAL 1 DAY,"
        " strftime(DATE '2026-01-01', '%d.%m.%Y'), extract(year FROM now()),"
        " TIMESTAMPTZ '2026-01-01 00:00:03Z' AT TIME ZONE 'Europe/Berlin', epoch_ms(1)",
        "SELECT d, count(user)"
        " FROM generate_series(DATE '2026-01-01', DATE '2026-01-07', INTERVAL 1 DAY) AS g(d)"
        " LEFT JOIN sales ON true GROUP BY d ORDER BY d",
        "SELECT * FROM (PIVOT sales ON payments IN (1, 2) USING sum(income))",
        "SELECT unnest([1, 2]), {'a': user}.a, coalesce(user, 'x'), nullif(user, ''), md5(user),"
        " user::VARCHAR, TRY_CAST(user AS INT), greatest(1, 2), hash(user) FROM main.sales",
        "SELECT * EXCLUDE (most), COLUMNS('in.*') FROM sales WHERE income BETWEEN 0 AND 5",
        "SELECT user FROM sales UNION SELECT 'x' EXCEPT SELECT 'y' ORDER BY 1",
        "SELECT '{\"a\": 1}'::JSON ->> 'a', json_extract_string('{\"a\": 1}', '$.a')",
        "SUMMARIZE sales",
        "DESCRIBE sales",
    ],
    ids=lambda sql: sql[:60],
)
def test_ordinary_queries_are_not_hindered(sold: Store, sql: str) -> None:
    assert rows_of(sold, sql)


@pytest.mark.parametrize(
    "relation",
    [
        "pg_catalog.pg_settings",
        "pg_settings",
        "information_schema.tables",
        "duckdb_databases",
        "duckdb_tables",
        "duckdb_views",
        "duckdb_columns",
        "sqlite_master",
        "system.main.duckdb_tables",
        "(SHOW ALL TABLES)",
        "(SHOW TABLES FROM _headrace)",
        "(WITH duckdb_tables AS (SELECT * FROM duckdb_tables) FROM duckdb_tables)",
        "duckdb_tables, (WITH duckdb_tables AS (SELECT 1) FROM duckdb_tables)",
        "sales WHERE EXISTS (FROM duckdb_tables)",
    ],
)
def test_only_views_can_be_named(sold: Store, relation: str) -> None:
    with pytest.raises(QueryError) as caught:
        rows_of(sold, f"SELECT * FROM {relation}")
    assert caught.value.status == 400
    assert "sales" in caught.value.hint or "views" in caught.value.hint


def test_a_name_that_is_no_view_is_answered_with_the_views(sold: Store) -> None:
    for sql, message in (
        ("SELECT * FROM transactions", "there is no view 'transactions'"),
        ("SELECT * FROM sale", "there is no view 'sale'"),
        ("SELECT * FROM Events", "Events is a stream, which cannot be queried"),
    ):
        with pytest.raises(QueryError) as caught:
            rows_of(sold, sql)
        assert caught.value.message == message
        assert caught.value.hint == "views are sales"


@pytest.mark.parametrize("sql", ["SELECT duckdb_table FROM sales", "SELECT 1::duckdb_typ"])
def test_no_suggestion_of_the_database_gets_out(sold: Store, sql: str) -> None:
    with pytest.raises(QueryError) as caught:
        rows_of(sold, sql)
    assert "Did you mean" not in caught.value.message


def test_a_column_called_like_a_word_of_the_dialect_is_to_be_quoted(open_backend: Opener) -> None:
    finals = (("at", "STRING", '"user"'), ("payments", "BIGINT", '"n"'))
    store = open_backend()
    store.create_view(sales(finals=finals), {})
    for sql in ("SELECT at, payments FROM sales", "SELECT payments FROM sales WHERE At > ''"):
        with pytest.raises(QueryError) as caught:
            rows_of(store, sql)
        hint = 'at is also a word of DuckDB\'s dialect: write the column as "at"'
        assert caught.value.hint == hint
    assert rows_of(store, 'SELECT "at", payments FROM sales') == []
    with pytest.raises(QueryError) as caught:
        rows_of(store, 'SELECT "at" payments, FROM FROM sales')
    assert caught.value.hint == "write one SELECT in DuckDB's dialect"
