"""What a failing expectation says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.testing import Project

Payment = Callable[[str, str, str], dict[str, str]]


@pytest.fixture
def paid(shop: Project, pay: Payment) -> Project:
    shop.send(
        "payments", [pay("a", "10", "00:01"), pay("b", "2.50", "00:12"), pay("c", "x", "00:01")]
    )
    return shop


def _said(check: Callable[[], object]) -> list[str]:
    with pytest.raises(AssertionError) as caught:
        check()
    return str(caught.value).splitlines()


ABOUT = [
    "income is live; complete up to 2026-01-01T00:00:07Z; events: 2 read, 2 applied",
    "payments has 1 dead letter, the last: column amount DECIMAL(18,2): expected a "
    'decimal number, got "x"',
]


def test_rows(paid: Project) -> None:
    expected = [
        {"user_id": "a", "window_start": "2026-01-01T00:00:00Z", "income": "12.00", "payments": 1},
        {"user_id": "c", "income": "1"},
    ]
    assert _said(lambda: paid.expect("income").rows(expected)) == [
        "income is not as expected: 2 rows expected, 2 there",
        "  differs    user_id='a', window_start=2026-01-01T00:00:00Z, payments=1",
        "                 income: expected 12.00, is 10.00",
        "  missing    user_id='c', income=1.00",
        "  unexpected window_start=2026-01-01T00:00:10Z, user_id='b', income=2.50, payments=1, "
        "revision=0, final=False",
        *ABOUT,
    ]
    assert _said(lambda: paid.expect("income").row(user_id="b", income="3"))[:3] == [
        "income is not as expected: a row expected, 2 there",
        "  differs    user_id='b'",
        "                 income: expected 3.00, is 2.50",
    ]
    assert _said(lambda: paid.expect("income").row(user_id="d"))[1] == "  missing    user_id='d'"
    assert _said(lambda: paid.expect("income").no_row(user_id="b"))[0] == (
        "income is not as expected: no row with user_id='b', 2 there"
    )
    assert "  unexpected window_start" in _said(lambda: paid.expect("income").empty())[1]


def test_changes(paid: Project, pay: Payment) -> None:
    paid.expect("income").changes(added=[{"user_id": "a"}, {"user_id": "b"}])
    paid.send("payments", [pay("a", "5", "00:02"), pay("c", "1", "00:03")])
    expected = [({"user_id": "a", "income": "10"}, {"income": "14"})]
    assert _said(lambda: paid.expect("income").changes(changed=expected)) == [
        "the changes of income are not as expected:",
        " added:",
        "  unexpected window_start=2026-01-01T00:00:00Z, user_id='c', income=1.00, payments=1, "
        "revision=0",
        " changed:",
        "  differs    before.user_id='a', before.income=10.00",
        "                 after.income: expected 14.00, is 15.00",
        ABOUT[0].replace("2 read, 2 applied", "4 read, 4 applied"),
        ABOUT[1],
    ]


def test_letters_counts_and_states(paid: Project) -> None:
    assert _said(lambda: paid.expect("payments").dead_letters(["column id"])) == [
        "the dead letters of payments are not as expected: it has 1",
        "  missing    reason=…column id…",
        "  unexpected reason='column amount DECIMAL(18,2): expected a decimal number, got \"x\"', "
        "record={'id': 'c00:01', 'user_id': 'c', 'amount': 'x', 'status': 'paid', "
        "'at': '2026-01-01T00:00:01Z'}",
    ]
    income = paid.expect("income")
    assert _said(lambda: income.counts(applied=3, late=0)) == [
        "the events of income were not counted as expected:",
        "  applied: expected 3, is 2",
        *ABOUT,
    ]
    assert _said(lambda: income.complete_up_to("2026-01-01T00:00:08Z"))[0] == (
        "income is complete up to 2026-01-01T00:00:07Z, expected 2026-01-01T00:00:08Z"
    )
    assert _said(lambda: income.complete_up_to(None))[0].endswith("expected an unknown time")
    assert _said(lambda: income.status("halted", "is late"))[:2] == [
        "income is live, expected halted",
        "  expected the reason 'is late'",
    ]
