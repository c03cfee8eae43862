"""A folder becomes a project: which files count, what a fingerprint notices, how fast it is."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.compile import load_project, parse_sql, plan_view
from headrace.compile.sql.dialect import canonical, parse_expression
from headrace.compile.sql.intervals import format_interval, parse_interval
from headrace.model.errors import DefinitionErrors

STREAM = """CREATE STREAM s (
  id STRING NOT NULL, amount DECIMAL(18, 2), n INT, at TIMESTAMP NOT NULL)
WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE;
"""


def fingerprint(view: str, stream: str = STREAM) -> str:
    project = parse_sql(f"{stream}CREATE MATERIALIZED VIEW v AS {view};")
    return plan_view(project, project.views[0]).fingerprint


def test_files_of_the_folder_and_of_definitions_make_one_project(folder: Path) -> None:
    (folder / "definitions").mkdir()
    (folder / "streams.sql").write_text(STREAM)
    (folder / "definitions" / "views.sql").write_text(
        "CREATE MATERIALIZED VIEW b AS SELECT id FROM s;\n"
        "CREATE MATERIALIZED VIEW a AS SELECT count(*) AS n FROM S;"
    )
    (folder / "notes.txt").write_text("CREATE nothing")
    project = load_project(folder)
    assert project.name == "shop"
    assert [stream.name for stream in project.streams] == ["s"]
    assert [view.name for view in project.views] == ["a", "b"]
    assert str(project.views[1].location) == "definitions/views.sql:1:26"
    assert load_project(folder, "other").name == "other"


def test_a_folder_without_definitions_is_an_empty_project(folder: Path) -> None:
    assert load_project(folder).streams == ()


def test_a_file_that_is_not_text_is_a_fault(folder: Path) -> None:
    (folder / "bad.sql").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DefinitionErrors, match="not UTF-8"):
        load_project(folder)


def test_spelling_does_not_change_a_fingerprint() -> None:
    first = fingerprint("SELECT id, SUM(amount) AS a FROM s WHERE n>1 GROUP BY id")
    again = fingerprint(
        "SELECT t.ID AS id,\n sum( t.Amount ) a -- how much\n FROM S t WHERE t.n > 1 GROUP BY 1"
    )
    assert first == again


@pytest.mark.parametrize(
    "changed",
    [
        "SELECT id, sum(amount) AS b FROM s WHERE n > 1 GROUP BY id",
        "SELECT id, sum(amount) AS a FROM s WHERE n > 2 GROUP BY id",
        "SELECT id, sum(n) AS a FROM s WHERE n > 1 GROUP BY id",
        "SELECT id, sum(amount) AS a FROM s WHERE n > 1 GROUP BY id HAVING a > 0",
        "SELECT upper(id) AS id, sum(amount) AS a FROM s WHERE n > 1 GROUP BY 1",
    ],
)
def test_meaning_changes_a_fingerprint(changed: str) -> None:
    assert fingerprint(changed) != fingerprint(
        "SELECT id, sum(amount) AS a FROM s WHERE n > 1 GROUP BY id"
    )


def test_only_columns_that_are_used_count_in_a_fingerprint() -> None:
    view = "SELECT id, sum(amount) AS a FROM s GROUP BY id"
    before = fingerprint(view)
    assert fingerprint(view, STREAM.replace("n INT", "n BIGINT, more STRING")) == before
    assert fingerprint(view, STREAM.replace("DECIMAL(18, 2)", "DECIMAL(20, 2)")) != before


TIMED = STREAM.replace("at TIMESTAMP", "sent TIMESTAMP, seq INT NOT NULL, at TIMESTAMP")
WINDOWED = "SELECT id, count(*) AS c FROM s GROUP BY window(at, '1 hour'), id"
OVER = (
    "SELECT id, count(*) OVER (PARTITION BY id ORDER BY at RANGE BETWEEN INTERVAL 1 HOUR PRECEDING "
    "AND CURRENT ROW) AS c FROM s"
)
SUMMED = "SELECT id, sum(n) AS c FROM s GROUP BY id"
LATEST = "SELECT id, last(n) AS c FROM s GROUP BY id"


@pytest.mark.parametrize(
    ("clauses", "of_windows", "of_time", "of_all"),
    [
        ("5 SECONDS LATE REVISE", False, False, False),
        ("6 SECONDS LATE REVISE", True, False, False),
        ("5 SECONDS LATE SIDE", True, False, False),
        ("5 SECONDS LATE REVISE WITHIN INTERVAL 1 DAY", True, False, False),
        ("5 SECONDS LATE REVISE SENT sent", True, True, False),
        ("5 SECONDS LATE REVISE DEDUPLICATE BY (id) WITHIN INTERVAL 1 HOUR", True, True, True),
        ("5 SECONDS LATE REVISE NUMBERED BY seq PER (id)", False, False, False),
        ("5 SECONDS LATE REVISE FUTURE UP TO INTERVAL 1 HOUR", False, False, False),
        ("5 SECONDS LATE REVISE IDLE AFTER INTERVAL 1 HOUR", False, False, False),
        ("5 SECONDS LATE REVISE EXPECT EVERY INTERVAL 1 HOUR RETAIN 5 DAYS", False, False, False),
    ],
)
def test_a_fingerprint_knows_what_a_stream_says_about_time(
    clauses: str, of_windows: bool, of_time: bool, of_all: bool
) -> None:
    changed = TIMED.replace("5 SECONDS LATE REVISE", clauses)
    for view, changes in (
        (WINDOWED, of_windows),
        (OVER, of_windows),
        (LATEST, of_time),
        (SUMMED, of_all),
    ):
        assert (fingerprint(view, changed) != fingerprint(view, TIMED)) is changes, view


def test_clocks_and_duplicates_count_in_a_fingerprint_with_their_bounds() -> None:
    told = {
        fingerprint(WINDOWED, TIMED.replace("LATE REVISE", f"LATE REVISE {clause}"))
        for clause in (
            "SENT sent",
            "SENT sent SKEW OVER INTERVAL 3 SECONDS",
            "SENT sent CAP INTERVAL 3 DAYS",
            "DEDUPLICATE BY (id) WITHIN INTERVAL 1 HOUR",
            "DEDUPLICATE BY (id) WITHIN INTERVAL 2 HOURS",
            "DEDUPLICATE BY (id, n) WITHIN INTERVAL 2 HOURS",
        )
    }
    assert len(told) == 6


def test_kinds_of_windows_differ_in_their_fingerprints() -> None:
    windows = [
        "window(at, '1 hour')",
        "session_window(at, '1 hour')",
        "session_window(at, '2 hours')",
        "calendar_window(at, 'day', 'UTC')",
        "calendar_window(at, 'day', 'Europe/Berlin')",
        "event_group(n = 1, n = 2, '1 hour')",
        "event_group(n = 1, n = 3, '1 hour')",
    ]
    views = [f"SELECT id, count(*) AS c FROM s GROUP BY {window}, id" for window in windows]
    views.append(f"{WINDOWED} EMIT ON WINDOW CLOSE")
    assert len({fingerprint(view) for view in views}) == len(views)


def test_a_table_that_gets_a_column_adds_it_at_the_end_of_its_changes() -> None:
    before, after = (
        parse_sql(f"CREATE TABLE t (id STRING PRIMARY KEY{more});").streams[0].columns
        for more in ("", ", name STRING NOT NULL")
    )
    assert after[:-1] == before
    assert (after[-1].name, after[-1].nullable) == ("name", True)


def _table_fingerprint(clauses: str, stream: str = STREAM) -> str:
    project = parse_sql(f"{stream}CREATE TABLE t FROM s {clauses};")
    return plan_view(project, project.views[0]).fingerprint


def test_all_that_a_table_says_counts_in_its_fingerprint() -> None:
    tables = [
        "KEY (id)",
        "KEY (id, n)",
        "KEY (id) SEQUENCE BY n",
        "KEY (id) SEQUENCE BY at",
        "KEY (id) SEQUENCE BY at TOMBSTONES FOR INTERVAL 8 DAYS",
        "KEY (id) APPLY AS DELETE WHEN n = 1",
        "KEY (id) APPLY AS DELETE WHEN n = 2",
        "KEY (id) COLUMNS * EXCEPT (n)",
        "KEY (id) WITH HISTORY",
        "KEY (id) WITH HISTORY FOR INTERVAL 1 DAY",
        "KEY (id) WITH HISTORY VALID FROM at",
    ]
    assert len({_table_fingerprint(table) for table in tables}) == len(tables)
    spelled = "key (ID) TOMBSTONES FOR 7 DAYS sequence by AT"
    assert _table_fingerprint(spelled) == _table_fingerprint("KEY (id) SEQUENCE BY at")


@pytest.mark.parametrize("clause", ["SEQUENCE BY n", "APPLY AS DELETE WHEN n > 1"])
def test_the_type_of_a_column_that_a_table_does_not_show_counts_in_its_fingerprint(
    clause: str,
) -> None:
    table = f"KEY (id) COLUMNS * EXCEPT (n) {clause}"
    changed = STREAM.replace("n INT", "n BIGINT")
    assert _table_fingerprint(table) != _table_fingerprint(table, changed)
    unseen = "KEY (id) COLUMNS * EXCEPT (n)"
    assert _table_fingerprint(unseen) == _table_fingerprint(unseen, changed)


@pytest.mark.parametrize(
    ("text", "microseconds", "shown"),
    [
        ("3 seconds", 3_000_000, "3 seconds"),
        ("INTERVAL '1' HOUR", 3_600_000_000, "1 hour"),
        ("1 hour 30 minutes", 5_400_000_000, "90 minutes"),
        ("1.5 SECONDS", 1_500_000, "1500 milliseconds"),
        ("2 weeks", 1_209_600_000_000, "2 weeks"),
        ("0 seconds", 0, "0 seconds"),
    ],
)
def test_lengths_of_time(text: str, microseconds: int, shown: str) -> None:
    assert parse_interval(text) == microseconds
    assert format_interval(microseconds) == shown
    assert parse_interval(shown) == microseconds


@pytest.mark.parametrize(
    "text",
    [
        "substring(a, 1, 2)",
        "date_add(a, 1)",
        "datediff(a, b)",
        "to_timestamp(a, 'yyyy')",
        "a DIV b",
        "a || 'x'",
        "CAST(a AS DECIMAL(10, 2))",
        "try_cast(a AS INT)",
        "ceil(a, 2)",
        "max_by(a, b)",
        "transform(a, x -> x + 1)",
        "any(a)",
        "a[0]",
        "count(DISTINCT a, b) FILTER(WHERE c)",
        "CASE a WHEN 1 THEN 'it\\'s' END",
    ],
)
def test_functions_keep_their_names(text: str) -> None:
    node = parse_expression(text)
    before = repr(node)
    printed = canonical(node)
    assert repr(node) == before, "printing must not change an expression"
    assert printed.lower() == text.lower()
    assert canonical(parse_expression(printed)) == printed


def test_a_hundred_views_within_a_second(folder: Path) -> None:
    """In a process of its own, with imports, as `headrace validate` does it. On a machine so busy
    that importing the parser alone takes a third of a second, three times that."""
    views = [
        f"CREATE MATERIALIZED VIEW v{n} AS SELECT window.start AS a, window.end AS z, id, "
        f"sum(amount) AS income, avg(amount) AS average, count(*) AS c, max(n) + {n} AS m "
        f"FROM s WHERE n > {n} AND id <> 'x' GROUP BY window(at, '{n + 1} seconds'), id "
        "HAVING income > 0;"
        for n in range(100)
    ]
    (folder / "all.sql").write_text(STREAM + "\n".join(views))
    code = (
        "import sys, pathlib\n"
        "from headrace.compile import load_project\n"
        f"assert len(load_project(pathlib.Path({str(folder)!r})).views) == 100\n"
        "assert 'pyspark' not in sys.modules and 'duckdb' not in sys.modules\n"
    )
    alone = "import sqlglot.dialects.spark"
    whole, base = zip(*[(_seconds(code), _seconds(alone)) for _ in range(4)], strict=True)
    assert min(whole) < max(1.0, 3 * min(base))


def _seconds(code: str) -> float:
    """Processor time of a Python process that runs the code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
