"""Events in, time by hand, and what comes of them: through the gateway's code, the log, Spark and
the store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.testing
from headrace.model.errors import DefinitionErrors, EngineError, KitError, RequestError, StoreError
from headrace.testing import Answer, Project

Payment = Callable[[str, str, str], dict[str, str]]
Make = Callable[..., Project]

IDLE = """
CREATE STREAM readings (sensor STRING NOT NULL, at TIMESTAMP NOT NULL, n INT)
WATERMARK at DELAY OF INTERVAL 5 SECONDS IDLE AFTER INTERVAL 30 SECONDS LATE SIDE
PARTITION BY (sensor) INTO 4 PARTITIONS;

CREATE MATERIALIZED VIEW sums AS
SELECT window.start AS window_start, sensor, sum(n) AS n
FROM readings GROUP BY window(at, '10 seconds'), sensor EMIT ON WINDOW CLOSE;
"""


def test_events_are_counted_and_late_ones_revise(shop: Project, pay: Payment) -> None:
    """Disorder, a duplicate request and a late event are what the test writes down."""
    events = [pay("a", "10.00", "00:09"), pay("b", "2.50", "00:03"), pay("a", "1.25", "00:01")]
    assert shop.send("payments", events, key="first") == Answer(accepted=3, quarantined=0)
    again = shop.send("payments", events, key="first")
    assert again == Answer(accepted=3, quarantined=0, is_retry=True)
    shop.expect("income").rows(
        [
            {
                "window_start": "2026-01-01T00:00:00Z",
                "user_id": "a",
                "income": "11.25",
                "payments": 2,
                "revision": 0,
                "final": False,
            },
            {"user_id": "b", "income": Decimal("2.5")},
        ]
    ).complete_up_to("2026-01-01T00:00:04Z").counts(read=3, applied=3, late=0)
    shop.send("payments", pay("a", "1", "00:20"))
    shop.expect("income").row(user_id="a", income="11.25", final=True)
    shop.send("payments", pay("a", "0.75", "00:02"))
    shop.expect("income").row(user_id="a", income="12.00", final=True, revision=1).counts(late=1)


def test_changes_are_those_since_the_last_look(shop: Project, pay: Payment) -> None:
    income = shop.expect("income").no_changes()
    shop.send("payments", [pay("a", "1", "00:01"), pay("b", "2", "00:02")])
    shop.expect("income").row(user_id="a", income="1")  # no look at the changes
    shop.send("payments", pay("a", "3", "00:03"))
    income.changes(added=[{"user_id": "a", "income": "4.00"}, {"user_id": "b", "income": "2.00"}])
    shop.send("payments", [pay("a", "5", "00:04"), pay("c", "6", "00:05"), pay("b", "7", "00:30")])
    income.changes(
        added=[{"user_id": "c"}, {"user_id": "b", "window_start": "2026-01-01T00:00:30Z"}],
        changed=[({"user_id": "a", "income": "4.00"}, {"income": "9.00", "payments": 3})],
    ).no_changes()


def test_what_cannot_be_accepted_is_a_dead_letter(shop: Project, pay: Payment) -> None:
    answer = shop.send(
        "payments",
        [
            pay("a", "1", "00:01"),
            pay("a", "much", "00:02"),
            '{"id": "cut off',
        ],
    )
    assert (answer.accepted, answer.quarantined) == (1, 2)
    assert [position for position, _ in answer.errors] == [1, 2]
    shop.expect("payments").dead_letters(
        ["not JSON", {"reason": "column amount", "record": {"amount": "much"}}]
    )
    shop.expect("income").row(user_id="a", income="1").dead_letters([])


def test_an_event_that_a_view_cannot_take_is_its_dead_letter(shop: Project, pay: Payment) -> None:
    shop.send("payments", [pay("a", "4", "00:01"), pay("b", "0", "00:02"), pay("b", "5", "00:03")])
    shop.expect("shares").dead_letters([{"reason": "DIVIDE_BY_ZERO", "record": {"user_id": "b"}}])
    shop.expect("shares").counts(read=3, applied=2, dead=1).status("live")
    shop.expect("income").row(user_id="b", income="5.00", payments=2).dead_letters([])


def test_idle_partitions_follow_the_clock(make: Make) -> None:
    """And windows that are published when they close are there then, not before."""
    project = make(sql=IDLE, now=datetime(2026, 1, 1, tzinfo=UTC))
    project.send("readings", [{"sensor": "a", "at": "2026-01-01T00:00:01Z", "n": 1}])
    project.send("readings", [{"sensor": "b", "at": "2026-01-01T00:00:02Z", "n": 2}])
    project.advance(seconds=29)
    project.expect("sums").empty()
    project.advance(seconds=1)
    assert project.now == datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
    project.expect("sums").complete_up_to("2026-01-01T00:00:25Z").rows([{"n": 1}, {"n": 2}])


def test_the_clock_follows_events_unless_it_is_put_somewhere(make: Make, shop: Project) -> None:
    event = {"id": "1", "user_id": "a", "amount": "1", "at": "2026-03-01T00:00:00Z"}
    shop.send("payments", event)
    shop.send("payments", {**event, "at": "2026-02-01T00:00:00Z"})
    assert shop.now == datetime(2026, 3, 1, tzinfo=UTC)
    shop.heartbeat("payments", "2026-04-01T00:00:00Z")
    assert shop.now == datetime(2026, 4, 1, tzinfo=UTC)
    shop.expect("payments").dead_letters([])
    fixed = make(sql=IDLE, now="2026-02-01T00:00:00Z")
    fixed.send("readings", {"sensor": "a", "at": "2026-02-02T00:00:00.000001Z"})
    fixed.expect("readings").dead_letters(["more than 86400 s after it was received"])
    with pytest.raises(RequestError, match="further in the future"):
        fixed.heartbeat("readings", "2026-03-01T00:00:00Z")
    assert fixed.now == datetime(2026, 2, 1, tzinfo=UTC)


def test_time_that_passes_with_events_lets_silent_partitions_go(make: Make) -> None:
    project = make(sql=IDLE)
    project.send("readings", {"sensor": "a", "at": "2026-01-01T00:00:01Z", "n": 1})
    project.send("readings", {"sensor": "b", "at": "2026-01-01T00:00:30Z", "n": 2})
    project.expect("sums").complete_up_to("2025-12-31T23:59:56Z")
    project.send("readings", {"sensor": "b", "at": "2026-01-01T00:00:31Z", "n": 3})
    project.expect("sums").complete_up_to("2026-01-01T00:00:25Z").rows([{"sensor": "a"}])


def test_a_heartbeat_closes_windows_and_late_events_are_set_aside(make: Make) -> None:
    project = make(sql=IDLE)
    project.send("readings", {"sensor": "a", "at": "2026-01-01T00:00:01Z", "n": 1})
    project.expect("sums").complete_up_to("2025-12-31T23:59:56Z").no_changes()
    project.heartbeat("readings", "2026-01-01T00:00:10Z")
    project.expect("sums").changes(added=[{"sensor": "a", "n": 1}])
    project.send("readings", {"sensor": "a", "at": "2026-01-01T00:00:02Z", "n": 10})
    project.expect("sums").row(n=1, revision=0).counts(applied=1, sided=1).no_changes()
    project.expect("readings_late").rows(
        [{"view": "sums", "sensor": "a", "n": 10, "watermark": "2026-01-01T00:00:10Z"}]
    )
    project.apply_late("readings")
    project.expect("sums").changes(changed=[({"n": 1, "revision": 0}, {"n": 11, "revision": 1})])
    project.expect("sums").counts(applied=2, sided=0, late=1)


def test_a_stream_that_halts_waits_for_a_decision(make: Make) -> None:
    project = make(sql=IDLE.replace("LATE SIDE", "LATE HALT").replace("EMIT ON WINDOW CLOSE", ""))
    project.send("readings", {"sensor": "a", "at": "2026-01-01T00:00:20Z", "n": 1})
    project.send("readings", {"sensor": "a", "at": "2026-01-01T00:00:02Z", "n": 2})
    project.expect("sums").status("halted", "is late for 1 window").rows([{"n": 1}])
    project.resume("readings", "apply")
    project.expect("sums").status("live").rows([{"n": 1}, {"n": 2, "revision": 1}])
    with pytest.raises(KitError, match="no decision 'ignore'"):
        project.resume("readings", "ignore")


def test_duplicates_clocks_and_numbers_are_those_of_the_definition(make: Make) -> None:
    project = make(
        sql="""
        CREATE STREAM readings (sensor STRING NOT NULL, at TIMESTAMP NOT NULL, sent TIMESTAMP)
        WATERMARK at DELAY OF INTERVAL 5 SECONDS LATE REVISE SENT sent
        DEDUPLICATE BY (sensor, at) WITHIN INTERVAL 1 HOUR;

        CREATE MATERIALIZED VIEW seen AS
        SELECT sensor, _event_time AS corrected, _quality AS quality FROM readings;
        """,
        now="2026-01-01T01:00:00Z",
    )
    slow = {"sensor": "a", "at": "2026-01-01T00:00:00Z"}
    project.send("readings", slow, sent_at="2026-01-01T00:00:10Z")
    project.send("readings", [slow, {**slow, "sensor": "b"}], producer="p", sequence=7)
    part = project.send("readings", [{**slow, "sensor": "b"}] * 2, producer="p", sequence=8)
    assert (part.accepted, part.retried) == (1, 1)
    project.expect("seen").rows(
        [
            {"sensor": "a", "corrected": "2026-01-01T00:59:50Z", "quality": "corrected"},
            {"sensor": "b", "corrected": "2026-01-01T00:00:00Z", "quality": "exact"},
        ]
    ).counts(read=2, duplicate=2)


def test_every_kind_of_view_can_be_expected(make: Make) -> None:
    project = make(
        sql="""
        CREATE STREAM readings (sensor STRING NOT NULL, n INT, at TIMESTAMP NOT NULL)
        WATERMARK at DELAY OF INTERVAL 1 MINUTE LATE REVISE;

        CREATE MATERIALIZED VIEW high AS SELECT sensor, n FROM readings WHERE n > 5;

        CREATE MATERIALIZED VIEW total AS SELECT count(*) AS readings, avg(n) AS mean FROM readings;

        CREATE MATERIALIZED VIEW bursts AS
        SELECT sensor, window.start AS begun, sum(n) AS n
        FROM readings GROUP BY sensor, session_window(at, '10 seconds');

        CREATE MATERIALIZED VIEW recent AS
        SELECT sensor, n, sum(n) OVER (
          PARTITION BY sensor ORDER BY at RANGE BETWEEN INTERVAL 10 SECONDS PRECEDING
          AND CURRENT ROW) AS sum
        FROM readings;
        """
    )
    project.expect("total").rows([{"readings": 0, "mean": None}])
    for second, n in ((0, 1), (15, 6), (30, 9)):
        project.send("readings", {"sensor": "a", "n": n, "at": f"2026-01-01T00:00:{second:02}Z"})
    project.expect("high").changes(added=[{"n": 6}, {"n": 9}])
    project.expect("total").rows([{"readings": 3, "mean": pytest.approx(16 / 3)}])
    project.expect("total").changes(changed=[({"readings": 0}, {"readings": 3})])
    project.expect("bursts").changes(added=[{"n": 1}, {"n": 6}, {"n": 9}])
    project.expect("recent").changes(added=[{"n": n, "sum": n} for n in (1, 6, 9)])
    project.send("readings", {"sensor": "a", "n": 2, "at": "2026-01-01T00:00:07Z"})
    project.expect("high").no_changes().counts(filtered=2, applied=2)
    project.expect("bursts").changes(
        changed=[({"begun": "2026-01-01T00:00:00Z", "n": 1}, {"n": 9})],
        removed=[{"begun": "2026-01-01T00:00:15Z", "n": 6}],
    )
    project.expect("recent").changes(
        added=[{"n": 2, "sum": 3}], changed=[({"n": 6, "sum": 6}, {"n": 6, "sum": 8})]
    )


def test_a_tick_that_failed_is_done_again_before_anything_is_expected(
    shop: Project, pay: Payment, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shop._running.store
    commit, failures = store.commit, [2]

    def failing(*given: Any, **named: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise StoreError("the store is not well")
        return commit(*given, **named)

    monkeypatch.setattr(store, "commit", failing)
    shop.send("payments", pay("a", "1", "00:01"))
    shop.expect("income").rows([{"user_id": "a"}])
    failures[0] = 1_000
    shop.send("payments", pay("a", "1", "00:02"))
    with pytest.raises(EngineError, match=r"ticks in a row failed, .* the store is not well"):
        shop.expect("income").empty()


def test_queries_read_what_was_sent(shop: Project, pay: Payment) -> None:
    shop.send("payments", [pay("a", "1", "00:01"), pay("b", "2", "00:02")])
    assert shop.query("SELECT sum(income) AS total FROM income") == [{"total": Decimal("3.00")}]


def test_two_projects_know_nothing_of_each_other(make: Make, shop: Project, pay: Payment) -> None:
    other = make(
        define=lambda: (
            headrace.stream("payments", columns={"n": "INT"}).agg(total="sum(n)").view("income")
        )
    )
    other.send("payments", [{"n": 1}, {"n": 2}])
    shop.send("payments", pay("a", "1", "00:01"))
    other.expect("income").rows([{"total": 3}])
    shop.expect("income").rows([{"user_id": "a"}])


def test_a_folder_with_its_settings_is_a_project(make: Make, tmp_path: Path) -> None:
    """Nothing is written into it."""
    (tmp_path / "headrace.toml").write_text("[gateway]\nline_bytes_max = 30\n")
    (tmp_path / "orders.sql").write_text(
        "CREATE STREAM orders (id STRING);"
        "CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM orders;"
    )
    project = make(tmp_path)
    project.send("orders", [{"id": "a"}, {"id": "b" * 30}])
    project.expect("n").rows([{"n": 1}])
    project.expect("orders").dead_letters(["at most 30"])
    assert {file.name for file in tmp_path.iterdir()} == {"headrace.toml", "orders.sql"}


def test_definitions_that_are_wrong_are_told_as_anywhere(make: Make, tmp_path: Path) -> None:
    with pytest.raises(DefinitionErrors, match="column m does not exist in stream orders"):
        make(sql="CREATE STREAM orders (n INT); CREATE MATERIALIZED VIEW v AS SELECT m FROM orders")
    with pytest.raises(KitError, match="no definitions in the folder"):
        make(tmp_path)
    with pytest.raises(KitError, match="there is no folder"):
        make(tmp_path / "nowhere")
    with pytest.raises(KitError, match="one of them"):
        make(tmp_path, sql="CREATE STREAM orders (n INT)")


def test_a_view_that_spark_does_not_accept_is_told(make: Make) -> None:
    with pytest.raises(headrace.HeadraceError, match=r"view v: .*DATATYPE_MISMATCH"):
        make(
            sql="CREATE STREAM orders (n INT, at TIMESTAMP);"
            "CREATE MATERIALIZED VIEW v AS SELECT sum(n + at) AS s FROM orders;"
        )


def test_every_public_name_exists() -> None:
    for name in headrace.testing.__all__:
        assert getattr(headrace.testing, name).__doc__
    with pytest.raises(AttributeError):
        headrace.testing.nothing  # noqa: B018


def test_bad_use_is_told_apart_from_a_failing_test(shop: Project, pay: Payment) -> None:
    with pytest.raises(RequestError, match="orders"):
        shop.send("orders", {"id": "a"})
    with pytest.raises(RequestError, match="no record"):
        shop.send("payments", [])
    shop.send("payments", pay("a", "1", "00:01"), key="k")
    with pytest.raises(RequestError, match="used before with another body"):
        shop.send("payments", pay("a", "2", "00:01"), key="k")
    with pytest.raises(KitError, match="no view or stream 'incme'") as unknown:
        shop.expect("incme")
    assert "income, shares, payments" in unknown.value.hint
    with pytest.raises(KitError, match="sets no late events aside"):
        shop.expect("payments_late")
    with pytest.raises(KitError, match="payments is no view"):
        shop.expect("payments").rows([])
    with pytest.raises(KitError, match="no column 'incme'") as column:
        shop.expect("income").row(incme="1")
    assert "did you mean 'income'" in column.value.hint
    with pytest.raises(KitError, match=r"column income DECIMAL.*\"much\""):
        shop.expect("income").row(income="much")
    with pytest.raises(KitError, match="are a list"):
        shop.expect("income").rows({"user_id": "a"})  # type: ignore[arg-type]
    with pytest.raises(KitError, match="no count 'lost'"):
        shop.expect("income").counts(lost=1)
    with pytest.raises(KitError, match="put back by 0:00:01"):
        shop.advance(seconds=-1)
    with pytest.raises(KitError, match="not a moment"):
        shop.expect("income").complete_up_to("yesterday")
    with pytest.raises(KitError, match="cannot be expected as 3"):
        shop.expect("payments").dead_letters([3])  # type: ignore[list-item]
    with pytest.raises(KitError, match="is a pair of rows"):
        shop.expect("income").changes(changed=[{"user_id": "a"}])  # type: ignore[list-item]
