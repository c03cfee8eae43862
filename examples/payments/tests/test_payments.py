"""The tests of this example's definitions, as docs/tutorial/test-your-views.md builds them up."""

from pathlib import Path

import pytest

from headrace.testing import Project


@pytest.fixture
def project():
    with Project(Path(__file__).parents[1]) as project:
        yield project


def payment(number, user, amount, at):
    time = f"2026-01-01T12:{at}Z"
    return {"id": f"p{number}", "user_id": user, "amount": amount, "paid_at": time}


def test_income_is_summed_by_user_and_minute(project):
    project.send(
        "payments",
        [
            payment(1, "ada", "10.00", "00:01"),
            payment(2, "bob", "2.50", "00:02"),
            payment(3, "ada", "1.25", "00:03"),
        ],
    )
    project.expect("income").rows(
        [
            {"minute": "2026-01-01T12:00:00Z", "user_id": "ada", "total": "11.25", "payments": 2},
            {"minute": "2026-01-01T12:00:00Z", "user_id": "bob", "total": "2.50", "payments": 1},
        ]
    )


def test_the_order_of_payments_does_not_matter(project):
    project.send("payments", payment(2, "ada", "2.00", "01:04"))
    project.send("payments", payment(1, "ada", "1.00", "00:59"))
    project.expect("income").rows(
        [
            {"minute": "2026-01-01T12:00:00Z", "total": "1.00"},
            {"minute": "2026-01-01T12:01:00Z", "total": "2.00"},
        ]
    )


def test_a_minute_is_final_when_the_watermark_has_passed_it(project):
    project.send("payments", payment(1, "ada", "1.00", "00:01"))
    project.expect("income").row(user_id="ada", final=False)
    project.send("payments", payment(2, "bob", "1.00", "01:05"))
    project.expect("income").complete_up_to("2026-01-01T12:01:00Z")
    project.expect("income").row(user_id="ada", final=True)


def test_a_late_payment_still_counts(project):
    project.send(
        "payments", [payment(1, "ada", "1.00", "00:01"), payment(2, "bob", "1.00", "01:05")]
    )
    project.send("payments", payment(3, "ada", "0.50", "00:02"))
    project.expect("income").row(user_id="ada", total="1.50", revision=1).counts(late=1)


def test_silence_does_not_hold_a_minute_back(project):
    project.send("payments", payment(1, "ada", "1.00", "00:01"))
    project.advance(minutes=2)
    project.expect("income").row(user_id="ada", final=True)


def test_a_payment_counts_once(project):
    first = payment(1, "ada", "1.00", "00:01")
    project.send("payments", first, key="request 1")
    retry = project.send("payments", first, key="request 1")
    assert retry.is_retry
    project.send("payments", first)
    project.expect("income").rows([{"payments": 1}]).counts(read=1, duplicate=1)


def test_a_payment_that_makes_no_sense_is_kept_aside(project):
    answer = project.send(
        "payments",
        [payment(1, "ada", "1.00", "00:01"), payment(2, "bob", "a lot", "00:02"), "not JSON"],
    )
    assert (answer.accepted, answer.quarantined) == (1, 2)
    project.expect("payments").dead_letters(
        [{"reason": "expected a decimal number", "record": {"user_id": "bob"}}, "not JSON"]
    )
    project.expect("income").rows([{"user_id": "ada"}])


def test_subscribers_see_each_minute_grow(project):
    project.send("payments", payment(1, "ada", "1.00", "00:01"))
    project.expect("income").changes(added=[{"user_id": "ada", "total": "1.00"}])
    project.send(
        "payments", [payment(2, "ada", "2.00", "00:02"), payment(3, "bob", "5.00", "00:03")]
    )
    project.expect("income").changes(
        added=[{"user_id": "bob", "total": "5.00"}],
        changed=[({"total": "1.00"}, {"total": "3.00"})],
    )
